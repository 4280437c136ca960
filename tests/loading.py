"""The tests' models, engines with settings by name, and their answers."""

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
"""A quick model of 7 million parameters, trained on Python's standard library. Its answers repeat themselves."""


def smollm2() -> Path:
    """Return the file of SmolLM2-135M-Instruct, a chat model that the extra `test` installs."""
    path = smollm2_file()
    assert path is not None, "SmolLM2 is missing: pip install '.[test]'"
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
    """Open an engine, with default settings for each None."""
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
    """Return the whole answer to a prompt; at most `max_tokens` tokens, -1: no limit."""
    asked, ends = engine.prompts.question(prompt, system, raw=raw), () if raw else engine.prompts.template.stops
    text, pieces = engine.generate(asked, max_tokens, (*as_stops(stops), *ends))
    for _ in pieces:
        pass
    return text.answer()


def last_tokens(engine: Engine) -> list[int]:
    """Return the tokens of the last sequence in the only slot of an engine."""
    return engine._admission._slots[0].tokens

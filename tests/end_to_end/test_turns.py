"""Turns of a conversation on real models: each is a fresh run of the same tokens, and only what is new is decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lacli.check.judge import PLAIN
from lacli.decode import Decoder
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.modes import common_prefix
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.verify import SampleAndMatch
from tests.fakes.tiny_models import write_gemma_swa, write_hybrid, write_mamba
from tests.talking import (
    LOADING,
    SMALL,
    TURNS,
    Watched,
    chat_on,
    judged,
    opened,
    said,
)

JACOBI = DecodeSettings(mode="jacobi", window=4)


@pytest.mark.parametrize("decoding", [SMALL, DecodeSettings(mode="lookup"), JACOBI, PLAIN], ids=lambda each: each.mode)
def test_each_of_forty_turns_is_a_fresh_run_of_the_same_tokens(decoding: DecodeSettings) -> None:
    with opened(decoding) as session, LlamaEngine(session.model, LOADING, PLAIN) as plain_engine:
        watched, chat = Watched(session), chat_on(session)
        fresh = Decoder(plain_engine, PLAIN)
        differences = []
        for question in TURNS:
            held = watched.decoder.text[: watched.decoder.replicas.past]
            said(chat.ask(question))
            prompt = watched.prompt
            assert watched.decoder.reused == min(common_prefix(held, prompt), len(prompt) - 1)
            assert watched.holds_its_text
            expected = [token for step in fresh.generate(prompt, 12) for token in step.tokens]
            if difference := judged(watched, plain_engine, expected):
                differences.append(difference)
                chat.clear()
        assert len(chat.turns) == 40
        assert not [each for each in differences if each.bug]


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_with_strict_forty_turns_are_fresh_runs_to_the_last_bit(temp: float) -> None:
    sampling = SamplingSettings(temp=temp, seed=7)
    with opened(replace(SMALL, strict=True), sampling) as session, LlamaSampler(session.model, sampling) as sampler:
        watched, chat = Watched(session), chat_on(session, sampling=sampling)
        plain = replace(session.settings, mode="plain")
        with LlamaEngine(session.model, session.model_settings, plain) as engine:
            fresh = Decoder(engine, plain, SampleAndMatch(sampler) if temp else None)
            for question in TURNS:
                said(chat.ask(question))
                prompt = watched.prompt
                assert watched.tokens == [token for step in fresh.generate(prompt, 12) for token in step.tokens]
        assert watched.decoder.reused > 1000


@pytest.mark.parametrize("write", [write_mamba, write_hybrid, write_gemma_swa], ids=lambda write: write.__name__)
def test_turns_on_other_kinds_of_models_are_fresh_runs(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "model.gguf")
    with Session(tmp_path / "model.gguf", LOADING, SMALL, SamplingSettings()) as session:
        watched, chat = Watched(session), chat_on(session, 10)
        with LlamaEngine(session.model, LOADING, PLAIN) as engine:
            for question in ("one two", "three", "", "four", "five"):
                if question:
                    said(chat.ask(question))
                    fresh = Decoder(engine, PLAIN).generate(watched.prompt, 10)
                    assert watched.tokens == [token for step in fresh for token in step.tokens]
                else:
                    chat.undo()

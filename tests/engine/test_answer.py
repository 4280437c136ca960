"""An answer's text on the toy context: stop texts, ends and limits give the same text in every mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lacli.auto.step_cost import Cost, StepCost
from lacli.engine.answer import Answer, AnswerText, Generation
from lacli.engine.engine import SequenceOptions
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings, ModeName
from lacli.stats import RunStatistics
from tests.engine.test_engine import VOCABULARY, any_settings, ends, plain_tokens, prompts
from tests.fakes import tiny_models
from tests.fakes.context import FakeContext
from tests.fakes.decoding import Decoding
from tests.loading import last_tokens, load

ALPHABET = "ab é\n€"
"""Tokens 0, 1, .. are made of its characters' bytes: some are whole, some are halves, and four are empty."""

CONTROLS = {5: "<go>", 9: "<|stop|>"}
"""The names of two empty tokens, which are control tokens."""

PIECES = [piece for char in ALPHABET for piece in (char.encode()[:1], char.encode()[1:])]


def bytes_of(token: int) -> bytes:
    return PIECES[token % len(PIECES)]


def generation_of(decoder: Decoding, prompt: list[int], limit: int, stops: Sequence[str] = ()) -> Generation:
    text = AnswerText(decoder.engine, bytes_of, prompt, stops, controls=CONTROLS)
    return Generation(text, text.pieces(prompt, SequenceOptions(limit)))


def answer(
    chosen: DecodeSettings, prompt: list[int], limit: int, stops: list[str], ends: frozenset[int]
) -> tuple[Answer, Decoding, str]:
    """Return a finished answer, its decoder, and the printed text."""
    engine = FakeContext(120, 120, chosen.ids, VOCABULARY, ends)
    decoder = Decoding(engine, chosen)
    text, pieces = generation_of(decoder, prompt, limit, stops)
    printed = "".join(piece.text for piece in pieces)
    return text.answer(), decoder, printed


stop_texts = st.lists(st.sampled_from([*ALPHABET, *CONTROLS.values()]), min_size=1, max_size=4).map("".join)


@given(any_settings, prompts, st.integers(0, 60), st.lists(stop_texts, max_size=3), ends)
# A control token stands between the two characters of the stop string.
@example(DecodeSettings(mode="plain", window=0, ngram=2, guesses=0), [0, 0, 6], 12, ["a "], frozenset())
@settings(max_examples=100)
def test_every_mode_gives_plains_answer(
    chosen: DecodeSettings, prompt: list[int], limit: int, stops: list[str], ends: frozenset[int]
) -> None:
    plain, *_ = answer(replace(chosen, mode="plain"), prompt, limit, stops, ends)
    ours, decoder, printed = answer(chosen, prompt, limit, stops, ends)
    assert (ours.text, ours.tokens, ours.finish_reason) == (plain.text, plain.tokens, plain.finish_reason)
    assert ours.statistics.tokens == plain.statistics.tokens
    assert printed == ours.text
    assert not any(stop in ours.text for stop in stops)
    assert last_tokens(decoder.engine)[: len(prompt) + len(ours.tokens)] == prompt + list(ours.tokens)


@given(any_settings, prompts, st.integers(1, 10))
@settings(max_examples=40)
def test_leaving_in_the_middle_of_a_run_keeps_whole_steps(
    chosen: DecodeSettings, prompt: list[int], pieces: int
) -> None:
    engine = FakeContext(200, 200, chosen.ids, VOCABULARY)
    decoder = Decoding(engine, chosen)
    text, iterator = generation_of(decoder, prompt, 60)
    for _, _ in zip(range(pieces), iterator, strict=False):
        pass
    iterator.close()
    left = text.answer()
    assert last_tokens(decoder.engine) == prompt + list(left.tokens)
    assert left.statistics.tokens == len(left.tokens)


def test_an_answer_that_is_iterated_again_stays_as_it_is() -> None:
    decoder = Decoding(FakeContext(200, 200, 31, VOCABULARY), DecodeSettings(mode="lookahead"))
    text, pieces = generation_of(decoder, [1, 2, 3], 20)
    for _ in pieces:
        break
    pieces.close()
    left = text.answer()
    assert list(pieces) == [] and text.answer() == left
    whole, pieces = generation_of(decoder, [1, 2, 3], 20)
    printed = "".join(piece.text for piece in pieces)
    list(generation_of(decoder, [4, 5], 20).pieces)
    assert (whole.answer().text, [*whole.answer().tokens]) == (printed, plain_tokens([1, 2, 3], 20))


@pytest.mark.parametrize("mode", ["lookup", "auto", "plain"])
def test_an_answer_is_compared_with_plain_decoding_if_costs_were_measured(mode: ModeName, tmp_path: Path) -> None:
    tiny_models.write_llama(path := tmp_path / "tiny.gguf")
    cost = Cost((StepCost(64, {1: 1.0, 8: 2.4}),))
    chosen = DecodeSettings(mode=mode)
    run = RunStatistics(steps=4, tokens=6, batches=Counter({1: 3, 2: 1}))
    with load(path, model_settings=ModelSettings(context=256, threads=1), decode_settings=chosen) as engine:
        assert engine.times_plain(run) is None
        engine.use_cost(cost)
        assert engine.times_plain(run) == pytest.approx(6 / (3 + 1.2)) and engine.times_plain(RunStatistics()) is None

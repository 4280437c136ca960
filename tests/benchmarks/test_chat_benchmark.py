"""The benchmark of conversations: what its decoders keep and forget, that they change no text, and that it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chat import conversations, main
from benchmarks.core import PROMPTS
from benchmarks.keeping import KeepingNothing, LearningAnew, Unforgetting
from lacli.auto.mode import AutoModes
from lacli.decode import Decoder
from lacli.settings import DecodeSettings, ModeName
from tests.loading import STDLIB_7M
from tests.test_decode import any_settings, engine_for, plain_tokens, prompts, tokens_of

kinds = st.sampled_from([LearningAnew, KeepingNothing, Unforgetting])
turns = st.lists(st.tuples(st.integers(0, 60), prompts, st.integers(0, 12)), min_size=1, max_size=5)
"""Each: tokens of the text that are kept, tokens behind them, and the answer's limit."""


@given(kinds, any_settings, turns)
@settings(max_examples=25, deadline=None)
def test_every_turn_has_plains_tokens(
    kind: type[Decoder], chosen: DecodeSettings, rest: list[tuple[int, list[int], int]]
) -> None:
    decoder = kind(engine_for(chosen, 400), chosen, make_mode=AutoModes())
    for keep, more, limit in rest:
        prompt = [*decoder.tokens[:keep], *more]
        steps = list(decoder.generate(prompt, limit, reuse=True))
        assert tokens_of(steps) == plain_tokens(prompt, limit, 400 - chosen.min_outputs + 1)


@pytest.mark.parametrize("kind", [Decoder, LearningAnew, KeepingNothing])
def test_what_is_kept(kind: type[Decoder]) -> None:
    chosen = DecodeSettings(mode="lookahead", window=0, ngram=3, pool_prompt=False)
    decoder = kind(engine_for(chosen), chosen)
    list(decoder.generate([1, 2, 3], 30))
    cached = len(decoder.tokens) - 1
    list(decoder.generate([*decoder.tokens, 5, 6], 0, reuse=True))
    assert decoder.reused == (0 if kind is KeepingNothing else cached)
    assert bool(decoder.pool.statistics().ngrams) == (kind is Decoder)


@pytest.mark.parametrize("mode", ["lookup", "lookahead"])
def test_an_answer_that_is_not_forgotten_is_guessed_when_it_is_given_again(mode: ModeName) -> None:
    chosen = DecodeSettings(mode=mode, window=0, ngram=4, guesses=4, lookup_draft=3)

    def steps_again(kind: type[Decoder]) -> int:
        decoder = kind(engine_for(chosen), chosen)
        list(decoder.generate([1, 2, 3], 40))
        return len(list(decoder.generate([1, 2, 3], 40, reuse=True)))

    assert steps_again(Unforgetting) < steps_again(Decoder)


def test_a_conversation_edits_what_it_showed_before() -> None:
    (first, second, third), *_ = conversations(PROMPTS, pasted=True)
    assert '"""' in first and "def area(" in first
    assert second.startswith("Rename `area` to `compute`") and "def area(" in second and '"""' not in second
    assert "def compute(" in third
    assert [question.endswith("```") for question in conversations(PROMPTS, pasted=False)[0]] == [True, False, False]


Table = Callable[..., list[dict[str, str]]]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Table:
    """The rows of what the benchmark prints, by their headings."""

    def printed(*arguments: str) -> list[dict[str, str]]:
        short = ("--each", "1", "--repeats", "1", "--tokens", "6")
        monkeypatch.setattr(sys, "argv", ["chat", *arguments, "--model", str(STDLIB_7M), *short])
        main()
        lines = (line.strip("| ").split(" | ") for line in capfd.readouterr().out.splitlines() if line[:1] == "|")
        header, _, *rows = lines
        return [dict(zip(header, row, strict=True)) for row in rows]

    return printed


def test_the_table_of_turns_tells_what_each_decoded(table: Table) -> None:
    rows = table("turns", "--modes", "plain", "lookup", "--context", "512", "--pasted")
    assert [(row["mode"], row["turn"]) for row in rows] == [
        (mode, str(turn)) for mode in ("plain", "lookup") for turn in (1, 2, 3)
    ]
    decoded = "decoded: kept / learned anew / nothing kept / asked alone"
    for row, turn in zip(rows, [0, 1, 2] * 2, strict=True):
        kept, anew, nothing, alone = map(int, row[decoded].split(" / "))
        assert kept == anew and nothing == int(row["prompt"])
        assert kept < nothing and alone < nothing if turn else kept == nothing == alone


def test_the_other_tables_have_their_rows(table: Table) -> None:
    again = table("again", "--modes", "plain", "lookup", "--context", "512")
    assert [(row["mode"], row["temperature"], row["same"]) for row in again] == [
        ("lookup", "0", "1 of 1"),
        ("lookup", "0.8", "1 of 1"),
    ]
    overhead = table("overhead", "--sizes", "60", "--context", "1024")
    assert len(overhead) == 1 and int(overhead[0]["tokens"]) > 0

"""One sequence after another in one cache: only different tokens are decoded, and answers are as in an empty cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from os.path import commonprefix
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lacli
from lacli.batch import Batch
from lacli.check.judge import PLAIN
from lacli.settings import DecodeSettings
from tests.engine.test_engine import (
    VOCABULARY,
    any_settings,
    engine_for,
    holds_its_text,
    plain_tokens,
    prompts,
    tokens_of,
)
from tests.fakes.context import FakeContext
from tests.fakes.decoding import Decoding, fixed_clock_decoder

few = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)
turn = st.tuples(st.integers(0, 60), few, st.integers(0, 12))
"""The number of kept tokens of the sequence, the tokens after them, and the answer's limit."""
turns = st.lists(turn, min_size=1, max_size=5)


class Counting(FakeContext):
    """A context that counts the rows of batches without outputs, which are prefill."""

    prefilled = 0

    def decode(self, batch: Batch) -> bool:
        if not batch.wanted:
            self.prefilled += batch.rows
        return super().decode(batch)


@given(any_settings, any_settings, prompts, prompts, st.booleans())
@settings(max_examples=80)
def test_another_text_in_another_mode_reuses_the_longest_common_prefix(
    chosen: DecodeSettings, other: DecodeSettings, first: list[int], second: list[int], goes_on: bool
) -> None:
    chosen, other = (each.constrained(ordered=False, min_outputs=1) for each in (chosen, other))
    engine = Counting(256, 256, max(chosen.ids, other.ids), VOCABULARY)
    decoder = fixed_clock_decoder(engine, chosen)
    list(decoder.generate(first, 10))
    held = engine.held()
    engine.prefilled = 0
    decoder.engine.reconfigure(other)
    second = [*decoder.tokens, *second] if goes_on else second
    assert tokens_of(list(decoder.generate(second, 5))) == plain_tokens(second, 5)
    assert decoder.reused == min(len(commonprefix([held, second])), len(second) - 1)
    assert engine.prefilled == len(second) - 1 - decoder.reused


def test_the_pool_is_kept_between_turns() -> None:
    chosen = DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=4)
    decoder = fixed_clock_decoder(engine_for(chosen), chosen)
    list(decoder.generate([1, 2, 3], 40))
    known = decoder.engine.pool.statistics().ngrams
    list(decoder.generate([5], 1))
    assert decoder.engine.pool.statistics().ngrams >= known > 10


WATCHED = ("auto/*", "engine/cells", "engine/step", "engine/admission", "engine/engine", "modes", "pool", "window")
"""The files that keep sequences, cells and drafts."""


@contextmanager
def ctrl_c_at_line(number: int) -> Iterator[list[tuple[str, int]]]:
    """Raise Ctrl-C before the `number`-th line (from 1) that runs in WATCHED files; yield the lines that ran."""
    folder = Path(lacli.__file__).parent
    files = {str(path) for name in WATCHED for path in folder.glob(f"{name}.py")}
    ran: list[tuple[str, int]] = []

    def local(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            ran.append((frame.f_code.co_filename, frame.f_lineno))
            if len(ran) == number:
                raise KeyboardInterrupt
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: local if frame.f_code.co_filename in files else None)
    try:
        yield ran
    finally:
        sys.settrace(before)


def first_and_last(ran: Sequence[tuple[str, int]]) -> list[int]:
    """Return the numbers (from 1) in `ran` of the first and the last run of each line of code."""
    places = [*enumerate(ran, start=1)]
    both = ({line: place for place, line in order} for order in (places, reversed(places)))
    return sorted({place for each in both for place in each.values()})


TINY = DecodeSettings(mode="lookahead", window=2, ngram=3, guesses=2)


def spoiled(new: Callable[[], tuple[Decoding, FakeContext]], line: int) -> list[tuple[str, int]]:
    """Interrupt the second of three turns at a line, and check the third turn; return the lines that ran."""
    decoder, engine = new()
    list(decoder.generate([1, 2, 3, 4, 5, 6], 5))
    with suppress(KeyboardInterrupt), ctrl_c_at_line(line) as ran:
        list(decoder.generate([*decoder.tokens[:8], 7, 3], 20))
    third = [*decoder.tokens[:9], 2]
    assert tokens_of(list(decoder.generate(third, 4))) == plain_tokens(third, 4), line
    assert holds_its_text(decoder, engine)
    return ran


@pytest.mark.parametrize(
    ("chosen", "back"),
    [
        (PLAIN, None),
        (PLAIN, 0),
        (DecodeSettings(mode="lookup"), None),
        (replace(TINY, mode="jacobi"), None),
        (TINY, None),
        (replace(TINY, mode="auto", auto_rows=5), None),
    ],
)
def test_an_interrupt_before_any_line_spoils_nothing(chosen: DecodeSettings, back: int | None) -> None:
    def new() -> tuple[Decoding, FakeContext]:
        engine = FakeContext(24, 24, chosen.ids, VOCABULARY, max_rollback=back)
        return fixed_clock_decoder(engine, chosen), engine

    # Test every third line. In mode auto, whose sources have their own tests, test every sixth.
    for line in first_and_last(spoiled(new, -1))[:: 6 if chosen.mode == "auto" else 3]:
        spoiled(new, line)

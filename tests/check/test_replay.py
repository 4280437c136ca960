"""Replays on the toy context: a run's batch sizes, with the tokens in id 0 and without the run's masks and copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.batch import Batch
from lacli.check.judge import BatchRecorder, Mismatch, plain_logits, replay
from lacli.context import Floats
from lacli.settings import DecodeSettings, ModeName
from tests.fakes.context import FakeContext
from tests.fakes.decoding import Decoding

PROMPT = [1, 2, 3, 4, 1, 2, 3, 1, 2, 3, 4, 5]
LIMIT = 40


class Watched(BatchRecorder):
    """A recorder that also counts copies and keeps the logits of every step."""

    def __init__(self, engine: FakeContext) -> None:
        super().__init__(engine)
        self.copies = 0
        self.steps: list[Floats] = []

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self.copies += 1
        self.context.copy(source, target, start, end)

    def decode(self, batch: Batch) -> bool:
        fits = super().decode(batch)
        if any(row.output for row in self.decoded[-1]):
            self.steps.append(self.logits().copy())
        return fits


def chosen(mode: ModeName) -> DecodeSettings:
    return DecodeSettings(mode=mode, window=4, ngram=4, guesses=4)


def engine_for(mode: ModeName) -> Watched:
    settings = chosen(mode)
    return Watched(FakeContext(ids=settings.ids))


def answer(engine: BatchRecorder, mode: ModeName) -> list[tuple[int, ...]]:
    return [step.tokens for step in Decoding(engine, chosen(mode)).generate(PROMPT, LIMIT)]


@pytest.mark.parametrize("mode", ["plain", "jacobi", "lookup", "lookahead"])
@given(cut=st.integers(0, LIMIT - 1))
def test_a_replay_of_an_exact_run_gives_the_logits_of_plain(mode: ModeName, cut: int) -> None:
    engine = engine_for(mode)
    steps = answer(engine, mode)
    text = [token for step in steps for token in step][:cut]
    *_, last = replay(engine, PROMPT, steps, text)
    np.testing.assert_array_equal(last, plain_logits(FakeContext(), PROMPT, text))


@pytest.mark.parametrize("mode", ["jacobi", "lookup", "lookahead"])
def test_a_replay_has_the_runs_batch_sizes_and_copies_nothing(mode: ModeName) -> None:
    engine = engine_for(mode)
    steps = answer(engine, mode)
    shapes = [(len(rows), sum(row.output for row in rows)) for rows in engine.decoded]
    assert max(rows for rows, _ in shapes[1:]) > 2
    engine.copies = 0
    assert [*replay(engine, PROMPT, steps, [token for step in steps for token in step][:-1])]
    assert [(len(rows), sum(row.output for row in rows)) for rows in engine.decoded] == shapes
    assert engine.copies == 0


def test_a_text_that_the_batches_did_not_bring_is_a_mismatch() -> None:
    engine = engine_for("lookup")
    steps = answer(engine, "lookup")
    longest = max(range(len(steps)), key=lambda index: len(steps[index]))
    assert len(steps[longest]) > 1
    text = [token for step in steps[: longest + 1] for token in step]
    text[-2] = (text[-2] + 1) % 12
    with pytest.raises(Mismatch):
        list(replay(engine, PROMPT, steps, text))
    answer(engine, "lookup")
    with pytest.raises(Mismatch, match="more tokens"):
        list(replay(engine, PROMPT, steps, [*(token for step in steps for token in step), 1]))

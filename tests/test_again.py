"""Timed answers whose steps are taken again: the same batches, and a verdict about the very steps that parted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
from hypothesis import given

from lacli.bench.again import Again, Noting
from lacli.bench.judging import judge
from lacli.bench.results import results
from lacli.bench.rounds import Contender, Rounds, timed
from lacli.bench.rows import verdict
from lacli.bench.sweep import Point
from lacli.check.compare import OpenEngine
from lacli.check.replay import Recorder
from lacli.decode import Decoder
from lacli.modes import Mode
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree
from tests.bench_field import (
    PLAIN,
    asker,
    contender,
    task,
    words,
)
from tests.fakes.clock import FakeClock
from tests.fakes.engine import FakeEngine
from tests.test_decode import any_settings, engine_for, prompts
from tests.test_oracle import Otherwise

AUTO = DecodeSettings(mode="auto")
TASKS = (task("1 2 3 1 2"), task("4 5 6 4 5 6 4"))


@given(any_settings, prompts)
def test_noted_trees_give_the_same_batches_again(chosen: DecodeSettings, prompt: list[int]) -> None:
    first, second = Recorder(engine_for(chosen)), Recorder(engine_for(chosen))
    noting = Noting(first, chosen)
    steps = list(noting.generate(prompt, 30))
    assert len(noting.trees) == len(steps)
    again = Decoder(second, chosen, mode=lambda: Again(noting.trees))
    assert [step.tokens for step in again.generate(prompt, 30)] == [step.tokens for step in steps]
    assert second.decoded == first.decoded


def test_where_the_text_is_another_one_nothing_is_guessed() -> None:
    guess = Tree(5)
    guess.add([6, 7], 0, Origin.CHAIN)
    assert len(Again([guess]).grow([1, 5], 9)) == 3
    for trees, text, room in (([guess], [1, 4], 9), ([], [1, 5], 9), ([guess], [1, 5], 2)):
        assert Again(trees).grow(text, room).tokens == [text[-1]]


class Moody(Mode):
    """Guesses the token 2 and then what comes next by the toy model's rule, in the first answer only."""

    answers = 0

    def begin(self, text: Sequence[int]) -> None:
        Moody.answers += 1

    def grow(self, text: Sequence[int], room: int) -> Tree:
        tree = Tree(text[-1])
        if Moody.answers == 1:
            before, last = text[-2:]
            following = (3 * last + before + 1) % 12
            tree.add([following, (3 * following + last + 1) % 12], 0, Origin.CHAIN)
        return tree


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    clock.install(monkeypatch)
    monkeypatch.setattr(Moody, "answers", 0)
    return clock


def moody_rounds(clock: FakeClock, engine: FakeEngine, repetitions: int = 1) -> Rounds:
    """Plain decoding beside a mode that goes other ways each time."""

    def decoder() -> Decoder:
        return Noting(engine, AUTO, mode=Moody)

    moody = Contender("auto", Point(AUTO), 0, lambda exchange: timed(decoder(), exchange, words))
    rounds = Rounds([contender(PLAIN, clock)[0], moody], TASKS[:1], repetitions, asker())
    for _ in rounds:
        pass
    return rounds


def readable(point: Point) -> OpenEngine:
    return lambda settings: nullcontext(
        Otherwise(sequences=AUTO.sequences) if settings.mode == "auto" else FakeEngine()
    )


def test_a_text_that_parted_once_is_judged_in_the_steps_that_it_parted_in(clock: FakeClock) -> None:
    rounds = moody_rounds(clock, Otherwise(sequences=AUTO.sequences))
    (exchange,) = rounds.exchanges
    assert rounds.of(1, 0)[0].same(rounds.of(0, 0)[0]) is False
    judged = judge(readable, rounds.contenders, results(rounds), None, every=True)
    assert [verdict(run) for run in judged.values()] == ["rounding"]
    assert Moody.answers == 1, "the mode itself would have gone another way"


def test_trees_of_answers_that_are_plains_are_not_kept(clock: FakeClock) -> None:
    right = moody_rounds(clock, FakeEngine(sequences=AUTO.sequences), repetitions=2)
    assert [trial.trees for trial in right.of(1, 0)] == [(), ()]
    Moody.answers = 0
    wrong = moody_rounds(clock, Otherwise(sequences=AUTO.sequences), repetitions=2)
    assert [bool(trial.trees) for trial in wrong.of(1, 0)] == [True, False]

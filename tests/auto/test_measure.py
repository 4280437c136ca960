"""Measuring step costs on toy contexts, with a clock that only their decode calls advance."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from lacli.auto.model_cost import MAX_ROUNDS, MIN_ROUNDS, VISIT, measure
from lacli.auto.step_cost import MeasurePlan, StepCost
from lacli.batch import Batch
from tests.fakes.context import FakeContext

TOKENS = [1, 2, 3, 5, 8, 4, 1, 6]
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass
class Timed(FakeContext):
    """A context with a clock. Seconds: `row` a further row, `position` a cell, `change` a change of the rows.

    `prefill`: seconds of a prefill row. `slow_after`: steps before all get slow. `outliers`: numbers of slow steps.
    """

    now: float = 0.0
    row: float = 0.25
    position: float = 0.0
    prefill: float = 0.0
    change: float = 0.0
    slow_after: int = 10**9
    steps: list[int] = field(default_factory=list)
    outliers: tuple[int, ...] = ()

    def clock(self) -> float:
        return self.now

    def decode(self, batch: Batch) -> bool:
        fits = super().decode(batch)
        rows = len(batch)
        if not batch.wanted:
            self.now += self.prefill * rows
            return fits
        seconds = self.seconds(rows, int(batch.positions[0])) + self.change * (self.steps[-1:] != [rows])
        self.now += seconds * (100 if len(self.steps) > self.slow_after else 1)
        self.now += 5 * (len(self.steps) in self.outliers)
        self.steps.append(rows)
        return fits

    def seconds(self, rows: int, context: int = 0) -> float:
        return 1 + self.row * (rows - 1) + self.position * context


def measured(
    engine: Timed, *contexts: int, seconds: float = 800.0, rows: tuple[int, ...] = SIZES
) -> tuple[tuple[StepCost, ...], float]:
    return measure(engine, TOKENS, MeasurePlan(contexts or (8,), rows, seconds), clock=engine.clock)


@pytest.mark.parametrize("change", [0.0, 0.5])
def test_the_costs_of_rows_and_of_a_change_of_rows_are_measured(change: float) -> None:
    engine = Timed(position=1 / 64, change=change)
    found, change_s = measured(engine, 8, 40)
    assert [each.context for each in found] == [8, 40] and change_s == pytest.approx(change)
    for each in found:
        assert each.measured == pytest.approx({rows: engine.seconds(rows, each.context) for rows in SIZES})


def test_all_sizes_are_timed_in_rounds_until_the_time_is_up_and_not_too_often() -> None:
    for seconds, rounds in ((200, MIN_ROUNDS), (9999, MAX_ROUNDS)):
        engine = Timed()
        measured(engine, seconds=seconds)
        counted = Counter(engine.steps)
        # The survey has one step of each size; each round ends before the next begins.
        assert counted[3] == counted[12] == VISIT * rounds and counted[16] == 1 + VISIT * rounds
        assert engine.steps[-len(SIZES) * VISIT :] == [size for size in SIZES for _ in range(VISIT)]
        assert engine.now <= seconds


def test_a_step_that_was_held_up_does_not_count() -> None:
    engine = Timed(outliers=(20, 47, 60))
    (found,), change_s = measured(engine)
    assert found.measured == {rows: engine.seconds(rows) for rows in SIZES} and change_s == 0


def test_a_machine_that_becomes_slow_is_measured_once_more_and_has_no_result_if_it_stays_so() -> None:
    # One fast row, and all other rows 100 times as slow: no real machine is so.
    for slow_after, sizes in ((6, [1, 2]), (5, [*SIZES])):
        told: list[str] = []
        plan = MeasurePlan((8,), SIZES, 390)
        (found,), _ = measure(
            engine := Timed(slow_after=slow_after), TOKENS, plan, clock=engine.clock, progress=told.append
        )
        assert [*found.measured] == sizes and len(told) == 1 + (slow_after == 6)
    never, _ = measure(engine := Timed(row=9.0), TOKENS, MeasurePlan((8,), SIZES, 9999), clock=engine.clock)
    assert never == ()


@pytest.mark.parametrize(
    ("row", "rows", "seconds", "found"),
    [
        # The time suffices for all sizes, for fewer large sizes, for powers of two, or for the smallest sizes.
        (0.125, (1, 2, 3, 8, 12, 16, 20, 24, 28, 32, 48, 64), 2000, [1, 2, 3, 8, 12, 16, 20, 24, 28, 32, 48, 64]),
        (0.125, (1, 2, 3, 8, 12, 16, 20, 24, 28, 32, 48, 64), 285, [1, 2, 3, 8, 12, 16, 32, 64]),
        (1, SIZES, 400, [1, 2, 4, 8, 16]),
        (1, SIZES, 180, [1, 2, 4, 8]),
        (1, SIZES, 3, [1, 2]),
        (1, (1,), 3, [1]),
    ],
)
def test_sizes_for_which_there_is_no_time_are_left_out(
    row: float, rows: tuple[int, ...], seconds: float, found: list[int]
) -> None:
    engine = Timed(row=row)
    assert [*measured(engine, seconds=seconds, rows=rows)[0][0].measured] == found
    assert engine.now <= seconds or seconds < 100


def test_a_context_that_takes_too_long_to_prefill_is_left_out() -> None:
    for length, contexts in ((200, [64]), (80, [64, 80])):
        found, _ = measured(Timed(row=1, prefill=1), 64, length, seconds=200, rows=(1, 2))
        assert [each.context for each in found] == contexts

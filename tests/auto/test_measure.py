"""Measuring t(b) on toy engines with a clock that only their decodes advance."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from lacli.auto.measure import MIN_ROUNDS, SINGLES, WARMING, Measurement, MeasurePlan, drift, engine_settings, measure
from lacli.auto.step_cost import Cost
from lacli.batch import Batch
from tests.fakes.context import FakeContext

TOKENS = [1, 2, 3, 5, 8, 4, 1, 6]
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass
class Timed(FakeContext):
    """Each row takes time, more behind a longer context, and each choice too; a call with no choices is a prefill."""

    now: float = 0.0
    row: float = 0.25
    choice: float = 0.125
    position: float = 0.0
    prefill: float = 0.0
    steps: list[tuple[int, int]] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    outliers: tuple[int, ...] = ()

    def clock(self) -> float:
        return self.now

    def decode(self, batch: Batch) -> bool:
        fits = super().decode(batch)
        rows, choices = len(batch), batch.wanted
        if not choices:
            self.now += self.prefill * rows
            return fits
        self.now += self.seconds(rows, choices, int(batch.positions[0]))
        if len(self.steps) in self.outliers:
            self.now += 5
        self.steps.append((rows, choices))
        self.behind.append(int(batch.positions[0]))
        return fits

    def seconds(self, rows: int, choices: int, context: int = 0) -> float:
        return 1 + self.row * (rows - 1) + self.choice * (choices - 1) + self.position * context


def measured(engine: Timed, *contexts: int, seconds: float = 800.0, rows: tuple[int, ...] = SIZES) -> Measurement:
    return measure(engine, TOKENS, MeasurePlan(contexts or (8,), rows, seconds), clock=engine.clock)


def test_the_measured_staircase_is_the_engines() -> None:
    engine = Timed(position=1 / 64)
    found = measured(engine, 8, 40)
    assert [staircase.context for staircase in found.staircases] == [8, 40]
    assert not found.notes and not found.stuck
    for staircase in found.staircases:
        assert [point.rows for point in staircase.points] == list(SIZES)
        for point in staircase.points:
            assert point.every == engine.seconds(point.rows, point.rows, staircase.context)
            assert point.first == engine.seconds(point.rows, 1, staircase.context)
            assert point.spread == 0 and point.repeats >= MIN_ROUNDS


@pytest.mark.parametrize("change", [0.0, 0.5])
def test_what_a_change_of_rows_costs_is_measured(change: float) -> None:
    class Changing(Timed):
        def seconds(self, rows: int, choices: int, context: int = 0) -> float:
            return super().seconds(rows, choices) + (change if self.steps and self.steps[-1][0] != rows else 0.0)

    staircase = measured(Changing()).staircases[0]
    assert Cost((staircase,)).change_s == pytest.approx(change)
    assert [point.every for point in staircase.points] == [Timed().seconds(size, size) for size in SIZES]


def test_all_sizes_are_timed_equally_often_in_rounds_until_the_time_is_up() -> None:
    engine = Timed()
    staircase = measured(engine, seconds=800).staircases[0]
    counted = Counter(engine.steps)
    rounds = counted[3, 1]
    assert rounds > MIN_ROUNDS
    assert counted[12, 1] == counted[16, 1] == rounds
    # One behind another number of rows, one behind the same.
    assert counted[3, 3] == counted[12, 12] == 2 * rounds
    singles = [point.repeats for point in staircase.points][0]
    assert singles == SINGLES * rounds and all(point.repeats == rounds for point in staircase.points[1:])
    # One step of the survey and the untimed ones; of two rows one to see whether the cache can forget.
    assert counted[1, 1] == 1 + (WARMING + SINGLES) * rounds
    assert counted[2, 1] == 1 + rounds
    # Its larger sizes follow each other: a round is over before the next one begins.
    wide = [rows for rows, choices in engine.steps[1:] if choices == 1 and rows > 1]
    assert wide == list(SIZES[1:]) * rounds
    assert 800 - 3 * engine.seconds(16, 16) * len(SIZES) < engine.now <= 800


def test_a_step_that_was_held_up_does_not_count() -> None:
    engine = Timed(outliers=(20, 47, 60))
    staircase = measured(engine, seconds=300).staircases[0]
    assert [point.every for point in staircase.points] == [engine.seconds(rows, rows) for rows in SIZES]


def test_a_plain_step_is_timed_as_plain_decoding_makes_it_after_others_of_its_shape() -> None:
    class Unsettled(Timed):
        """A step is slower unless the two before it had its shape."""

        def seconds(self, rows: int, choices: int, context: int = 0) -> float:
            settled = self.steps[-2:] == [(rows, choices)] * 2
            return super().seconds(rows, choices) + (not settled)

    assert measured(Unsettled()).staircases[0].single == 1


def test_ctrl_c_ends_it_with_what_was_measured() -> None:
    """Before a size was timed there is nothing, later each context that was timed, at least once a size."""

    @dataclass
    class Pressed(Timed):
        after: int = 0

        def decode(self, batch: Batch) -> bool:
            if len(self.steps) == self.after:
                raise KeyboardInterrupt
            return super().decode(batch)

    whole = Timed()
    measured(whole, 8, 40)
    second = next(number for number, context in enumerate(whole.behind) if context >= 40)
    with pytest.raises(KeyboardInterrupt):
        measured(Pressed(after=9), 8, 40)
    for after, contexts in ((second // 2, [8]), (second, [8]), (len(whole.steps) - 1, [8, 40])):
        found = measured(Pressed(after=after), 8, 40)
        assert found.stopped and [staircase.context for staircase in found.staircases] == contexts
        assert found.notes == ("stopped before everything was measured, so these numbers are not kept",)
        assert [point.rows for point in found.staircases[-1].points] == list(SIZES)


def test_a_machine_that_becomes_slow_after_the_survey_times_fewer_sizes() -> None:
    class Slowed(Timed):
        def seconds(self, rows: int, choices: int, context: int = 0) -> float:
            return super().seconds(rows, choices) * (100 if len(self.steps) > 6 else 1)

    engine = Slowed()
    found = measured(engine, seconds=300)
    assert [point.rows for point in found.staircases[0].points] == [1, 2, 3, 4]
    assert "only 4 of 8 sizes, up to 4 rows" in found.notes[0]
    assert engine.now < 2 * sum(engine.seconds(rows, rows) for rows in SIZES)


@pytest.mark.parametrize("calm", [0, 5])
def test_measuring_ends_where_it_is_not_worthwhile_with_what_each_size_showed_first(calm: int) -> None:
    engine = Timed()
    plan = MeasurePlan((8, 40), SIZES, 500.0)
    looks = iter([True] * calm)
    found = measure(engine, TOKENS, plan, clock=engine.clock, worthwhile=lambda: next(looks, False))
    assert next(looks, None) is None
    assert [[point.rows for point in each.points] for each in found.staircases] == [[1, 2, 4, 8, 16]]
    assert found.is_cut and not found.notes and not found.stopped


def test_reading_fewer_choices_never_costs_more() -> None:
    staircase = measured(Timed(choice=-0.01)).staircases[0]
    assert all(point.first == point.every for point in staircase.points)


SPARSE = (1, 2, 3, 8, 12, 16, 20, 24, 28, 32, 48, 64)
DEAR: dict[str, Any] = {"row": 1, "choice": 0}
STEADY: dict[str, Any] = {"row": 0.125, "choice": 0}
LEFT_OUT = "behind 8 tokens only {} of {} sizes, up to {} rows, were measured; --seconds {} measures more"


@pytest.mark.parametrize(
    ("engine", "asked", "found", "notes"),
    [
        # Time for all sizes, for the doubled of the large ones, for the smaller ones, and for the smallest.
        (STEADY, MeasurePlan((8,), SPARSE, 2000), [(8, SPARSE)], []),
        (
            STEADY,
            MeasurePlan((8,), SPARSE, 285),
            [(8, (1, 2, 3, 8, 12, 16, 32, 64))],
            [LEFT_OUT.format(8, 12, 64, 855)],
        ),
        (DEAR, MeasurePlan((8,), SIZES, 260), [(8, (1, 2, 3, 4, 6, 8))], [LEFT_OUT.format(6, 8, 8, 780)]),
        (DEAR, MeasurePlan((8,), SIZES, 3), [(8, (1, 2))], [LEFT_OUT.format(2, 8, 2, 9)]),
        # A context that takes too long to decode is left out.
        ({**DEAR, "prefill": 1}, MeasurePlan((64, 200), (1, 2), 60), [(64, (1, 2))], ["contexts above 64 tokens"]),
        ({**DEAR, "prefill": 1}, MeasurePlan((64, 9999), (1, 2), 60), [(64, (1, 2))], ["contexts above 64 tokens"]),
        # Room for some contexts and sizes; two contexts that are cut to the same length are one.
        (
            {"cells": 40, "batch_rows": 6},
            MeasurePlan((100, 8), SIZES, 500),
            [(8, (1, 2, 3, 4, 6)), (34, (1, 2, 3, 4, 6))],
            [
                "steps of 8 to 16 rows were left out: a batch takes 6 (-b)",
                "the longest context measured has 34 tokens: a step of 6 rows behind them fills -c 40",
            ],
        ),
        (
            {"cells": 24, "batch_rows": 1},
            MeasurePlan((100, 200), SIZES, 500),
            [(23, (1,))],
            [
                "steps of 2 to 16 rows were left out: a batch takes 1 (-b)",
                "the longest context measured has 23 tokens: a step of one row behind them fills -c 24",
            ],
        ),
        (
            {"cells": 40, "batch_rows": 400},
            MeasurePlan((4,), (1, 37), 500),
            [(4, (1,))],
            ["steps of 37 rows were left out: a context of 40 cells (-c) has room for 36"],
        ),
        ({"cells": 40, "batch_rows": 400}, MeasurePlan((4,), (1, 36), 500), [(4, (1, 36))], []),
    ],
)
def test_what_there_is_time_and_room_for_is_measured_and_the_rest_is_named(
    engine: dict[str, Any], asked: MeasurePlan, found: list[tuple[int, tuple[int, ...]]], notes: list[str]
) -> None:
    timed = Timed(**engine)
    result = measure(timed, TOKENS, asked, clock=timed.clock)
    assert [(each.context, tuple(point.rows for point in each.points)) for each in result.staircases] == found
    assert len(result.notes) == len(notes)
    assert all(note.startswith(words) for note, words in zip(result.notes, notes, strict=True))
    assert all(point.repeats >= 2 for each in result.staircases for point in each.points)
    assert timed.now <= asked.seconds or asked.seconds < 100


def test_a_context_that_takes_too_long_to_decode_is_cut() -> None:
    short, long = (found := measured(Timed(prefill=1, **DEAR), 8, 200, seconds=600)).staircases
    assert short.context == 8 and 16 <= long.context < 200
    assert any(f"contexts above {long.context} tokens" in note for note in found.notes)


def test_a_cache_that_cannot_forget_is_said_to_be_stuck() -> None:
    class Recurrent(Timed):
        def remove(self, sequence: int, start: int, end: int) -> bool:
            return not any(cell.position >= start for cell in self._cells)

    assert measured(Recurrent()) == Measurement((), stuck=True)


@pytest.mark.parametrize("contexts", [(8,), (8, 40), (40, 41)])
@pytest.mark.parametrize("cells", [49, 60, 400])
def test_a_state_that_goes_back_along_chains_is_measured_too(contexts: tuple[int, ...], cells: int) -> None:
    engine = Timed(sequences=1, max_rollback=7, cells=cells, batch_rows=16)
    found = measured(engine, *contexts, rows=(1, 2, 5, 8))
    assert [staircase.context for staircase in found.staircases] == list(contexts)
    for staircase in found.staircases:
        assert [point.rows for point in staircase.points] == [1, 2, 5, 8] and not found.stuck
        assert [point.every for point in staircase.points] == [engine.seconds(rows, rows) for rows in (1, 2, 5, 8)]
        assert all(point.repeats >= MIN_ROUNDS for point in staircase.points)


def test_a_text_that_has_to_grow_is_cut_back_before_it_is_another_ones() -> None:
    engine = Timed(sequences=1, max_rollback=7, cells=1000, position=1.0)
    (staircase,) = measured(engine, 100, seconds=200_000, rows=(1, 8)).staircases
    assert len(engine.steps) > 2 * drift(100)
    nearest, farthest = (engine.seconds(1, 1, context) for context in (100, 100 + drift(100)))
    assert nearest < staircase.single < farthest
    assert max(engine.behind) <= 100 + drift(100) < 100 + len(engine.steps)


def test_a_state_that_does_not_go_back_far_enough_is_stuck() -> None:
    assert measured(Timed(sequences=1, max_rollback=0), rows=(1, 2)) == Measurement((), stuck=True)


def test_a_single_row_is_always_measured() -> None:
    assert MeasurePlan(rows=(8, 4)).sizes == (1, 4, 8)
    assert [point.rows for point in measured(Timed(), rows=(4,)).staircases[0].points] == [1, 4]


@pytest.mark.parametrize("rows", [1, 2, 128])
def test_an_engine_for_the_measurement_has_the_logits_of_so_many_rows(rows: int) -> None:
    settings = engine_settings(rows)
    assert settings.sequences == 1 and settings.max_outputs == settings.max_rows == rows


def test_progress_names_each_context() -> None:
    engine, said = Timed(), list[str]()
    measure(engine, TOKENS, MeasurePlan((4, 9), (1, 2), 50), clock=engine.clock, progress=said.append)
    assert [sentence.split()[-2] for sentence in said] == ["4", "9"]

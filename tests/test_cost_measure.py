"""Measuring t(b) on toy engines with a clock that only their decodes advance."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from lacli.batch import Batch
from lacli.cost.measure import (
    LEAST_ROUNDS,
    SINGLES,
    WARMING,
    Measurement,
    MeasurePlan,
    drift,
    engine_settings,
    measure,
)
from tests.fakes.engine import FakeEngine

TOKENS = [1, 2, 3, 5, 8, 4, 1, 6]
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass
class Timed(FakeEngine):
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


def measured(engine: Timed, *contexts: int, seconds: float = 500.0, rows: tuple[int, ...] = SIZES) -> Measurement:
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
            assert point.spread == 0 and point.repeats >= LEAST_ROUNDS


def test_all_sizes_are_timed_equally_often_in_rounds_until_the_time_is_up() -> None:
    engine = Timed()
    staircase = measured(engine, seconds=500).staircases[0]
    counted = Counter(engine.steps)
    rounds = counted[3, 3]
    assert rounds > LEAST_ROUNDS
    assert counted[3, 1] == counted[12, 12] == counted[12, 1] == counted[16, 1] == rounds
    singles = [point.repeats for point in staircase.points][0]
    assert singles == SINGLES * rounds and all(point.repeats == rounds for point in staircase.points[1:])
    # One step of the survey and the untimed ones; of two rows one to see whether the cache can forget.
    assert counted[1, 1] == 1 + (WARMING + SINGLES) * rounds
    assert counted[2, 1] == 1 + rounds
    # Its larger sizes follow each other: a round is over before the next one begins.
    wide = [rows for rows, choices in engine.steps[1:] if choices == 1 and rows > 1]
    assert wide == list(SIZES[1:]) * rounds
    assert 500 - 2 * engine.seconds(16, 16) * len(SIZES) < engine.now <= 500


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


def test_reading_fewer_choices_never_costs_more() -> None:
    staircase = measured(Timed(choice=-0.01)).staircases[0]
    assert all(point.first == point.every for point in staircase.points)


def test_a_slow_engine_gets_fewer_large_sizes_and_a_note() -> None:
    engine = Timed(row=1, choice=0)
    found = measured(engine, seconds=260)
    sizes = [point.rows for point in found.staircases[0].points]
    assert sizes == [1, 2, 3, 4, 6, 8]
    assert engine.now <= 260
    (note,) = found.notes
    assert "6 of 8 sizes, up to 8 rows" in note and "--seconds 780" in note


def test_with_a_little_less_time_only_the_doubled_of_the_large_sizes_are_measured() -> None:
    rows = (1, 2, 3, 8, 12, 16, 20, 24, 28, 32, 48, 64)
    engine = Timed(row=0.125, choice=0)
    whole = measured(engine, seconds=2000, rows=rows).staircases[0]
    assert [point.rows for point in whole.points] == list(rows)
    (fewer,) = measured(Timed(row=0.125, choice=0), seconds=190, rows=rows).staircases
    assert [point.rows for point in fewer.points] == [1, 2, 3, 8, 12, 16, 32, 64]


def test_a_very_slow_engine_gets_the_smallest_sizes_three_times() -> None:
    engine = Timed(row=1, choice=0)
    (staircase,) = measured(engine, seconds=3).staircases
    assert [point.rows for point in staircase.points] == [1, 2]
    assert Counter(engine.steps)[2, 1] - 1 == staircase.points[1].repeats == LEAST_ROUNDS
    assert 4 not in dict(engine.steps)


def test_a_context_that_takes_too_long_to_decode_is_cut() -> None:
    engine = Timed(prefill=1, row=1, choice=0)
    found = measured(engine, 8, 200, seconds=600)
    short, long = found.staircases
    assert short.context == 8 and 16 <= long.context < 200
    assert any(f"contexts above {long.context} tokens" in note for note in found.notes)
    found = measured(Timed(prefill=1, row=1, choice=0), 64, 200, seconds=100)
    assert [staircase.context for staircase in found.staircases] == [64]
    assert any("contexts above 64 tokens" in note for note in found.notes)


def test_contexts_and_sizes_are_those_that_fit() -> None:
    found = measured(Timed(cells=40, batch_rows=6), 100, 8)
    assert [staircase.context for staircase in found.staircases] == [8, 34]
    assert [point.rows for point in found.staircases[0].points] == [1, 2, 3, 4, 6]
    assert found.notes == (
        "steps of 8 to 16 rows were left out: a batch takes 6 (-b)",
        "contexts were cut to 34 tokens: beside steps of 6 rows, 40 cells (-c) have room for no more",
    )
    found = measured(Timed(cells=24, batch_rows=1), 100)
    assert [(staircase.context, staircase.most_rows) for staircase in found.staircases] == [(23, 1)]
    assert found.notes == (
        "steps of 2 to 16 rows were left out: a batch takes 1 (-b)",
        "contexts were cut to 23 tokens: beside a row, 24 cells (-c) have room for no more",
    )
    # Two contexts that are cut to the same length are one.
    assert len(measured(Timed(cells=40), 100, 200).staircases) == 1


def test_a_step_larger_than_the_context_is_left_out_with_a_note() -> None:
    found = measured(Timed(cells=40, batch_rows=400), 4, rows=(1, 37))
    assert [point.rows for point in found.staircases[0].points] == [1]
    assert found.notes == ("steps of 37 rows were left out: a context of 40 cells (-c) has room for 36",)


def test_a_short_text_leaves_more_than_half_of_the_context_to_the_steps() -> None:
    found = measured(Timed(cells=40, batch_rows=400), 4, rows=(1, 36))
    assert [point.rows for point in found.staircases[0].points] == [1, 36] and not found.notes


def test_a_cache_that_cannot_forget_is_said_to_be_stuck() -> None:
    class Recurrent(Timed):
        def remove(self, sequence: int, start: int, end: int) -> bool:
            return not any(cell.position >= start for cell in self._cells)

    assert measured(Recurrent()) == Measurement((), stuck=True)


@pytest.mark.parametrize("contexts", [(8,), (8, 40), (40, 41)])
@pytest.mark.parametrize("cells", [49, 60, 400])
def test_a_state_that_goes_back_along_chains_is_measured_too(contexts: tuple[int, ...], cells: int) -> None:
    engine = Timed(sequences=1, back=7, cells=cells, batch_rows=16)
    found = measured(engine, *contexts, rows=(1, 2, 5, 8))
    assert [staircase.context for staircase in found.staircases] == list(contexts)
    for staircase in found.staircases:
        assert [point.rows for point in staircase.points] == [1, 2, 5, 8] and not found.stuck
        assert [point.every for point in staircase.points] == [engine.seconds(rows, rows) for rows in (1, 2, 5, 8)]
        assert all(point.repeats >= LEAST_ROUNDS for point in staircase.points)


def test_a_text_that_has_to_grow_is_cut_back_before_it_is_another_ones() -> None:
    engine = Timed(sequences=1, back=7, cells=1000, position=1.0)
    (staircase,) = measured(engine, 100, seconds=200_000, rows=(1, 8)).staircases
    assert len(engine.steps) > 2 * drift(100)
    nearest, farthest = (engine.seconds(1, 1, context) for context in (100, 100 + drift(100)))
    assert nearest < staircase.single < farthest
    assert max(engine.behind) <= 100 + drift(100) < 100 + len(engine.steps)


def test_a_state_that_does_not_go_back_far_enough_is_stuck() -> None:
    assert measured(Timed(sequences=1, back=0), rows=(1, 2)) == Measurement((), stuck=True)


def test_a_single_row_is_always_measured() -> None:
    assert MeasurePlan(rows=(8, 4)).sizes == (1, 4, 8)
    assert [point.rows for point in measured(Timed(), rows=(4,)).staircases[0].points] == [1, 4]


@pytest.mark.parametrize("rows", [1, 2, 128])
def test_an_engine_for_the_measurement_has_the_logits_of_so_many_rows(rows: int) -> None:
    settings = engine_settings(rows)
    assert settings.sequences == 1 and settings.most_outputs == settings.most_rows == rows


def test_progress_names_each_context() -> None:
    engine, said = Timed(), list[str]()
    measure(engine, TOKENS, MeasurePlan((4, 9), (1, 2), 50), clock=engine.clock, progress=said.append)
    assert [sentence.split()[-2] for sentence in said] == ["4", "9"]

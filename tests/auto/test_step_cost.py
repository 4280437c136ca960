"""What is read off measured step costs, by hand: between and beyond the sizes, break-even, ceiling, contexts."""

from __future__ import annotations

import pytest

from lacli.auto.measure import MeasurePlan
from lacli.auto.model_cost import measure_cost
from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.loading import STDLIB_7M

STAIRS = StepCost(64, (Point(1, 2.0, 2.0), Point(4, 3.2, 2.6), Point(8, 6.0, 4.0), Point(16, 10.0, 6.4)))
FREE = StepCost(64, (Point(1, 1.0, 1.0), Point(64, 1.05, 1.02), Point(128, 1.4, 1.3)))
SINGLE = StepCost(1, (Point(1, 2.0, 2.0),))


@pytest.mark.parametrize(
    ("rows", "outputs", "seconds"),
    [
        *((point.rows, None, point.every) for point in STAIRS.points),
        *((point.rows, 1, point.first) for point in STAIRS.points),
        # Straight lines between the sizes, and between one choice that is read and all.
        (2, None, 2.4),
        (6, None, 4.6),
        (12, 1, 5.2),
        (8, 7, 4.0 + 2.0 * 6 / 7),
        (4, 2, 2.6 + 0.6 / 3),
        # Beyond them the slope from 8 to 16 rows: half a second a row.
        (20, None, 12.0),
        (20, 1, 7.6),
    ],
)
def test_a_step_takes_what_was_measured_or_what_lies_between(rows: int, outputs: int | None, seconds: float) -> None:
    assert STAIRS.seconds(rows, outputs) == pytest.approx(seconds)
    assert STAIRS.relative(rows, outputs) == pytest.approx(seconds / 2)


def test_noise_at_the_end_makes_larger_steps_neither_much_dearer_nor_cheaper() -> None:
    close = StepCost(1, (Point(1, 1.0, 1.0), Point(8, 2.0, 2.0), Point(15, 9.0, 9.0), Point(16, 4.0, 4.0)))
    assert close.seconds(20) == pytest.approx(5.0)
    assert SINGLE.seconds(50) == 2.0
    assert StepCost(1, (Point(1, 2.0, 2.0), Point(8, 1.9, 1.9))).seconds(100) == pytest.approx(1.9)


def test_break_even_is_the_cost_of_the_largest_step_where_it_is_known() -> None:
    # The input, a window of 2 x 2 - 1 rows and 2 x 2 of candidates; the choices of 1 + 2 + 4 are read.
    small = DecodeSettings(mode="lookahead", window=2, ngram=3, guesses=2)
    assert STAIRS.break_even(small) == pytest.approx((4.0 + 2.0 * 6 / 7) / 2.0)
    assert STAIRS.break_even(DecodeSettings(mode="plain")) == SINGLE.break_even(DecodeSettings(mode="plain")) == 1.0
    for draft, needed in ((7, 3.0), (31, 9.0), (32, None)):
        found = STAIRS.break_even(DecodeSettings(mode="lookup", lookup_draft=draft))
        assert found == (needed and pytest.approx(needed))
    assert SINGLE.break_even(DecodeSettings(mode="lookup", lookup_draft=1)) is None


def test_rows_are_nearly_free_up_to_a_size_and_have_a_mean_cost() -> None:
    assert (FREE.nearly_free_rows, STAIRS.nearly_free_rows) == (64, 1)
    assert STAIRS.row == pytest.approx(4.0 / 15) and SINGLE.row == 0.0


def test_a_context_between_two_measured_ones_is_interpolated_at_the_sizes_that_both_have() -> None:
    long = StepCost(1064, (Point(1, 4.0, 4.0, 0.1, 3), Point(8, 9.0, 8.0, 0.2, 5), Point(99, 90.0, 80.0)))
    cost = Cost((STAIRS, long))
    assert cost.at(0) is cost.at(64) is STAIRS and cost.at(1064) is cost.at(9999) is long
    assert cost.at(314) == StepCost(314, (Point(1, 2.5, 2.5, 0.1, 1), Point(8, 6.75, 5.0, 0.2, 1)))


def test_copies_share_the_rows_below_the_input() -> None:
    (shared,) = Cost((STAIRS,)).among(3).staircases
    assert [point.rows for point in shared.points] == [1, 10, 22, 46]
    assert [point.every for point in shared.points] == [point.every for point in STAIRS.points]


def test_a_cost_is_rough_when_half_of_its_times_vary_much() -> None:
    steady, varying = Point(1, 1.0, 1.0, 0.05), Point(2, 1.0, 1.0, 0.6)
    assert not Cost((StepCost(1, (steady,)),)).rough
    assert Cost((StepCost(1, (steady, varying)), StepCost(2, (Point(1, 1.0, 1.0, 0.5),)))).rough
    assert not Cost(()).rough


def test_a_cost_is_rough_when_its_threads_waited_for_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.auto.step_cost.MIN_CORE_SHARE", 0.8)
    steady = (StepCost(1, (Point(1, 1.0, 1.0, 0.05),)),)
    assert [Cost(steady, core_share=share).rough for share in (0.5, 0.9)] == [True, False]


def test_a_measured_cost_says_which_part_of_the_time_its_threads_had_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.auto.model_cost.process_time", lambda: 0.0)
    settings = ModelSettings(threads=1, gpu_layers=0)
    with LlamaModel(STDLIB_7M, settings) as model:
        assert measure_cost(model, settings, MeasurePlan(contexts=(8,), rows=(1, 2), seconds=0.0)).core_share == 0

"""What a step costs here and now: the measured staircases, the prompt's hint, and the steps themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.auto import pace as module
from lacli.auto.pace import (
    JUMP,
    LEAST_PREFILL,
    PLAIN_STEPS,
    SMALL_BATCHES,
    TINY,
    UNKNOWN_ROW,
)
from lacli.staircase import Cost, Point, Staircase


class Pace(module.Pace):
    """Lets all that it learns count at once."""

    def reach(self, context: int) -> None:
        super().reach(context)
        self.settle()

    def saw(self, rows: int, seconds: float) -> float:
        believed = super().saw(rows, seconds)
        self._mended = True
        self.settle()
        return believed


@pytest.fixture(autouse=True, scope="module")
def going_back_costs_nothing() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RETURN_S", 0.0)
        yield


MOST = 16
PLAIN_S = 0.01


def staircase(costs: dict[int, float], context: int = 0) -> Staircase:
    return Staircase(context, tuple(Point(rows, cost * PLAIN_S, cost * PLAIN_S) for rows, cost in costs.items()))


UNEVEN = {1: 1.0, 2: 1.9, 3: 2.8, 4: 1.9, 8: 3.4, 16: 5.1}
MEASURED = Cost((staircase(UNEVEN),))

sizes = st.integers(2, MOST)
seen = st.lists(st.tuples(sizes, st.floats(0.2, 30)), max_size=30)
costs = st.one_of(
    st.none(),
    st.lists(st.floats(0.9, 20), min_size=MOST - 1, max_size=MOST - 1).map(
        lambda each: Cost((staircase({1: 1.0, **dict(enumerate(each, start=2))}),))
    ),
)


def paced(cost: Cost | None = MEASURED, plain_steps: int = 1) -> Pace:
    pace = Pace(MOST, cost)
    for _ in range(plain_steps):
        pace.saw(1, PLAIN_S)
    return pace


def see(pace: Pace, rows: int, relative: float, times: int) -> None:
    for _ in range(times):
        pace.saw(rows, relative * PLAIN_S)


def test_before_any_step_it_is_the_measured_staircase() -> None:
    pace = Pace(MOST, MEASURED)
    for rows, cost in UNEVEN.items():
        assert pace.relative[rows] == pytest.approx(cost)
    assert pace.relative[12] == pytest.approx((3.4 + 5.1) / 2)


def test_it_is_the_staircase_of_the_text_s_length() -> None:
    cost = Cost((staircase({1: 1.0, 16: 4.0}), staircase({1: 1.0, 16: 8.0}, context=1000)))
    pace = Pace(MOST, cost)
    assert pace.relative[16] == pytest.approx(4)
    pace.reach(500)
    assert pace.relative[16] == pytest.approx(6)
    pace.reach(5000)
    assert pace.relative[16] == pytest.approx(8)
    pace.reach(0)
    assert pace.relative[16] == pytest.approx(4)


def test_where_nothing_is_known_each_row_costs_the_same() -> None:
    assert Pace(MOST).relative[1:] == pytest.approx([1 + UNKNOWN_ROW * more for more in range(MOST)])


@pytest.mark.parametrize("cost", [Cost(()), Cost((), chain_only="one row at a time")])
def test_a_cost_without_staircases_says_nothing(cost: Cost) -> None:
    assert Pace(MOST, cost).relative == Pace(MOST).relative


def test_a_prompt_says_what_rows_cost_once_two_plain_steps_are_known() -> None:
    pace = Pace(MOST)
    pace.prefilled(100, 100 * 0.1 * PLAIN_S)
    pace.saw(1, PLAIN_S)
    assert pace.relative[2] == pytest.approx(1 + UNKNOWN_ROW)
    pace.saw(1, PLAIN_S)
    assert pace.relative[2] == pytest.approx(1 + 0.1 * SMALL_BATCHES)


def test_a_short_prompt_says_nothing_and_neither_does_a_long_one_beside_a_measured_staircase() -> None:
    short, known = Pace(MOST), Pace(MOST, MEASURED)
    short.prefilled(LEAST_PREFILL - 1, 1.0)
    known.prefilled(100, 1.0)
    for pace, before in ((short, Pace(MOST)), (known, Pace(MOST, MEASURED))):
        see(pace, 1, 1.0, 3)
        assert pace.relative == before.relative


def test_a_plain_step_costs_the_median_of_the_latest_ones() -> None:
    pace = Pace(MOST)
    assert pace.plain == 0
    for seconds in (9.0, 1.0, 2.0):
        pace.saw(1, seconds)
    assert pace.plain == 2.0
    for _ in range(PLAIN_STEPS):
        pace.saw(1, 5.0)
    assert pace.plain == 5.0


def test_before_the_first_plain_step_no_other_is_compared_with_it() -> None:
    pace = Pace(MOST, MEASURED)
    pace.saw(4, 9.0)
    assert pace.relative == Pace(MOST, MEASURED).relative


@given(costs, sizes, st.floats(1.05, 12))
def test_a_size_that_is_seen_often_costs_what_it_does(cost: Cost | None, rows: int, relative: float) -> None:
    pace = paced(cost)
    see(pace, rows, relative, 200)
    assert pace.relative[rows] == pytest.approx(relative, rel=0.03)


def test_a_busy_moment_is_no_new_machine() -> None:
    pace = paced()
    see(pace, 8, 3.4, 30)
    see(pace, 8, 1000.0, 1)
    assert pace.relative[8] < 3.4 * (1 + (JUMP - 1) / 4)


def test_a_machine_that_became_slower_is_believed_in_a_dozen_steps() -> None:
    pace = paced()
    see(pace, 8, 3.4, 30)
    see(pace, 8, 6.8, 12)
    assert pace.relative[8] > 5


@given(costs, seen)
def test_no_step_is_cheaper_than_a_plain_one(cost: Cost | None, steps: list[tuple[int, float]]) -> None:
    """A measurement or a time that says so was disturbed."""
    pace = paced(cost)
    for rows, relative in steps:
        pace.saw(rows, relative * PLAIN_S)
    assert pace.relative[1] == 1
    assert min(pace.relative[1:]) > 1 - 1e-9


@given(sizes, sizes, st.floats(1.1, 10))
def test_a_size_not_seen_is_off_as_the_nearest_seen_one_and_less(rows: int, other: int, relative: float) -> None:
    pace, before = paced(None), Pace(MOST).relative
    see(pace, rows, relative, 50)
    share, farther = ((pace.relative[size] - 1) / (before[size] - 1) for size in (rows, other))
    assert min(share, 1) - 1e-9 <= farther <= max(share, 1) + 1e-9
    if other != rows and abs(share - 1) > 0.1:
        assert abs(farther - 1) < abs(share - 1)


@given(costs, seen)
def test_the_slope_is_the_least_that_a_further_row_costs_on_average(
    cost: Cost | None, steps: list[tuple[int, float]]
) -> None:
    pace = paced(cost)
    for rows, relative in steps:
        pace.saw(rows, relative * PLAIN_S)
    costs = pace.relative
    for rows in range(1, MOST):
        least = min((costs[more] - costs[rows]) / (more - rows) for more in range(rows + 1, MOST + 1))
        assert pace.slope[rows] == pytest.approx(least, abs=1e-9)
    assert pace.slope[MOST] == float("inf")


def test_steps_larger_than_any_that_may_be_are_ignored() -> None:
    pace = paced()
    pace.saw(MOST + 1, 1.0)
    assert pace.relative == Pace(MOST, MEASURED).relative


def test_times_of_nothing_break_nothing() -> None:
    pace = Pace(MOST)
    pace.prefilled(100, 0.0)
    pace.saw(1, 0.0)
    pace.saw(1, 0.0)
    pace.saw(4, 0.0)
    pace.saw(1, TINY)
    pace.saw(4, 0.0)
    assert pace.relative[4] >= 1


def test_what_going_back_to_one_row_costs_is_learned_and_counts_for_every_larger_step() -> None:
    pace = paced(plain_steps=9)
    for _ in range(40):
        pace.saw(4, 1.9 * PLAIN_S)
        assert pace.saw(1, 1.5 * PLAIN_S) == pytest.approx(0.5)
    pace.reach(0)
    pace._mended = True
    pace.settle()
    assert pace.relative[4] == pytest.approx(1.9 + 0.5, rel=0.02)
    assert pace.relative[8] == pytest.approx(3.4 + 0.5, rel=0.02)
    assert pace.plain == PLAIN_S


def test_where_nothing_is_known_of_going_back_it_costs_a_little() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RETURN_S", 0.1 * PLAIN_S)
        assert paced().relative[4] == pytest.approx(1.9 + 0.1)

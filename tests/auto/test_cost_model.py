"""What a step costs here and now: the measured t(b), the prefill's hint, and the steps themselves."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.auto import cost_model, plain_steps
from lacli.auto.cost_model import (
    CONTEXT_STEPS,
    FILL_ROWS,
    FILL_SAVING,
    MAX_ROW_COST,
    MAX_WEIGHT,
    MIN_COST,
    MIN_PREFILL,
    OUTLIER_PAUSE,
    SMALL_BATCH,
)
from lacli.auto.plain_steps import JUMP, PATIENCE, PLAIN_STEPS
from lacli.auto.step_cost import Cost, Point, StepCost

MOST = 16
PLAIN_S = 0.01
UNKNOWN = [1 + cost_model.UNKNOWN_ROW * more for more in range(MOST)]


class Model(cost_model.StepCostModel):
    """Lets all that it learns count at once."""

    def set_context(self, tokens: int) -> None:
        super().set_context(tokens)
        self.refresh()

    def record(self, rows: int, seconds: float) -> float:
        booked = super().record(rows, seconds)
        self._stale = True
        self.refresh()
        return booked


@pytest.fixture(autouse=True, scope="module")
def going_back_costs_nothing() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_steps, "RETURN_S", 0.0)
        yield


def step_cost(costs: dict[int, float], context: int = 0) -> StepCost:
    return StepCost(context, tuple(Point(rows, cost * PLAIN_S, cost * PLAIN_S) for rows, cost in costs.items()))


UNEVEN = {1: 1.0, 2: 1.9, 3: 2.8, 4: 1.9, 8: 3.4, 16: 5.1}
MEASURED = Cost((step_cost(UNEVEN),))

sizes = st.integers(2, MOST)
seen = st.lists(st.tuples(sizes, st.floats(0.2, 30)), max_size=30)
any_cost = st.one_of(
    st.none(),
    st.lists(st.floats(0.9, 20), min_size=MOST - 1, max_size=MOST - 1).map(
        lambda each: Cost((step_cost({1: 1.0, **dict(enumerate(each, start=2))}),))
    ),
)


def model_of(cost: Cost | None = MEASURED, plain_steps: int = 1) -> Model:
    model = Model(MOST, cost)
    see(model, 1, 1.0, plain_steps)
    return model


def see(model: Model, rows: int, relative: float, times: int) -> None:
    for _ in range(times):
        model.record(rows, relative * PLAIN_S)


def test_before_any_step_it_is_what_was_measured_at_the_texts_length() -> None:
    model = Model(MOST, MEASURED)
    assert [model.relative[rows] for rows in UNEVEN] == pytest.approx(list(UNEVEN.values()))
    assert model.relative[12] == pytest.approx((3.4 + 5.1) / 2)
    model = Model(MOST, Cost((step_cost({1: 1.0, 16: 4.0}), step_cost({1: 1.0, 16: 8.0}, context=1000))))
    for tokens, cost in ((0, 4), (500, 6), (5000, 8), (0, 4)):
        model.set_context(tokens)
        assert model.relative[16] == pytest.approx(cost)


SMALL_STEPS = Cost((step_cost({1: 1.0, 2: 2.06}),))
"""What was measured of a slow model in too short a time."""


@pytest.mark.parametrize("cost", [None, Cost(()), Cost((), chain_only="one row at a time"), SMALL_STEPS])
def test_where_nothing_is_known_of_larger_steps_each_row_costs_the_same(cost: Cost | None) -> None:
    assert Model(MOST, cost).relative[1:] == pytest.approx(UNKNOWN)


def test_a_long_prefill_says_what_rows_cost_once_two_plain_steps_are_known() -> None:
    model = Model(MOST)
    model.record_prefill(100, 100 * 0.1 * PLAIN_S)
    for expected in (UNKNOWN[1], 1 + 0.1 * SMALL_BATCH):
        model.record(1, PLAIN_S)
        assert model.relative[2] == pytest.approx(expected)
    short, measured = Model(MOST), Model(MOST, MEASURED)
    short.record_prefill(MIN_PREFILL - 1, 1.0)
    measured.record_prefill(100, 1.0)
    for each, before in ((short, Model(MOST)), (measured, Model(MOST, MEASURED))):
        see(each, 1, 1.0, 3)
        assert each.relative == before.relative


def test_a_plain_step_costs_the_median_of_the_latest_ones() -> None:
    model = Model(MOST)
    assert model.plain_s == 0
    for seconds in (9.0, 1.0, 2.0):
        model.record(1, seconds)
    assert model.plain_s == 2.0
    for _ in range(PLAIN_STEPS):
        model.record(1, 5.0)
    assert model.plain_s == 5.0


def test_a_plain_step_is_due_at_first_after_a_slow_first_one_and_now_and_then() -> None:
    model = Model(MOST, MEASURED)
    assert model.needs_plain_step
    model.record(1, 2 * PLAIN_S)
    assert model.needs_plain_step
    model.record(1, PLAIN_S)
    for pause in (PATIENCE, 2 * PATIENCE):
        for _ in range(pause):
            assert not model.needs_plain_step
            model.record(4, 1.9 * PLAIN_S)
        assert model.needs_plain_step
        model.record(1, PLAIN_S)


def test_a_step_before_the_first_plain_one_or_larger_than_any_may_be_says_nothing() -> None:
    for model in (Model(MOST, MEASURED), model_of()):
        assert model.record(4 if not model.plain_s else MOST + 1, 9.0) == 1.0
        assert model.relative == Model(MOST, MEASURED).relative


@given(any_cost, sizes, st.floats(1.05, 12))
@settings(max_examples=30)
def test_a_size_that_is_seen_often_costs_what_it_does(cost: Cost | None, rows: int, relative: float) -> None:
    model = model_of(cost)
    see(model, rows, relative, 200)
    assert model.relative[rows] == pytest.approx(min(relative, MAX_ROW_COST * rows), rel=0.03)


def test_a_busy_moment_is_no_new_machine_and_two_are_one() -> None:
    model = model_of()
    see(model, 8, 3.4, OUTLIER_PAUSE)
    assert model.record(8, 1000 * PLAIN_S) == pytest.approx(3.4 * JUMP)
    assert model.relative[8] < 3.4 * (1 + (JUMP - 1) / 4)
    assert model.record(8, 9 * PLAIN_S) == pytest.approx(9.0) and model.relative[8] == pytest.approx(9.0)


def test_a_machine_that_became_slower_is_believed_in_a_dozen_steps() -> None:
    model = model_of()
    see(model, 8, 3.4, 30)
    see(model, 8, 6.8, 12)
    assert model.relative[8] > 5


@given(any_cost, seen)
def test_no_step_is_cheaper_than_a_plain_one_and_slopes_are_the_least_a_further_row_costs(
    cost: Cost | None, steps: list[tuple[int, float]]
) -> None:
    """A measurement or a time that says otherwise was disturbed."""
    model = model_of(cost)
    for rows, relative in steps:
        model.record(rows, relative * PLAIN_S)
    costs = model.relative
    assert costs[1] == 1 and min(costs[1:]) > 1 - 1e-9
    for rows in range(1, MOST):
        least = min((costs[more] - costs[rows]) / (more - rows) for more in range(rows + 1, MOST + 1))
        assert model.slope[rows] == pytest.approx(least, abs=1e-9)
    assert model.slope[MOST] == float("inf")


@given(sizes, sizes, st.floats(1.1, 10))
@settings(max_examples=50)
def test_a_size_not_seen_is_off_as_the_nearest_seen_one_and_less(rows: int, other: int, relative: float) -> None:
    model, before = model_of(None), Model(MOST).relative
    see(model, rows, relative, 50)
    share, farther = ((model.relative[size] - 1) / (before[size] - 1) for size in (rows, other))
    assert min(share, 1) - 1e-9 <= farther <= max(share, 1) + 1e-9
    if other != rows and abs(share - 1) > 0.1:
        assert abs(farther - 1) < abs(share - 1)


def test_what_was_seen_behind_another_context_is_forgotten_where_it_was_not_seen_since() -> None:
    model = model_of()
    see(model, 8, 9.0, 40)
    model.set_context(1000)
    assert model.relative[8] == pytest.approx(9.0, rel=0.01)
    model.set_context(2000)
    assert model.relative[8] == pytest.approx(3.4)


def test_times_of_nothing_break_nothing() -> None:
    model = Model(MOST)
    model.record_prefill(100, 0.0)
    for rows, seconds in ((1, 0.0), (1, 0.0), (4, 0.0), (1, MIN_COST), (4, 0.0)):
        model.record(rows, seconds)
    assert model.relative[4] >= 1


def test_what_going_back_to_one_row_costs_is_learned_and_counts_for_every_larger_step() -> None:
    model = model_of(plain_steps=9)
    for _ in range(40):
        # Half a plain step of both is the change of rows.
        model.record(4, 2.4 * PLAIN_S)
        assert model.record(1, 1.5 * PLAIN_S) == pytest.approx(0.5)
    assert [model.relative[rows] for rows in (4, 8)] == pytest.approx([1.9 + 0.5, 3.4 + 0.5], rel=0.02)
    assert model.plain_s == PLAIN_S
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_steps, "RETURN_S", 0.1 * PLAIN_S)
        assert model_of().relative[4] == pytest.approx(1.9 + 0.1)


def test_behind_a_step_of_as_many_rows_the_next_one_is_cheaper_than_behind_others() -> None:
    model = model_of(plain_steps=9)
    for _ in range(40):
        for rows, cost in ((4, 1.9 + 0.5), (4, 1.9), (1, 1.5)):
            model.record(rows, cost * PLAIN_S)
    there, back = 0.5, 0.25
    behind_one, _ = model.next_costs()
    assert [behind_one[rows] for rows in (1, 4, 8)] == pytest.approx([1, 1.9 + 2 * back, 3.4 + 2 * back], rel=0.05)
    model.record(4, 2.4 * PLAIN_S)
    behind_four, slope = model.next_costs()
    assert [behind_four[rows] for rows in (1, 4, 8)] == pytest.approx([1, 1.9, 3.4 + there], rel=0.05)
    assert behind_four[3] > behind_four[4] and slope[3] < 0
    assert model_of().next_costs()[0] == model_of().relative


STEEP = {1: 1.0, 2: 1.2, 4: 1.5, 8: 3.0, 16: 4.0}
"""What steps cost in truth, in seconds of a plain one."""


@given(st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=4), any_cost)
def test_steps_of_several_texts_are_compared_with_those_of_a_row_for_each(
    numbers: list[int], cost: Cost | None
) -> None:
    model = Model(MOST, cost, fills=False)
    for texts in numbers:
        model.set_texts(texts)
        assert model.needs_plain_step or model.plain_s
        # A jump from what was expected is believed when it comes again.
        for _ in range(6 * MAX_WEIGHT):
            see(model, texts, STEEP[texts], 1)
            see(model, 16, STEEP[16], 2)
        assert model.relative[16] / model.relative[texts] == pytest.approx(STEEP[16] / STEEP[texts], rel=0.1)


def test_what_several_texts_showed_counts_for_one_as_soon_as_its_plain_step_is_timed() -> None:
    model = Model(MOST)
    model.set_texts(4)
    see(model, 4, STEEP[4], 2)
    see(model, 8, STEEP[8], 3)
    model.set_texts(1)
    assert model.needs_plain_step
    see(model, 1, 1.0, 1)
    assert [model.relative[4], model.relative[8]] == pytest.approx([STEEP[4], STEEP[8]])


@pytest.mark.parametrize("begins_alone", [True, False])
@pytest.mark.parametrize("numbers", [[1, 1, 2, 3], [2, 3]])
def test_the_noise_of_texts_that_come_and_go_does_not_add_up(numbers: list[int], begins_alone: bool) -> None:
    costs, found = [1 + 0.3 * more for more in range(MOST)], []
    for seed in range(5):
        random, model = Random(seed), Model(MOST, None)
        if begins_alone:
            see(model, 1, 1.0, 9)
        for _ in range(300):
            model.set_texts(count := random.choice(numbers))
            for _ in range(random.randint(1, 6)):
                rows = 8 if random.random() < 0.3 and model.plain_s else count
                model.record(rows, costs[rows - 1] * PLAIN_S * random.choice([0.7, 0.9, 1, 1, 1.2, 1.6]))
        found.append([model.plain_s / PLAIN_S, *(model.relative[rows] for rows in (2, 3, 8))])
    plain, two, three, eight = (median(each) for each in zip(*found, strict=True))
    # Never timed alone, a single row is only guessed at.
    assert 0.5 < plain < 2 and two < 2.2 and three < 2.7 and eight < 6.5


def test_a_size_that_looked_too_dear_is_looked_at_again_behind_short_texts_too() -> None:
    model = Model(MOST, None)
    see(model, 1, 1.0, 3)
    see(model, 8, 40.0, 3)
    for _ in range(2 * CONTEXT_STEPS):
        assert model.relative[8] > 14
        model.set_context(100)
    assert model.relative[8] == pytest.approx(UNKNOWN[7])


def test_the_first_plain_step_of_several_texts_says_what_it_costs_beside_one_of_a_single_text() -> None:
    model = model_of(None, plain_steps=2)
    see(model, 8, STEEP[8], 2)
    model.set_texts(4)
    see(model, 4, STEEP[4], 1)
    assert [model.relative[4], model.relative[8]] == pytest.approx([STEEP[4], STEEP[8]])
    assert model.plain_s == pytest.approx(PLAIN_S)


def test_a_prefill_says_what_rows_cost_to_several_texts_too() -> None:
    model = Model(MOST)
    model.set_texts(4)
    model.record_prefill(100, 100 * 0.1 * PLAIN_S)
    see(model, 4, 1 + 0.1 * SMALL_BATCH * 3, 2)
    assert model.relative[8] == pytest.approx(1 + 0.1 * SMALL_BATCH * 7)
    assert model.plain_s == pytest.approx(PLAIN_S)


@given(any_cost, seen, st.integers(1, MOST))
def test_steps_of_several_texts_are_filled_up_to_the_cheapest_measured_size_where_that_saves_enough(
    cost: Cost | None, steps: list[tuple[int, float]], texts: int
) -> None:
    models = [Model(MOST, cost, fills=fills) for fills in (True, False)]
    for model in models:
        # Behind plain steps of one text, what further ones cost is known apart from the fill.
        see(model, 1, 1.0, 2)
        for rows, relative in steps:
            see(model, rows, relative, 1)
        model.set_texts(texts)
    model, raw = models
    for rows in range(1, MOST + 1):
        targets = range(rows + 1, min(rows + FILL_ROWS, MOST) + 1) if cost and texts > 1 and rows > 1 else ()
        best = min(targets, key=lambda size: raw._without_return[size], default=rows)
        if raw._without_return[best] >= (1 - FILL_SAVING) * raw._without_return[rows]:
            best = rows
        assert raw.filled[rows] == rows and model.filled[rows] == best
        assert model._without_return[rows] == raw._without_return[rows], "a size keeps the time it has itself"
        back = model._plain.return_cost * model._base if best > texts else 0.0
        assert model.relative[rows] == pytest.approx(raw._without_return[best] + back)


def test_a_size_that_looks_cheap_between_its_neighbours_is_no_size_to_fill_up_to() -> None:
    model = Model(MOST, Cost((step_cost({1: 1.0, 3: 2.7, 5: 1.2, 16: 6.0}),)))
    model.set_texts(3)
    assert model.relative[4] < 0.9 * 2.7 and model.filled[3] == 5
    model = Model(MOST, Cost((step_cost({1: 1.0, 3: 2.7, 7: 1.2, 16: 6.0}),)))
    model.set_texts(3)
    assert model._without_return[6] < 0.9 * 2.7 and model.filled[3] == 3


def test_the_steps_that_three_texts_share_with_a_fourth_row_are_their_plain_ones() -> None:
    model = Model(MOST, MEASURED)
    model.set_texts(3)
    model.set_texts(model.filled[3])
    see(model, 4, 1.9, 3)
    assert not model.needs_plain_step and model.filled[3] == 4
    assert model.relative[3] == model.relative[4] == pytest.approx(1.9)
    assert model.plain_s == pytest.approx(PLAIN_S)

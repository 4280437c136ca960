"""Step costs: measured, between and beyond the measured sizes, and corrected by the steps themselves."""

from __future__ import annotations

import pytest

from lacli.auto.step_cost import FIRST_ROWS, MEMORY, PATIENCE, UNKNOWN_ROW, Cost, MeasurePlan, StepCost, StepCostModel

STAIRS = StepCost(64, {1: 2.0, 4: 3.2, 8: 6.0, 16: 10.0})


@pytest.mark.parametrize(
    # The measured sizes, straight lines between them, and after them the slope from 8 to 16 rows.
    ("rows", "seconds"),
    [*STAIRS.measured.items(), (2, 2.4), (6, 4.6), (12, 8.0), (20, 12.0)],
)
def test_a_step_takes_what_was_measured_or_what_lies_between(rows: int, seconds: float) -> None:
    assert STAIRS.seconds(rows) == pytest.approx(seconds)
    assert STAIRS.relative(rows) == pytest.approx(seconds / 2)


def test_noise_at_the_end_makes_larger_steps_neither_much_dearer_nor_cheaper() -> None:
    assert StepCost(1, {1: 1.0, 8: 2.0, 15: 9.0, 16: 4.0}).seconds(20) == pytest.approx(5.0)
    assert StepCost(1, {1: 2.0}).seconds(50) == 2.0
    assert StepCost(1, {1: 2.0, 8: 1.9}).seconds(100) == pytest.approx(1.9)


def test_a_context_between_two_measured_ones_is_interpolated_at_the_sizes_that_both_have() -> None:
    long = StepCost(1064, {1: 4.0, 8: 9.0, 99: 90.0})
    cost = Cost((STAIRS, long))
    assert cost.at(0) is cost.at(64) is STAIRS and cost.at(9999) is long
    assert cost.at(314) == StepCost(314, {1: 2.5, 8: 6.75}) and cost.at(1064).measured == {1: 4.0, 8: 9.0}


def test_a_plan_covers_another_one_if_all_of_it_is_measured_as_long() -> None:
    plan = MeasurePlan((64, 99), (1, 2, 4), 20)
    assert plan.covers(plan) and plan.covers(MeasurePlan((64,), (1, 4), 5))
    more = MeasurePlan((8,), (1,), 5), MeasurePlan((64,), (3,), 5), MeasurePlan((64,), (1,), 21)
    assert not any(map(plan.covers, more))


PLAIN_S = 0.01


def measured(row: float, change: float = 0.0) -> Cost:
    """Return step costs, in plain steps: `row` for each further row, `change` for a change of rows."""
    seconds = {rows: PLAIN_S * (1 + row * (rows - 1)) for rows in (1, 2, 4, 8, 16)}
    return Cost((StepCost(0, seconds),), PLAIN_S * change)


def taught(model: StepCostModel, rows: int, cost: float, times: int = 1, plain_s: float = PLAIN_S) -> None:
    for _ in range(times):
        model.record(rows, cost * plain_s, is_plain=rows == 1)


def test_a_measured_cost_counts_until_the_steps_say_otherwise() -> None:
    model = StepCostModel(16, measured(0.1))
    assert model.relative[8] == pytest.approx(1.7) and model.slopes[1] == pytest.approx(0.1)
    taught(model, 1, 1.0, 3)
    taught(model, 8, 3.0)
    assert 1.7 < model.relative[8] < 3.0
    taught(model, 8, 3.0, 60)
    assert model.relative[8] == pytest.approx(3.0, rel=0.3) and model.relative[16] > 2.6


def test_if_nothing_is_known_the_first_steps_are_small_and_others_follow_the_nearest() -> None:
    model = StepCostModel(64)
    assert model.max_trial_rows == FIRST_ROWS and model.relative[3] == 1 + 2 * UNKNOWN_ROW
    taught(model, 1, 1.0, 2)
    taught(model, 3, 1.1)
    assert model.max_trial_rows == 6
    assert model.relative[3] == pytest.approx(1.08, abs=0.03) and model.relative[12] < 1.7


def test_a_cost_of_few_rows_is_learned_as_if_nothing_were_measured() -> None:
    few = Cost((StepCost(0, {1: PLAIN_S, 2: 1.9 * PLAIN_S}),))
    assert StepCostModel(16, few).relative[2] == 1 + UNKNOWN_ROW


@pytest.mark.parametrize("slow", [1, 3, 5])
def test_one_slow_step_changes_nothing(slow: int) -> None:
    model = StepCostModel(16, measured(0.1))
    for step in range(8):
        taught(model, 1, 1.0 if step != slow else 9.0)
    taught(model, 4, 1.3, 4)
    taught(model, 4, 13.0)
    assert model.single_s == PLAIN_S and model.relative[4] == pytest.approx(1.3)


def test_a_slow_step_is_booked_as_far_as_its_size_is_unknown() -> None:
    model = StepCostModel(16, measured(0.1))
    taught(model, 1, 1.0, 3)
    assert model.record(4, 13 * PLAIN_S, is_plain=False) == pytest.approx(13.0, abs=0.1)
    taught(model, 4, 1.3, 8)
    assert model.record(4, 13 * PLAIN_S, is_plain=False) < 2.5


def test_a_machine_that_became_quicker_is_noticed_by_the_next_plain_step() -> None:
    model = StepCostModel(16, measured(0.1))
    taught(model, 1, 3.0, 4)
    taught(model, 4, 1.3, 2)
    taught(model, 1, 1.0)
    assert model.single_s == PLAIN_S


def test_a_plain_step_is_due_at_first_and_after_many_with_drafts() -> None:
    model = StepCostModel(16, measured(0.1))
    assert model.needs_plain_step
    taught(model, 1, 1.0)
    assert not model.needs_plain_step
    taught(model, 4, 1.3, PATIENCE)
    assert model.needs_plain_step


def test_a_change_of_rows_is_added_unless_the_step_has_as_many_as_the_one_before() -> None:
    model = StepCostModel(16, measured(0.1, change=0.5))
    taught(model, 1, 1.0, 2)
    assert model.change == pytest.approx(0.5)
    assert model.costs_for(1)[0][1] == 1.0 and model.costs_for(1)[0][8] == pytest.approx(1.7 + 2 * 0.5)
    assert model.record(8, (1.7 + 0.5) * PLAIN_S, is_plain=False) == pytest.approx(2.2)
    costs, slopes = model.costs_for(1)
    assert costs[8] == pytest.approx(1.7, abs=0.01) and costs[9] == pytest.approx(1.8 + 0.5, abs=0.01)
    assert slopes[7] == pytest.approx((costs[8] - costs[7]) / 1)


def test_the_cost_of_a_change_is_learned_from_plain_steps_after_others() -> None:
    model = StepCostModel(16)
    taught(model, 1, 1.0, 2)
    for _ in range(8):
        taught(model, 4, 1.3 + 0.4)
        taught(model, 1, 1.4)
    assert model.change == pytest.approx(0.4) and model.relative[4] == pytest.approx(1.3, abs=0.1)


def test_a_size_that_looked_too_dear_is_forgotten_after_a_while() -> None:
    model = StepCostModel(16, measured(0.1))
    taught(model, 1, 1.0, 3)
    taught(model, 8, 3.3, 9)
    assert model.relative[8] >= 2.5
    taught(model, 1, 1.0, MEMORY + 1)
    taught(model, 1, 1.3, 9)
    assert model.relative[8] == pytest.approx(1.7)


def test_several_sequences_are_compared_by_their_own_plain_steps() -> None:
    model = StepCostModel(16, measured(0.1))
    for _ in range(3):
        model.record(4, 1.3 * PLAIN_S, is_plain=True)
    assert model.single_s == pytest.approx(PLAIN_S)
    assert model.costs_for(4)[0][8] == pytest.approx(1.7 / 1.3)


def test_a_step_shorter_than_a_change_of_rows_still_has_a_time() -> None:
    model = StepCostModel(16, Cost((StepCost(0, {1: 0.1, 8: 0.2}),), change_s=1.0))
    assert all(model.record(rows, seconds, is_plain=True) > 0 for rows, seconds in ((2, 0.1), (1, 0.05), (2, 0.1)))

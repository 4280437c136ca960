"""What steps cost: as measured before, and corrected by the steps themselves."""

from __future__ import annotations

import pytest

from lacli.auto.cost_model import FIRST_ROWS, MEMORY, PATIENCE, UNKNOWN_ROW, StepCostModel
from lacli.auto.step_cost import Cost, Point, StepCost

PLAIN_S = 0.01


def measured(row: float, change: float = 0.0) -> Cost:
    """A machine whose further rows cost `row` plain steps, and a change of rows `change`."""
    seconds = [(rows, PLAIN_S * (1 + row * (rows - 1))) for rows in (1, 2, 4, 8, 16)]
    return Cost((StepCost(0, tuple(Point(rows, s, s, changed=s + PLAIN_S * change) for rows, s in seconds)),))


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


def test_where_nothing_is_known_the_first_steps_are_small_and_others_follow_the_nearest() -> None:
    model = StepCostModel(64)
    assert model.max_trial_rows == FIRST_ROWS and model.relative[3] == 1 + 2 * UNKNOWN_ROW
    taught(model, 1, 1.0, 2)
    taught(model, 3, 1.1)
    assert model.max_trial_rows == 6
    assert model.relative[3] == pytest.approx(1.08, abs=0.03) and model.relative[12] < 1.7


def test_a_cost_of_few_rows_is_learned_as_if_nothing_were_measured() -> None:
    few = Cost((StepCost(0, (Point(1, PLAIN_S, PLAIN_S), Point(2, 1.9 * PLAIN_S, 1.9 * PLAIN_S))),))
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
    assert model.next_step(1)[0][1] == 1.0 and model.next_step(1)[0][8] == pytest.approx(1.7 + 2 * 0.5)
    assert model.record(8, (1.7 + 0.5) * PLAIN_S, is_plain=False) == pytest.approx(2.2)
    costs, slopes = model.next_step(1)
    assert costs[8] == pytest.approx(1.7, abs=0.01) and costs[9] == pytest.approx(1.8 + 0.5, abs=0.01)
    assert slopes[7] == pytest.approx((costs[8] - costs[7]) / 1)


def test_what_a_change_costs_is_learned_from_plain_steps_behind_others() -> None:
    model = StepCostModel(16)
    taught(model, 1, 1.0, 2)
    for _ in range(8):
        taught(model, 4, 1.3 + 0.4)
        taught(model, 1, 1.4)
    assert model.change == pytest.approx(0.4) and model.relative[4] == pytest.approx(1.3, abs=0.1)


def test_a_size_that_looked_too_dear_is_forgotten_after_a_while() -> None:
    model = StepCostModel(16, measured(0.1))
    taught(model, 1, 1.0, 3)
    taught(model, 8, 6.0, 9)
    assert model.relative[8] > 3
    taught(model, 1, 1.0, MEMORY + 1)
    taught(model, 1, 1.3, 9)
    assert model.relative[8] == pytest.approx(1.7)


def test_several_sequences_are_compared_by_their_own_plain_steps() -> None:
    model = StepCostModel(16, measured(0.1))
    for _ in range(3):
        model.record(4, 1.3 * PLAIN_S, is_plain=True)
    assert model.single_s == pytest.approx(PLAIN_S)
    assert model.next_step(4)[0][8] == pytest.approx(1.7 / 1.3)

"""What fits into the time of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lacli.bench.plan import (
    FULL,
    LADDER,
    Plan,
    Speed,
    Wish,
    by_class,
    choose,
)
from lacli.bench.tasks import Task
from tests.bench_field import task

TASKS = [replace(task(f"{number}", kind=kind), limit=0) for kind in ("code", "edit", "story") for number in range(10)]
QUICK = (Speed(0.001, 0.001, 0.0001), Speed(0.002, 0.004, 0.0001))
SLOW = (Speed(0.2, 0.2, 0.05), Speed(4.0, 8.0, 0.05))
SIZE, CELLS = 50, 4096


def chosen(tasks: Sequence[Task], wish: Wish, speeds: Sequence[Speed], cells: int = CELLS) -> Plan:
    """The plan for prompts of SIZE tokens each."""
    return choose(tasks, wish, speeds, dict.fromkeys(tasks, SIZE), cells)


def seconds(plan: Plan, speeds: Sequence[Speed]) -> float:
    """What a plan takes at most, added up answer by answer."""
    answers = [(task, speed) for task in plan.tasks for speed in speeds]
    return plan.repetitions * sum(SIZE * speed.prompt_s + task.limit * speed.token_s for task, speed in answers)


def test_a_quick_machine_does_everything_that_is_wanted() -> None:
    plan = chosen(TASKS, Wish(seconds=180), QUICK)
    each, repetitions, limit = FULL
    assert {len(members) for members in by_class(plan.tasks).values()} == {each}
    assert (plan.repetitions, plan.limit) == (repetitions, limit)


@pytest.mark.parametrize("budget", [2.0, 5.0, 20.0, 100.0])
def test_a_plan_takes_no_longer_than_there_is_time_and_the_next_larger_one_would(budget: float) -> None:
    plan = chosen(TASKS, Wish(seconds=budget), QUICK)
    assert plan.seconds == pytest.approx(seconds(plan, QUICK))
    assert plan.seconds <= budget
    each = len(next(iter(by_class(plan.tasks).values())))
    step = LADDER.index((each, plan.repetitions, plan.limit))
    if step:
        assert chosen(TASKS, Wish(*LADDER[step - 1], seconds=budget), QUICK).seconds > budget


def test_a_slow_machine_drops_classes_last_and_at_least_one_prompt_stays() -> None:
    plan = chosen(TASKS, Wish(seconds=1), SLOW)
    assert len(plan.tasks) == 1 and plan.repetitions == 1
    assert plan.seconds > 1


def test_what_the_user_fixes_stays() -> None:
    plan = chosen(TASKS, Wish(each=3, repetitions=2, limit=200, seconds=1), QUICK)
    assert {task.limit for task in plan.tasks} == {200} and plan.repetitions == 2
    assert [len(members) for members in by_class(plan.tasks).values()] == [3, 3, 3]


def test_without_an_end_to_the_time_everything_is_done_with_each_tasks_own_limit() -> None:
    plan = chosen([*TASKS, replace(TASKS[0], limit=512)], Wish(), SLOW)
    assert sorted(task.limit for task in plan.tasks) == [FULL[2]] * len(TASKS) + [512]


def test_in_a_hurry_a_tasks_own_limit_is_cut_too() -> None:
    plan = chosen([replace(TASKS[0], limit=512)], Wish(seconds=180), QUICK)
    assert plan.tasks[0].limit == plan.limit < 512


def test_a_later_turn_reads_the_turns_before_it_again() -> None:
    two = replace(task("1", "2"), limit=0)
    plan = chosen([two], Wish(each=1, repetitions=1, limit=10), [Speed(0.0, 0.0, 1.0)])
    assert plan.seconds == 50 + (2 * 50 + 10)


def test_a_program_that_has_to_start_takes_its_start_for_every_answer() -> None:
    plan = chosen(TASKS[:3], Wish(each=3, repetitions=2, limit=10), [Speed(0.0, 0.0, 0.0, start_s=2.0)])
    assert plan.seconds == 3 * 2 * 2.0


def test_no_answer_is_planned_to_be_longer_than_the_context() -> None:
    plan = chosen([replace(TASKS[0], limit=10**9)], Wish(), QUICK, cells=64)
    assert plan.limit == 64 - SIZE


def test_classes_take_turns_so_that_an_interrupt_leaves_something_of_each() -> None:
    plan = chosen(TASKS, Wish(each=2, repetitions=1, limit=10), QUICK)
    assert [task.kind for task in plan.tasks] == ["code", "edit", "story"] * 2

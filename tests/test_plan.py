"""What fits into the time of a benchmark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lacli.bench.plan import FULL, LADDER, Pace, Wish, by_class, choose
from lacli.bench.tasks import Task
from tests.bench_field import task

TASKS = [replace(task(f"{number}", kind=kind), limit=0) for kind in ("code", "edit", "story") for number in range(10)]
QUICK, SLOW = Pace((0.001, 0.002), 0.0001), Pace((0.2, 4.0), 0.05)


def size(task: Task) -> int:
    return 50


def seconds(tasks: tuple[Task, ...], repetitions: int, pace: Pace) -> float:
    """What a plan takes at most, added up answer by answer."""
    total = 0.0
    for each in tasks:
        for point in pace.token_s:
            total += repetitions * (size(each) * pace.prompt_s + each.limit * point)
    return total


def test_a_quick_machine_does_everything_that_is_wanted() -> None:
    plan = choose(TASKS, Wish(seconds=180), QUICK, size)
    each, repetitions, limit = FULL
    assert {len(members) for members in by_class(plan.tasks).values()} == {each}
    assert (plan.repetitions, plan.limit) == (repetitions, limit)


@pytest.mark.parametrize("budget", [2.0, 5.0, 20.0, 100.0])
def test_a_plan_takes_no_longer_than_there_is_time_and_the_next_larger_one_would(budget: float) -> None:
    plan = choose(TASKS, Wish(seconds=budget), QUICK, size)
    assert plan.seconds == pytest.approx(seconds(plan.tasks, plan.repetitions, QUICK))
    assert plan.seconds <= budget
    each = len(next(iter(by_class(plan.tasks).values())))
    step = LADDER.index((each, plan.repetitions, plan.limit))
    if step:
        assert choose(TASKS, Wish(*LADDER[step - 1], seconds=budget), QUICK, size).seconds > budget


def test_a_slow_machine_drops_classes_last_and_at_least_one_prompt_stays() -> None:
    plan = choose(TASKS, Wish(seconds=1), SLOW, size)
    assert len(plan.tasks) == 1 and plan.repetitions == 1
    assert plan.seconds > 1


def test_what_the_user_fixes_stays() -> None:
    plan = choose(TASKS, Wish(each=3, repetitions=2, limit=200, seconds=1), QUICK, size)
    assert {task.limit for task in plan.tasks} == {200} and plan.repetitions == 2
    assert [len(members) for members in by_class(plan.tasks).values()] == [3, 3, 3]


def test_without_an_end_to_the_time_everything_is_done_with_each_tasks_own_limit() -> None:
    plan = choose([*TASKS, replace(TASKS[0], limit=512)], Wish(), SLOW, size)
    assert sorted(task.limit for task in plan.tasks) == [FULL[2]] * len(TASKS) + [512]


def test_in_a_hurry_a_tasks_own_limit_is_cut_too() -> None:
    plan = choose([replace(TASKS[0], limit=512)], Wish(seconds=180), QUICK, size)
    assert plan.tasks[0].limit == plan.limit < 512


def test_a_later_turn_reads_the_turns_before_it_again() -> None:
    two = replace(task("1", "2"), limit=0)
    plan = choose([two], Wish(each=1, repetitions=1, limit=10), Pace((0.0,), 1.0), size)
    assert plan.seconds == 50 + (2 * 50 + 10)

"""What fits into the time of a benchmark, the speed its warm-up shows, and what cannot win with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lacli.bench.plan import (
    FULL,
    LADDER,
    SHORT,
    WARM_UP_TOKENS,
    BenchPlan,
    BenchPrompts,
    Speed,
    Wish,
    by_class,
    choose,
    hopeless,
    planned,
    speed_of,
)
from lacli.bench.rounds import Contender, Exchange, Trial
from lacli.bench.tasks import Task
from lacli.settings import DecodeSettings
from lacli.terminal.screen import Screen
from tests.fakes.bench_field import LOOKAHEAD, LOOKUP, PLAIN, contender, task
from tests.fakes.clock import FakeClock

TASKS = [
    replace(task(f"{number}", kind=kind), max_tokens=0) for kind in ("code", "edit", "story") for number in range(10)
]
QUICK = (Speed(0.001, 0.001, 0.0001), Speed(0.002, 0.004, 0.0001))
SLOW = (Speed(0.2, 0.2, 0.05), Speed(4.0, 8.0, 0.05))
SIZE, CELLS = 50, 4096


def chosen(tasks: Sequence[Task], wish: Wish, speeds: Sequence[Speed], cells: int = CELLS) -> BenchPlan:
    """The plan for prompts of SIZE tokens each."""
    return choose(tasks, wish, speeds, dict.fromkeys(tasks, SIZE), cells)


def seconds(plan: BenchPlan, speeds: Sequence[Speed]) -> float:
    """What a plan takes at most, added up answer by answer."""
    answers = [(task, speed) for task in plan.tasks for speed in speeds]
    return plan.repetitions * sum(SIZE * speed.prompt_s + task.max_tokens * speed.token_s for task, speed in answers)


def test_a_quick_machine_does_everything_that_is_wanted() -> None:
    plan = chosen(TASKS, Wish(seconds=180), QUICK)
    each, repetitions, limit = FULL
    assert {len(members) for members in by_class(plan.tasks).values()} == {each}
    assert (plan.repetitions, plan.max_tokens) == (repetitions, limit)


@pytest.mark.parametrize("budget", [2.0, 5.0, 20.0, 100.0])
def test_a_plan_takes_no_longer_than_there_is_time_and_the_next_larger_one_would(budget: float) -> None:
    plan = chosen(TASKS, Wish(seconds=budget), QUICK)
    assert plan.seconds == pytest.approx(seconds(plan, QUICK))
    assert plan.seconds <= budget
    each = len(next(iter(by_class(plan.tasks).values())))
    step = LADDER.index((each, plan.repetitions, plan.max_tokens))
    if step:
        assert chosen(TASKS, Wish(*LADDER[step - 1], seconds=budget), QUICK).seconds > budget


def test_tasks_that_had_no_place_follow_class_by_class_unless_their_number_was_asked_for() -> None:
    plan = chosen(TASKS, Wish(seconds=5.0), QUICK)
    assert {*plan.tasks, *plan.further} == {replace(each, max_tokens=plan.max_tokens) for each in TASKS}
    assert len({each.kind for each in plan.further[:3]}) == 3
    assert not chosen(TASKS, Wish(each=1, seconds=5.0), QUICK).further and not chosen(TASKS, Wish(), QUICK).further


def test_a_slow_machine_drops_classes_last_and_at_least_one_prompt_stays() -> None:
    plan = chosen(TASKS, Wish(seconds=1), SLOW)
    assert len(plan.tasks) == 1 and plan.repetitions == 1
    assert plan.seconds > 1


def test_what_the_user_fixes_stays() -> None:
    plan = chosen(TASKS, Wish(each=3, repetitions=2, max_tokens=200, seconds=1), QUICK)
    assert {task.max_tokens for task in plan.tasks} == {200} and plan.repetitions == 2
    assert [len(members) for members in by_class(plan.tasks).values()] == [3, 3, 3]


def test_without_an_end_to_the_time_everything_is_done_with_each_tasks_own_limit() -> None:
    plan = chosen([*TASKS, replace(TASKS[0], max_tokens=512)], Wish(), SLOW)
    assert sorted(task.max_tokens for task in plan.tasks) == [FULL[2]] * len(TASKS) + [512]


def test_in_a_hurry_a_tasks_own_limit_is_cut_too() -> None:
    plan = chosen([replace(TASKS[0], max_tokens=512)], Wish(seconds=180), QUICK)
    assert plan.tasks[0].max_tokens == plan.max_tokens < 512


def test_a_later_turn_reads_the_turns_before_it_again() -> None:
    two = replace(task("1", "2"), max_tokens=0)
    plan = chosen([two], Wish(each=1, repetitions=1, max_tokens=10), [Speed(0.0, 0.0, 1.0)])
    assert plan.seconds == 50 + (2 * 50 + 10)


def test_a_program_that_has_to_start_takes_its_start_for_every_answer() -> None:
    plan = chosen(TASKS[:3], Wish(each=3, repetitions=2, max_tokens=10), [Speed(0.0, 0.0, 0.0, start_s=2.0)])
    assert plan.seconds == 3 * 2 * 2.0


def test_no_answer_is_planned_to_be_longer_than_the_context() -> None:
    plan = chosen([replace(TASKS[0], max_tokens=10**9)], Wish(), QUICK, cells=64)
    assert plan.max_tokens == 64 - SIZE


def test_classes_take_turns_so_that_an_interrupt_leaves_something_of_each() -> None:
    plan = chosen(TASKS, Wish(each=2, repetitions=1, max_tokens=10), QUICK)
    assert [task.kind for task in plan.tasks] == ["code", "edit", "story"] * 2


def exchange() -> Exchange:
    return Exchange(task("1 2 3 1 2 3"), 0, (1, 2, 3, 1, 2, 3), 100)


def test_a_slow_machine_is_asked_for_two_steps_and_the_first_is_not_timed(clock: FakeClock) -> None:
    costs = iter([60.0, 2.0])
    one, engine = contender(PLAIN, clock, cost=lambda rows, outputs: next(costs) if outputs else 0.5)
    seen = speed_of(one, exchange())
    assert (seen.token_s, seen.step_s) == (2.0, 2.0)
    assert seen.prompt_s == pytest.approx(0.5 / 6)
    assert engine.steps == 2


def test_a_quick_machine_shows_seconds_a_token_over_several_steps(clock: FakeClock) -> None:
    one, engine = contender(LOOKUP, clock, cost=lambda rows, outputs: 0.01)
    seen = speed_of(one, exchange())
    assert seen.token_s == pytest.approx(0.01 * (engine.steps - 2) / WARM_UP_TOKENS)
    assert seen.step_s == pytest.approx(0.01)


def test_a_programs_start_is_what_its_own_clock_does_not_count(clock: FakeClock) -> None:
    def answer(exchange: Exchange) -> Trial:
        clock.now += 3.0
        return Trial(None, None, 10, 5, None, None, 5, seconds=1.0, prompt_s=0.5, first_token_s=0.5)

    seen = speed_of(Contender("rival", None, 0, answer), exchange())
    assert (seen.start_s, seen.token_s, seen.step_s) == (1.5, 0.1, 0.2)


def test_who_loses_even_if_every_guess_comes_true_is_hopeless_and_the_dearest_comes_first(clock: FakeClock) -> None:
    settings = (PLAIN, LOOKUP, LOOKAHEAD, replace(LOOKAHEAD, window=0))
    ones = [contender(each, clock)[0] for each in settings]
    most = [each.max_step_tokens for each in settings]

    def speeds(share: float) -> list[Speed]:
        """Everyone's steps cost this share of what they could bring at best."""
        return [Speed(0.1, 0.1, 0.1), *(Speed(0.1, 0.1 * count * share, 0.1) for count in most[1:])]

    assert hopeless(ones, speeds(0.99)) == []
    assert hopeless(ones, speeds(1.01)) == sorted((1, 2, 3), key=lambda number: -most[number])


@pytest.mark.parametrize(
    ("wish", "left"),
    [
        (Wish(seconds=30), ["plain", "auto"]),
        (Wish(seconds=6), ["plain", "auto"]),
        (Wish(seconds=1000), ["plain", "lookup", "auto"]),
        (Wish(seconds=30, names_contenders=True), ["plain", "lookup", "auto"]),
        (Wish(seconds=30, max_tokens=16), ["plain", "lookup", "auto"]),
    ],
    ids=["short", "shortest", "long", "named", "fixed answers"],
)
def test_fixed_modes_are_left_out_where_answers_would_be_short_for_their_sake(
    wish: Wish, left: list[str], clock: FakeClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ones = [contender(each, clock)[0] for each in (PLAIN, LOOKUP, replace(PLAIN, mode="auto"))]
    monkeypatch.setattr("lacli.bench.plan._warm", lambda *given: (ones, [Speed(0.05, 0.05, 0.0)] * 3))
    prompts = BenchPrompts(dict.fromkeys(TASKS, SIZE), Exchange(TASKS[0], 0, (1,), 1))
    kept, plan = planned(ones, prompts, CELLS, TASKS, wish, Screen())
    assert [each.mode for each in kept] == left
    gain = "answers are longer" if plan.max_tokens >= SHORT else "there are more answers"
    assert (f"left out, so that {gain}: lookup" in capsys.readouterr().err) == (len(left) == 2)
    assert (plan.max_tokens >= SHORT) == (wish in (Wish(seconds=30), Wish(seconds=1000)))


def test_the_most_tokens_of_a_step_are_its_deepest_guesses_and_the_models_own() -> None:
    assert DecodeSettings(mode="plain").max_step_tokens == 1
    assert DecodeSettings(mode="lookup", lookup_draft=10).max_step_tokens == 11
    assert DecodeSettings(mode="jacobi", window=7).max_step_tokens == 8
    assert DecodeSettings(mode="lookahead", window=0, ngram=5).max_step_tokens == 5

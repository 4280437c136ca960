"""The rounds of a benchmark: turns, histories, clocks and counts, held against the engines' own counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lacli.bench.plan import BenchPlan
from lacli.bench.rounds import Contender, Exchange, Rounds, Trial
from lacli.bench.run import use_time_left
from lacli.errors import LacliError
from lacli.terminal.screen import Screen
from tests.fakes.bench_field import LOOKAHEAD, LOOKUP, PLAIN, asker, contender, played, task, tokens_of
from tests.fakes.clock import FakeClock

TASKS = (task("1 2 3 1 2", kind="code"), task("4 5 6 4 5 6 4", kind="edit"))


def test_counts_are_those_of_the_engine(clock: FakeClock) -> None:
    ones = [contender(settings, clock) for settings in (PLAIN, LOOKUP, LOOKAHEAD)]
    rounds = played(Rounds([one for one, _ in ones], TASKS, 2, asker()))
    for number, (_, engine) in enumerate(ones):
        trials = [trial for exchange in range(len(TASKS)) for trial in rounds.of(number, exchange)]
        assert len(trials) == 4
        assert sum(trial.step_count for trial in trials) == engine.steps
        assert sum(trial.tokens for trial in trials) == sum(len(trial.ids or ()) for trial in trials) == 4 * 20


def test_seconds_are_the_steps_without_the_prefill(clock: FakeClock) -> None:
    one, _ = contender(PLAIN, clock, cost=lambda rows, outputs: 0.5 if outputs else 7.0)
    rounds = played(Rounds([one], TASKS[:1], 1, asker()))
    (trial,) = rounds.of(0, 0)
    assert trial.seconds == pytest.approx(20 * 0.5)
    assert trial.prompt_s == pytest.approx(7.0)
    assert trial.first_token_s == pytest.approx(7.5)


def test_contenders_take_turns_and_none_always_begins(clock: FakeClock) -> None:
    began: list[int] = []
    answers = [contender(PLAIN, clock, number=0)[0], contender(LOOKUP, clock)[0]]
    rounds = Rounds(answers, TASKS, 4, asker())
    before = {(number, exchange): 0 for number in (0, 1) for exchange in (0, 1)}
    for _ in rounds:
        now = {key: len(rounds.of(*key)) for key in before}
        began += [number for (number, exchange), count in now.items() if count != before[number, exchange]]
        before = now
    pairs = list(zip(began[::2], began[1::2], strict=True))
    assert set(pairs) == {(0, 1), (1, 0)}, "each answers once before anyone answers the next exchange"


def test_the_time_ends_the_rounds_once_all_have_answered_an_exchange(clock: FakeClock) -> None:
    """Two contenders take 20 s and more for an answer each, so 10 s are over before the second one's."""
    ones = [contender(settings, clock)[0] for settings in (PLAIN, LOOKUP)]
    for seconds, turns in ((10, 2), (None, 12)):
        rounds = Rounds(ones, TASKS, 3, asker())
        assert len([*rounds.within(seconds)]) == turns
        assert sum(map(len, rounds.trials.values())) == turns


@pytest.mark.parametrize(("left_s", "taken"), [(79.0, 1), (119.0, 2), (1e9, 3)])
def test_further_tasks_are_answered_while_time_is_left_as_if_they_had_been_asked_at_once(
    clock: FakeClock, left_s: float, taken: int
) -> None:
    """A step takes a second, and there is no mode auto whose oracle would take a part."""
    tasks = (*TASKS, task("7 8 7 8", kind="code"))
    ones = [contender(PLAIN, clock, number=number)[0] for number in range(2)]
    rounds = played(Rounds(ones, tasks[:1], 1, asker()))
    plan = BenchPlan(tasks[:1], 1, 40.0, further=tasks[1:])
    use_time_left(rounds, plan, left_s - 40.0, 40.0, Screen(quiet=True))
    whole = played(Rounds(ones, tasks[:taken], 1, asker()))
    assert rounds.exchanges == whole.exchanges and rounds.most == whole.most
    assert {key: [each.ids for each in found] for key, found in rounds.trials.items()} == {
        key: [each.ids for each in found] for key, found in whole.trials.items()
    }


def test_a_later_turn_comes_behind_plain_decodings_answer(clock: FakeClock) -> None:
    one, _ = contender(PLAIN, clock)
    two_turns = task("1 2 3", "7 8", max_tokens=5)
    rounds = played(Rounds([one], [two_turns], 1, asker()))
    first, second = rounds.exchanges
    answer = rounds.of(0, 0)[0].text or ""
    assert list(second.prompt) == tokens_of(two_turns, [answer]) == [1, 2, 3, *map(int, answer.split()), 7, 8]
    assert (first.turn, second.turn) == (0, 1)


def test_a_prompt_that_does_not_fit_is_left_out_and_the_others_go_on(clock: FakeClock) -> None:
    one, _ = contender(PLAIN, clock)
    long = task(" ".join("1" * 250))
    rounds = played(Rounds([one], [long, TASKS[0]], 1, asker()))
    assert rounds.left_out == [long]
    assert [exchange.task for exchange in rounds.exchanges] == [TASKS[0]]


def test_another_program_that_fails_is_given_up_and_the_others_go_on(clock: FakeClock) -> None:
    def fail(exchange: Exchange) -> Trial:
        raise LacliError("it crashed")

    plain = contender(PLAIN, clock)[0]
    rounds = Rounds([plain, Contender("rival", None, 0, fail)], TASKS, 2, asker())
    assert sum(1 for _ in rounds) == 8
    assert list(rounds.failures) == [1]
    assert [len(rounds.of(0, exchange)) for exchange in (0, 1)] == [2, 2]


def test_a_mode_of_ours_that_fails_is_an_error(clock: FakeClock) -> None:
    def fail(exchange: Exchange) -> Trial:
        raise LacliError("it crashed")

    broken = replace(contender(LOOKUP, clock)[0], answer=fail)
    with pytest.raises(LacliError, match="it crashed"):
        list(Rounds([broken], TASKS, 1, asker()))

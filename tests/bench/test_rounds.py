"""The rounds of a benchmark: turns, histories, clocks and counts, held against the engines' own counts."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lacli.errors import LacliError
from lacli.terminal.screen import Screen
from tests.fakes.bench_field import CELLS, LOOKAHEAD, LOOKUP, PLAIN, dear, field, free, played, task, tokens_of
from tests.fakes.clock import FakeClock

TASKS = (task("1 2 3 1 2", kind="code"), task("4 5 6 4 5 6 4", kind="edit"))
QUIET = Screen(quiet=True)


def test_points_take_turns_and_none_always_begins(clock: FakeClock) -> None:
    began: list[int] = []
    rounds = field(clock, free, PLAIN, LOOKUP, tasks=TASKS, repetitions=4)
    before = {(number, exchange): 0 for number in (0, 1) for exchange in (0, 1)}
    for _ in rounds:
        now = {key: len(rounds.of(*key)) for key in before}
        began += [number for (number, exchange), count in now.items() if count != before[number, exchange]]
        before = now
    pairs = list(zip(began[::2], began[1::2], strict=True))
    assert set(pairs) == {(0, 1), (1, 0)}, "each answers once before any answers the next exchange"


@settings(max_examples=30)
@example(0.05, 0.72, 1)  # a prompt of 10 s comes up 1 s before the end
@given(st.floats(1e-3, 0.05), st.floats(0.2, 2.0), st.integers(1, 3))
def test_the_time_is_kept_however_fast_prompts_are_read_and_steps_are_made(
    prompt_token_s: float, step_s: float, points: int
) -> None:
    """Prompts of 200 tokens take up to 10 s to read and answers of 20 up to 40 s, of the 60 s that there are."""
    clock, tasks = FakeClock(), [task(" ".join(["1 2 3"] * repeats)) for repeats in (1, 66, 20, 66, 5)]
    with pytest.MonkeyPatch.context() as patched:
        clock.install(patched)
        rounds = field(
            clock,
            lambda rows, outputs: step_s if outputs else rows * prompt_token_s,
            *(PLAIN, LOOKUP, LOOKAHEAD)[:points],
            tasks=tasks,
            repetitions=None,
            deadline=clock.now + 60.0,
        )
        rounds.warm_up(QUIET, leave_out=False)
        played(rounds)
        longest_s = 200 * prompt_token_s + step_s
        assert rounds.deadline - longest_s <= clock.now <= rounds.deadline + 6.0
    for number in range(points):
        found = [trial for exchange in range(len(rounds.exchanges)) for trial in rounds.of(number, exchange)]
        assert all(len(trial.ids) == 20 for trial in found) or len(found) == 1, "no cut answer beside whole ones"


def test_what_was_decoded_until_the_end_counts_where_no_answer_was_finished(clock: FakeClock) -> None:
    for left, counts in ((-5.0, (1, 0)), (10.0, (10, 0)), (25.0, (20, 5))):
        rounds = field(clock, free, PLAIN, LOOKAHEAD, deadline=clock.now + left)
        played(rounds)
        steps = [sum(len(trial.steps) for trial in rounds.of(number, 0)) for number in (0, 1)]
        assert tuple(steps) == pytest.approx(counts, abs=2), left
        assert len(rounds.trials) == sum(map(bool, counts))


def test_settings_whose_steps_are_too_dear_are_left_out_where_nothing_was_named(
    clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    for leave_out, left in ((True, ["plain", "lookup"]), (False, ["plain", "lookup", "lookahead W=3 N=3 G=2"])):
        rounds = field(clock, dear, PLAIN, LOOKUP, LOOKAHEAD)
        rounds.warm_up(Screen(), leave_out=leave_out)
        assert [each.label for each in rounds.points] == left and not rounds.trials
        assert ("a step takes 6 plain ones, more than it can bring tokens" in capsys.readouterr().err) == leave_out


def test_a_later_turn_comes_behind_plain_decodings_answer_and_what_does_not_fit_is_left_out(clock: FakeClock) -> None:
    two_turns, long = task("1 2 3", "7 8", max_tokens=5), task("1 " * CELLS)
    rounds = played(field(clock, free, PLAIN, tasks=[two_turns, long], repetitions=1))
    first, second = rounds.exchanges
    answer = rounds.of(0, 0)[0].text
    assert list(second.prompt) == tokens_of(two_turns, [answer]) == [1, 2, 3, *map(int, answer.split()), 7, 8]
    assert (first.turn, second.turn, rounds.left_out) == (0, 1, [long])
    with pytest.raises(LacliError, match="no prompt fits"):
        field(clock, free, PLAIN, tasks=[long]).warm_up(QUIET, leave_out=False)

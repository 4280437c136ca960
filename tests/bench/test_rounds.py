"""The rounds of a benchmark: turns, histories, clocks and counts, held against the engines' own counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lacli.bench.rounds import Rounds
from lacli.bench.run import WARM_UP_TOKENS
from lacli.terminal.screen import Screen
from tests.fakes.bench_field import LOOKAHEAD, LOOKUP, PLAIN, asker, contender, dear, played, task, tokens_of
from tests.fakes.clock import FakeClock

TASKS = (task("1 2 3 1 2", kind="code"), task("4 5 6 4 5 6 4", kind="edit"))


def test_contenders_take_turns_and_none_always_begins(clock: FakeClock) -> None:
    began: list[int] = []
    answers = [contender(PLAIN, clock)[0], contender(LOOKUP, clock)[0]]
    rounds = Rounds(answers, TASKS, 4, asker())
    before = {(number, exchange): 0 for number in (0, 1) for exchange in (0, 1)}
    for _ in rounds:
        now = {key: len(rounds.of(*key)) for key in before}
        began += [number for (number, exchange), count in now.items() if count != before[number, exchange]]
        before = now
    pairs = list(zip(began[::2], began[1::2], strict=True))
    assert set(pairs) == {(0, 1), (1, 0)}, "each answers once before anyone answers the next exchange"


@settings(max_examples=30)
@example(0.05, 0.72, 1)  # a prompt of 10 s comes up 1 s before the end
@given(st.floats(1e-3, 0.05), st.floats(0.2, 2.0), st.integers(1, 3))
def test_the_time_is_kept_however_fast_prompts_are_read_and_steps_are_made(
    prompt_token_s: float, step_s: float, contenders: int
) -> None:
    """Prompts of 200 tokens take up to 10 s to read and answers of 20 up to 40 s, of the 60 s that there are."""
    clock, tasks = FakeClock(), [task(" ".join(["1 2 3"] * repeats)) for repeats in (1, 66, 20, 66, 5)]
    with pytest.MonkeyPatch.context() as patched:
        clock.install(patched)
        ones = [
            contender(each, clock, lambda rows, outputs: step_s if outputs else rows * prompt_token_s)[0]
            for each in (PLAIN, LOOKUP, LOOKAHEAD)[:contenders]
        ]
        end = clock.now + 60.0
        rounds = Rounds(ones, tasks, None, asker(), end)
        first = asker()(replace(tasks[0], max_tokens=WARM_UP_TOKENS), [])
        assert first
        rounds.warm_up(first, Screen(quiet=True), leave_out=False)
        played(rounds)
    longest_s = 200 * prompt_token_s + 20 * step_s
    assert end - longest_s <= clock.now <= end + 6.0
    assert all(len(trial.ids) == 20 for found in rounds.trials.values() for trial in found), "none is cut"


def test_settings_whose_steps_are_too_dear_are_left_out_where_nothing_was_named(
    clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    first = asker()(TASKS[0], [])
    assert first
    for leave_out, left in ((True, ["plain", "lookup"]), (False, ["plain", "lookup", "lookahead W=3 N=3 G=2"])):
        ones = [contender(each, clock, dear)[0] for each in (PLAIN, LOOKUP, LOOKAHEAD)]
        rounds = Rounds(ones, TASKS, 1, asker())
        rounds.warm_up(first, Screen(), leave_out=leave_out)
        assert [each.label for each in rounds.contenders] == left and not rounds.trials
        assert ("a step takes 6 plain ones, more than it can bring tokens" in capsys.readouterr().err) == leave_out


def test_a_later_turn_comes_behind_plain_decodings_answer(clock: FakeClock) -> None:
    one, _ = contender(PLAIN, clock)
    two_turns = task("1 2 3", "7 8", max_tokens=5)
    rounds = played(Rounds([one], [two_turns], 1, asker()))
    first, second = rounds.exchanges
    answer = rounds.of(0, 0)[0].text
    assert list(second.prompt) == tokens_of(two_turns, [answer]) == [1, 2, 3, *map(int, answer.split()), 7, 8]
    assert (first.turn, second.turn) == (0, 1)

"""The rounds of a benchmark: turns, histories, clocks and counts, compared with the contexts' own counts."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lacli.errors import LacliError
from tests.fakes.bench_field import CELLS, JACOBI, LOOKAHEAD, LOOKUP, PLAIN, field, free, played, task, tokens_of
from tests.fakes.clock import FakeClock

TASKS = (task("1 2 3 1 2", kind="code"), task("4 5 6 4 5 6 4", kind="edit"))


def test_points_take_turns_the_first_two_first_and_none_always_begins(clock: FakeClock) -> None:
    began: list[int] = []
    rounds = field(clock, free, PLAIN, LOOKUP, JACOBI, LOOKAHEAD, tasks=TASKS, repetitions=2)
    before = {(number, exchange): 0 for number in range(4) for exchange in (0, 1)}
    for _ in rounds:
        now = {key: len(rounds.of(*key)) for key in before}
        began += [number for (number, exchange), count in now.items() if count != before[number, exchange]]
        before = now
    there, back = [0, 1, 2, 3], [1, 0, 3, 2]
    assert began == [*there, *back, *back, *there], "each answers once before any answers the next exchange"


@pytest.mark.parametrize(
    ("step_s", "contenders", "shortest", "longest"),
    [(0.02, 4, 128, 128), (0.05, 4, 50, 127), (0.2, 2, 20, 100), (1.0, 2, 16, 16)],
)
def test_with_little_time_answers_get_shorter_before_contenders_are_left_out(
    clock: FakeClock, step_s: float, contenders: int, shortest: int, longest: int
) -> None:
    tasks, begin = [task(f"{number} 2 3 4 1 2 3 4", max_tokens=128) for number in range(6)], clock.now
    rounds = field(
        clock,
        lambda rows, outputs: step_s * (1 if outputs else rows / 10),
        *(PLAIN, LOOKUP, JACOBI, LOOKAHEAD),
        tasks=tasks,
        repetitions=None,
        deadline=begin + 60.0,
    )
    rounds.warm_up()
    assert clock.now - begin < 5 * step_s, "there is only one short answer"
    played(rounds)
    prompts = 4 if step_s < 1.0 else 1
    answers = [[rounds.of(number, exchange) for exchange in range(prompts)] for number in range(4)]
    assert [all(each) for each in answers] == [number < contenders for number in range(4)]
    trials = [trial for each in answers[:contenders] for repeated in each for trial in repeated]
    assert all(trial.is_whole and shortest <= len(trial.ids) <= longest for trial in trials)


@settings(max_examples=30)
@example(0.05, 0.72, 1)  # a prompt of 10 s is next 1 s before the end
@given(st.floats(1e-3, 0.05), st.floats(0.2, 2.0), st.integers(1, 3))
def test_the_time_is_kept_however_fast_prompts_are_read_and_steps_are_made(
    prompt_token_s: float, step_s: float, points: int
) -> None:
    """The rounds have 60 s. A prompt of 200 tokens takes up to 10 s, and an answer of 20 tokens up to 40 s."""
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
        rounds.warm_up()
        played(rounds)
        longest_s = 200 * prompt_token_s + step_s
        assert rounds.deadline - longest_s <= clock.now <= rounds.deadline + 6.0
    for number in range(points):
        found = [trial for exchange in range(len(rounds.exchanges)) for trial in rounds.of(number, exchange)]
        assert all(trial.is_whole for trial in found) or len(found) == 1, "only a single answer may be cut"


def test_tokens_decoded_until_the_end_count_if_no_answer_was_finished(clock: FakeClock) -> None:
    for left, counts in ((-5.0, (1, 0)), (10.0, (10, 0)), (25.0, (20, 5))):
        rounds = field(clock, free, PLAIN, LOOKAHEAD, deadline=clock.now + left)
        played(rounds)
        steps = [sum(len(trial.steps) for trial in rounds.of(number, 0)) for number in (0, 1)]
        assert tuple(steps) == pytest.approx(counts, abs=2), left
        assert len(rounds.trials) == sum(map(bool, counts))


def test_a_later_turn_follows_plain_decodings_answer_and_is_left_out_if_it_does_not_fit(clock: FakeClock) -> None:
    two_turns, long = task("1 2 3", "7 8", max_tokens=5), task("1 " * CELLS)
    rounds = played(field(clock, free, PLAIN, tasks=[two_turns, long], repetitions=1))
    first, second = rounds.exchanges
    answer = rounds.of(0, 0)[0].text
    assert list(second.prompt) == tokens_of(two_turns, [answer]) == [1, 2, 3, *map(int, answer.split()), 7, 8]
    assert (first.turn, second.turn, rounds.left_out) == (0, 1, [long])
    with pytest.raises(LacliError, match="no prompt fits"):
        field(clock, free, PLAIN, tasks=[long]).warm_up()

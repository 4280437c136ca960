"""An answer beside plain steps of the same conditions: one account, or words why there is none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.session.comparison import (
    MIN_STEPS,
    Comparison,
    NotCompared,
    account,
    assess,
    busy,
    compare,
    verdict,
)
from lacli.stats import MIN_CORE_SHARE, RunStatistics, Step
from lacli.tree import Origin


@pytest.fixture(autouse=True)
def short_answers_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the answers of the tests here have a few steps."""
    monkeypatch.setattr("lacli.session.comparison.MIN_TOKENS", 1)
    monkeypatch.setattr("lacli.llamacpp.devices.logical_cores", lambda: 8)


PLAIN_S = 0.010


def step(rows: int, accepted: int = 0, seconds: float = PLAIN_S, mode_s: float = 0.0) -> Step:
    origins = (*[Origin.SUFFIX] * accepted, Origin.MODEL)
    guesses = (Origin.SUFFIX,) * (rows - 1)
    decode_s = seconds - mode_s
    return Step(
        tuple(range(accepted + 1)), origins, rows, rows - 1, decode_s, 0, 0, mode_s, guesses=guesses, mode_s=mode_s
    )


def run_of(*steps: Step, plain_rows: int = 1) -> RunStatistics:
    run = RunStatistics(plain_rows=plain_rows)
    for each in steps:
        run.add(each)
    return run


def compared(*steps: Step, timed: Sequence[float] = ()) -> Comparison:
    found = compare(run_of(*steps), lambda: timed)
    assert isinstance(found, Comparison), found
    return found


def why_not(*steps: Step, timed: Sequence[float] = ()) -> NotCompared:
    found = compare(run_of(*steps), lambda: timed)
    assert isinstance(found, NotCompared), found
    return found


def test_more_threads_than_cores_are_not_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(*[step(1)] * 9)
    run.threads, run.core_s, run.core_wanted_s = 4, 1.0, 4.0
    assert verdict(busy(run) or pytest.fail("nothing is said"), "auto") == "the machine was busy: try -t 1"
    run.gives_way = True
    assert (
        verdict(busy(run) or pytest.fail("nothing is said"), "auto")
        == "the machine was busy: slower than on a calm one"
    )
    monkeypatch.setattr("lacli.llamacpp.devices.logical_cores", lambda: 2)
    told = verdict(busy(run) or pytest.fail("nothing is said"), "auto")
    assert told == "-t 4 is more than the 2 cores here: leave it out"


def test_a_short_answer_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(*[step(1)] * 9)
    monkeypatch.setattr("lacli.session.comparison.MIN_TOKENS", 10)
    assert verdict(assess(run, "auto") or pytest.fail("nothing is said"), "auto") == "too short to compare"
    assert assess(held_up(0.1, 4), "auto") == busy(held_up(0.1, 4)), "that is known of short answers too"
    monkeypatch.setattr("lacli.session.comparison.MIN_TOKENS", 9)
    assert assess(run, "auto") == compare(run)


def test_guesses_cost_what_their_steps_took_beyond_plain_ones_and_save_the_plain_steps_they_replace() -> None:
    found = compared(*[step(1)] * 3, step(4, accepted=3, seconds=0.015), step(3, seconds=0.014), step(1))
    assert (found.extra_s, found.saved_s) == pytest.approx((0.009, 0.030))
    assert (found.tokens, found.plain_total_s, found.gained_s) == pytest.approx((9, 0.090, 0.021))
    assert found.ratio == pytest.approx(0.090 / 0.069) and found.is_own


def test_the_step_back_to_one_row_is_paid_by_the_guesses_before_it() -> None:
    steps = [*[step(1)] * 3, step(4, accepted=3, seconds=0.015)]
    assert compared(*steps, step(1, seconds=0.014)).extra_s == pytest.approx(0.009)
    assert compared(*steps, step(1), step(1, seconds=0.014)).extra_s == pytest.approx(0.005)


def test_looking_for_guesses_in_plain_steps_is_a_loss() -> None:
    found = compared(*[step(1, seconds=0.011, mode_s=0.001)] * 20)
    assert found.plain_s == pytest.approx(PLAIN_S)
    assert found.gained_s == pytest.approx(-0.020)
    assert found.ratio == pytest.approx(10 / 11)


def test_an_answer_of_plain_steps_is_no_slower_or_faster_way_to_decode_but_one_without_guesses() -> None:
    for mode_s in (0.0, 0.009):
        found = compared(*[step(1, seconds=0.011 + mode_s, mode_s=mode_s)] * 40)
        assert verdict(found, "auto") == "auto: nothing was guessed"
        looking = f"looking for guesses took {40e3 * mode_s:.2f} ms, and none was expected to pay"
        assert account(found, "auto")[0] == ("gain", looking)
    assert "nothing was guessed" not in verdict(compared(*[step(1)] * 40, step(4)), "auto")


def test_a_plain_answer_in_which_single_steps_are_held_up_is_as_fast_as_plain() -> None:
    found = compared(*[step(1)] * 20, *[step(1, seconds=3.0)] * 3, *[step(1)] * 20)
    assert found.ratio == 1
    assert account(found, "auto")[-1] == ("", "(without 8970.0 ms that held up plain steps in the answer)")


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5), st.floats(0.010, 0.030), st.floats(0, 0.001)), max_size=20)
)
def test_the_ratio_agrees_with_the_account_and_with_the_answers_time(
    made: list[tuple[int, int, float, float]],
) -> None:
    steps = [
        step(rows, min(accepted, rows - 1), seconds if rows > 1 else PLAIN_S + mode_s, mode_s)
        for rows, accepted, seconds, mode_s in made
    ]
    run = run_of(*[step(1)] * 4, *steps)
    found = compare(run)
    assert isinstance(found, Comparison)
    assert run.predicted_s == pytest.approx(found.plain_total_s - found.gained_s)
    assert found.ratio == pytest.approx(found.plain_total_s / run.predicted_s)


def test_strict_answers_have_plain_steps_of_two_rows() -> None:
    padded = step(1)._replace(rows=2)
    assert run_of(*[padded] * 4, plain_rows=2).times.plain == [PLAIN_S] * 4
    assert run_of(*[padded] * 4).times.plain == []


def test_few_steps_of_its_own_are_replaced_by_some_behind_the_answer_if_both_are_one_speed() -> None:
    guessed = [step(4, accepted=3, seconds=0.015)] * 3
    found = compared(step(1), *guessed, timed=[0.011] * 9)
    assert (found.plain_s, found.plain_steps, found.is_own) == (0.011, 9, False)
    assert why_not(step(1), *guessed, timed=[0.030] * 9).numbers == "plain steps took 10.00 to 30.00 ms"
    assert why_not(step(1), *guessed).numbers == f"1 plain step in the answer, {MIN_STEPS} are needed"
    own = compare(run_of(*[step(1)] * 3), lambda: pytest.fail("not asked"))
    assert isinstance(own, Comparison)


def test_an_answer_of_few_steps_is_too_short() -> None:
    assert why_not(step(1), step(4), timed=[PLAIN_S] * 9).why == "too short to compare"


UNEVEN, HELD_UP = "its steps were too uneven to compare", "another program got in the way"


@pytest.mark.parametrize(
    ("steps", "words", "why"),
    [
        ([step(1, seconds=each / 1e3) for each in (10, 20, 10, 30, 15)], "plain steps took 10.00 to 20.00 ms", UNEVEN),
        ([step(1, seconds=0)] * 4, "plain steps took 0.00 to 0.00 ms", UNEVEN),
        ([*[step(1)] * 4, step(4, seconds=0.2)], "a step of 4 rows took as long as 20 plain ones", HELD_UP),
        ([*[step(1)] * 4, step(4, seconds=0.0089)], "steps of several rows took less time than plain ones", HELD_UP),
    ],
)
def test_times_that_contradict_each_other_are_told_and_not_compared(steps: list[Step], words: str, why: str) -> None:
    found = why_not(*steps)
    assert (found.why, found.numbers) == (why, words)
    assert verdict(found, "auto") == f"{why}: {found.todo}" and verdict(found, "auto", in_short=True) == why


RECORDED_PLAIN_MS = (0.45, 0.54, 0.73, 0.85)
RECORDED = """
3/3/1.0 7/6/2.0 1/1/0.9 5/3/1.3 1/1/0.8 4/3/1.1 1/1/0.9 5/5/1.6 17/17/4.2 11/1/3.6 1/1/1.2 4/3/1.1 1/1/0.8 4/1/1.3
4/2/1.0 1/1/0.6 4/2/1.3 1/1/0.7 4/4/1.3 1/1/0.8 4/3/1.2 1/1/0.6 4/2/6.8 1/1/1.2 6/1/2.2 1/1/1.2 5/4/2.4 1/1/1.1
6/6/3.4 4/4/3.1 5/5/3.4 10/10/4.8 16/16/7.1 33/33/14.0 52/36/20.9 1/1/2.0 8/2/3.4 7/1/4.0 1/1/1.7 8/8/4.3 1/1/1.9
8/4/4.1 1/1/1.5 8/8/4.0 8/2/4.0 8/8/3.9 8/6/4.2 8/1/4.1 1/1/1.6 8/4/3.4 8/2/3.1 1/1/1.3 8/2/3.4 8/2/3.5 1/1/1.3
8/8/3.4 8/8/3.4 8/2/3.4 1/1/1.3 8/1/3.2 1/1/1.1 8/1/3.2 8/2/3.3 8/2/3.3 1/1/1.3 8/2/3.4 1/1/1.2 5/1/2.8 1/1/1.3
"""
"""A mode auto answer of 1,900 tokens of the demo model, -t 1, beside four programs that computed for 40 of 640 ms each.

The medians of the quarters of its 1,629 plain steps, and rows/tokens/ms of those that are compared with them.
"""


def recorded() -> list[Step]:
    plain = [step(1, seconds=ms / 1e3) for ms in RECORDED_PLAIN_MS for _ in range(1629 // 4)]
    others = [each.split("/") for each in RECORDED.split()]
    return [*plain, *(step(int(rows), int(tokens) - 1, float(ms) / 1e3) for rows, tokens, ms in others)]


def test_a_long_answer_is_compared_though_one_step_was_held_up_and_not_where_many_were() -> None:
    steps = recorded()
    late = next(each for each in steps if (each.rows, each.seconds) == (4, 0.0068))
    in_time = [step(4, 1, seconds=0.0013) if each is late else each for each in steps]
    assert compared(*steps).ratio == pytest.approx(compared(*in_time).ratio, abs=0.01)
    # Of a fortieth of the answer that step alone is more than a tenth.
    assert why_not(*steps[::40], late).why == HELD_UP
    busy = why_not(*steps, *[late] * 20)
    assert (busy.why, busy.numbers) == (HELD_UP, "a step of 4 rows took as long as 11 plain ones")


def test_more_plain_steps_may_differ_more() -> None:
    uneven = [step(1, seconds=each / 1e3) for each in (10, 13, 16)]
    assert why_not(*uneven).why == UNEVEN
    assert compared(*uneven * 8).plain_s == 0.013


def test_no_other_mode_is_proposed_to_auto_and_plain_where_others_lose() -> None:
    lost = compared(*[step(4, accepted=1, seconds=0.040)] * 3, timed=[PLAIN_S] * 9)
    plain = ("plain", "6 steps of 10.00 ms (median of 9 behind it) take 60.0 ms")
    gain = ("gain", "guesses took 90.00 ms beyond plain steps and saved 30.00 ms: 60.00 ms lost")
    assert account(lost, "auto") == [gain, plain] and account(lost, "lookahead") == [plain]
    assert verdict(lost, "auto") == "auto: 0.5x plain here"
    assert verdict(lost, "lookahead") == "lookahead: 0.5x plain here, try --mode plain or a smaller -W"
    assert verdict(lost, "lookahead", in_short=True) == "lookahead: 0.5x plain here"
    assert verdict(lost, "lookup") == "lookup: 0.5x plain here, try --mode plain"
    won = compared(*[step(4, accepted=3, seconds=0.020)] * 3, timed=[PLAIN_S] * 9)
    assert verdict(won, "lookahead") == "lookahead: 2.0x plain here"


def held_up(share: float, threads: int, seconds: float = 1.0) -> RunStatistics:
    """An answer that would be compared, if its threads had not waited for a core."""
    run = run_of(*[step(1)] * 4)
    run.threads = threads
    for _ in range(round(seconds / PLAIN_S)):
        run.add_core_time(step(1), share * threads * PLAIN_S)
    return run


@pytest.mark.parametrize(
    ("share", "threads", "todo"),
    [
        (0.34, 2, "try -t 1"),
        (MIN_CORE_SHARE - 0.01, 8, "try -t 6"),
        (0.1, 4, "try -t 1"),
        (0.5, 1, "slower than on a calm one"),
        (MIN_CORE_SHARE, 2, ""),
        (1.2, 2, ""),
    ],
)
def test_threads_that_waited_for_a_core_are_more_than_the_machine_had_room_for(
    share: float, threads: int, todo: str
) -> None:
    run = held_up(share, threads)
    found = busy(run)
    assert (found.todo if found else "") == todo
    assert isinstance(assess(run, "auto"), Comparison) == (not todo)
    assert assess(run, "plain") == found and assess(run, "auto") == (found or compare(run))
    assert busy(held_up(share, threads, seconds=0.01)) is None, "ticks of the clock are too few"


def test_only_the_part_of_a_step_in_the_model_is_for_all_threads() -> None:
    run = RunStatistics(threads=4)
    run.add_core_time(step(1, seconds=0.010, mode_s=0.004), 0.028)
    assert run.core_share == pytest.approx(1)
    run.add_core_time(step(1, seconds=0.010, mode_s=0.004), 0.0)
    assert run.core_share == pytest.approx(0.5)
    assert RunStatistics().core_share == 1, "not known"

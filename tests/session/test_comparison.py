"""An answer beside plain steps of the same conditions: one account, or words why there is none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.session.comparison import MIN_STEPS, Comparison, as_told, compare
from lacli.stats import RunStatistics, Step
from lacli.tree import Origin

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


def why_not(*steps: Step, timed: Sequence[float] = ()) -> str:
    found = compare(run_of(*steps), lambda: timed)
    assert isinstance(found, str), found
    return found


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


def test_a_plain_answer_in_which_single_steps_are_held_up_is_as_fast_as_plain() -> None:
    found = compared(*[step(1)] * 20, *[step(1, seconds=3.0)] * 3, *[step(1)] * 20)
    assert found.ratio == 1
    assert as_told(found, "auto")[-1] == ("", "(without 8970.0 ms that held up plain steps in the answer)")


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
    assert why_not(step(1), *guessed, timed=[0.030] * 9) == (
        "not compared: plain steps took 10.00 to 30.00 ms, too unlike each other"
    )
    assert why_not(step(1), *guessed) == f"not compared: 1 plain step in this answer, {MIN_STEPS} are needed"
    own = compare(run_of(*[step(1)] * 3), lambda: pytest.fail("not asked"))
    assert isinstance(own, Comparison)


def test_an_answer_of_few_steps_is_too_short() -> None:
    assert "too short to compare: 2 steps" in why_not(step(1), step(4), timed=[PLAIN_S] * 9)


UNEVEN, BUSY = "too unlike each other", "as on a busy machine"


@pytest.mark.parametrize(
    ("steps", "words", "why"),
    [
        ([step(1, seconds=each / 1e3) for each in (10, 20, 10, 30, 15)], "plain steps took 10.00 to 20.00 ms", UNEVEN),
        ([step(1, seconds=0)] * 4, "plain steps took 0.00 to 0.00 ms", UNEVEN),
        ([*[step(1)] * 4, step(4, seconds=0.2)], "a step of 4 rows took as long as 20 plain ones", BUSY),
        ([*[step(1)] * 4, step(4, seconds=0.0089)], "steps of several rows took less time than plain ones", BUSY),
    ],
)
def test_times_that_contradict_each_other_are_told_and_not_compared(steps: list[Step], words: str, why: str) -> None:
    assert why_not(*steps) == f"not compared: {words}, {why}"


def test_more_plain_steps_may_differ_more() -> None:
    uneven = [step(1, seconds=each / 1e3) for each in (10, 13, 16)]
    assert "not compared" in why_not(*uneven)
    assert compared(*uneven * 8).plain_s == 0.013


def test_no_other_mode_is_proposed_to_auto_and_plain_where_others_lose() -> None:
    lost = compared(*[step(4, accepted=1, seconds=0.040)] * 3, timed=[PLAIN_S] * 9)
    plain = ("plain", "6 steps of 10.00 ms (median of 9 behind it) take 60.0 ms:")
    gain = [("gain", "guesses took 90.00 ms beyond plain steps and saved 30.00 ms:"), ("", "60.00 ms lost")]
    proposal = "they would be 2.00 times as fast as {}. Try --mode plain{}."
    assert as_told(lost, "auto") == [*gain, plain, ("", "auto was 0.50 times as fast")]
    assert as_told(lost, "lookahead") == [plain, ("", proposal.format("lookahead", ", or a smaller -W"))]
    assert as_told(lost, "lookup") == [plain, ("", proposal.format("lookup", ""))]
    won = compared(*[step(4, accepted=3, seconds=0.020)] * 3, timed=[PLAIN_S] * 9)
    assert as_told(won, "lookahead")[-1] == ("", "lookahead was 2.00 times as fast")
    assert as_told("too short", "auto") == [("plain", "too short")]

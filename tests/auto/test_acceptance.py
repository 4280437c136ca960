"""What is learned of accepted guesses: how often a kind comes true, what may be lost, which sources pay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.auto.acceptance import (
    BUDGET_SHARE,
    DECAY,
    FIRST_TRIAL,
    INITIAL_BUDGET,
    MAX_BALANCE,
    MAX_CREDIT,
    MAX_PAUSE,
    MAX_WINDOW_SHARE,
    PRIOR_TRIES,
    STAKE,
    TRIAL,
    AcceptanceEstimate,
    LossBudget,
    SourceAccount,
    WindowWidth,
)
from lacli.auto.planner import is_affordable
from lacli.settings import window_rows

chances = st.floats(0.01, 0.99)
tries = st.lists(st.booleans(), max_size=80)


@given(chances, chances, tries)
def test_the_probability_is_hits_over_tries_each_a_little_older_than_the_next(
    expected: float, other: float, seen: list[bool]
) -> None:
    estimate = AcceptanceEstimate([expected, other])
    # Sources ask for the list at every guess.
    probability = estimate.probability
    for hit in seen:
        before = probability[0]
        estimate.record(0, hit)
        assert (probability[0] > before) is hit
    ages = [DECAY**age for age in range(len(seen))][::-1]
    first = PRIOR_TRIES * DECAY ** len(seen)
    hits = first * expected + sum(age for age, hit in zip(ages, seen, strict=True) if hit)
    assert probability[0] == pytest.approx(hits / (first + sum(ages)))
    assert probability[1] == other and probability is estimate.probability


@pytest.mark.parametrize("long", [100, 10_000])
@pytest.mark.parametrize("was", [True, False])
def test_a_change_of_subject_is_followed_and_nothing_is_ever_certain(was: bool, long: int) -> None:
    estimate = AcceptanceEstimate([0.5])
    for _ in range(long):
        estimate.record(0, was)
        assert 0 < estimate.probability[0] < 1
    for _ in range(70):
        estimate.record(0, not was)
    assert estimate.probability[0] < 0.3 if was else estimate.probability[0] > 0.7


def test_a_text_begins_with_the_mean_of_all_before_it_and_soon_speaks_for_itself() -> None:
    estimate = AcceptanceEstimate([0.5])
    for text in range(40):
        estimate.begin()
        for _ in range(20):
            estimate.record(0, text % 2 == 0)
    estimate.begin()
    assert estimate.probability[0] == pytest.approx(0.5, abs=0.05)
    for _ in range(20):
        estimate.record(0, True)
    assert estimate.probability[0] > 0.8


def decided(account: SourceAccount, steps: int, gain: float, *, promising: bool) -> list[bool]:
    """Whether the source was asked in each of these steps, of which each one asked gains the same."""
    asked = []
    for _ in range(steps):
        asked.append(account.decide(promising=promising))
        if asked[-1]:
            account.record_step(gain)
    return asked


def test_a_source_is_tried_at_once_where_rows_are_cheap_and_after_a_while_elsewhere() -> None:
    assert all(decided(SourceAccount(), 200, 0.1, promising=True))
    asked = decided(SourceAccount(), 200, 0.1, promising=False)
    assert not any(asked[: FIRST_TRIAL - 1]) and all(asked[FIRST_TRIAL - 1 :])


@pytest.mark.parametrize("promising", [True, False])
def test_a_source_that_does_not_pay_sleeps_and_is_tried_more_and_more_seldom(promising: bool) -> None:
    account = SourceAccount()
    asked = decided(account, 3 * MAX_PAUSE, -0.1, promising=promising)
    pauses = [len(list(steps)) for is_asked, steps in groupby(asked) if not is_asked][0 if promising else 1 :]
    assert pauses[0] == 2 * FIRST_TRIAL - 1 and pauses[:-1] == sorted(pauses[:-1]) and max(pauses) < MAX_PAUSE
    assert 0.1 * sum(asked) <= STAKE * len(pauses) + 1
    assert all(decided(account, MAX_PAUSE + 10, 0.1, promising=False)[-10:]), "it is not believed again"


def test_a_source_that_gained_much_may_lose_little_of_it() -> None:
    account = SourceAccount()
    decided(account, 200, 0.1, promising=True)
    assert sum(decided(account, 100, -0.1, promising=True)) <= MAX_CREDIT / 0.1 + 1


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8), st.floats(0, 1)), max_size=200))
def test_steps_that_cost_what_they_may_never_lose_more_than_the_allowance(
    taken: list[tuple[bool, int, float]],
) -> None:
    """Each step: whether it has guesses, the tokens it brings, and the part of its allowed cost that it takes."""
    budget, tokens, cost = LossBudget(), 0, 0.0
    for drafts, brought, part in taken:
        spent = 1 + part * (budget.max_cost - 1)
        if drafts and budget.max_cost > 1:
            budget.record(brought, spent)
        else:
            brought, spent = 1, 1.0
            budget.record_plain(1)
        tokens, cost = tokens + brought, cost + spent
        assert cost <= tokens * (1 + BUDGET_SHARE) + INITIAL_BUDGET + 1e-9


@given(st.integers(0, 2000), st.integers(0, 300))
def test_of_a_run_that_went_well_no_more_than_the_most_is_lost_again(good: int, bad: int) -> None:
    budget, lost = LossBudget(), 0.0
    for _ in range(good):
        budget.record(4, 2.0)
    for _ in range(bad):
        cost = budget.max_cost
        budget.record(1, cost)
        lost += cost - 1
    assert lost <= MAX_BALANCE + BUDGET_SHARE * bad + 1e-9


def test_a_gain_lets_the_next_step_cost_more_and_a_loss_asks_for_a_better_draft() -> None:
    budget = LossBudget()
    cost, margin = budget.max_cost, budget.margin
    budget.record(4, 2.0)
    assert budget.max_cost > cost + 1.5 and budget.margin < margin
    budget.record(1, 2.0)
    assert cost < budget.max_cost < cost + 1.5


def test_a_step_that_cost_more_than_it_might_stops_guessing_until_it_is_worked_off() -> None:
    budget, waited = LossBudget(), 0
    budget.record(1, 1 + INITIAL_BUDGET + 0.5)
    while budget.max_cost <= 1:
        budget.record_plain(1)
        waited += 1
    assert 40 <= waited <= 60


def test_a_debt_ends_with_its_text_and_a_chain_that_pays_is_soon_affordable_in_the_next_one() -> None:
    budget = LossBudget()
    budget.record(4, 2.0)
    gained = budget.max_cost
    budget.begin()
    assert budget.max_cost == gained
    budget.record(1, 10.0)
    assert budget.max_cost < 0
    budget.begin()
    assert not is_affordable(3.4, 1.9, budget.max_cost)
    budget.record_plain(1)
    assert is_affordable(3.4, 1.9, budget.max_cost) and budget.margin * 1.9 < 3.4


MOST, NGRAM, ROWS = 15, 5, 129
FREE = [1.0] * ROWS
GPU = [1 + 0.3 * max(rows - 1, 0) / 63 for rows in range(ROWS)]
CPU = [1 + 0.3 * max(rows - 1, 0) for rows in range(ROWS)]
EDGE = [1.0] * 33 + [3.0] * (ROWS - 33)


def driven(
    width: WindowWidth, relative: Sequence[float], steps: int, found: float, rows: int = 4, tokens: float = 2.0
) -> list[int]:
    """The columns of each step, if the window alone finds `found` tokens a step on average."""
    columns, owed = [], 0.0
    for _ in range(steps):
        columns.append(width.decide(relative, rows, tokens))
        if columns[-1]:
            owed += found
            width.record(int(owed))
            owed -= int(owed)
    return columns


def driven_anew(relative: Sequence[float], steps: int, found: float, most: int = MOST) -> list[int]:
    return driven(WindowWidth(most, NGRAM, 1000), relative, steps, found)


def test_a_window_is_tried_after_a_while_with_a_few_columns_and_only_where_its_rows_are_cheap() -> None:
    columns = driven_anew(GPU, FIRST_TRIAL, found=0)
    assert not any(columns[:-1]) and 0 < columns[-1] < MOST / 2
    assert not any(driven_anew(CPU, 5_000, found=9)) and not any(driven_anew(FREE, 500, found=1, most=0))


def test_a_window_that_finds_much_becomes_as_wide_as_it_may_and_stays_until_it_stops_finding() -> None:
    width = WindowWidth(MOST, NGRAM, 1000)
    columns = driven(width, FREE, 1000, found=1)
    assert set(columns[-500:]) == {MOST} and columns == sorted(columns)
    assert 0 in driven(width, GPU, 100, found=0)
    # Its rows cost nothing up to the next edge.
    assert set(driven_anew(EDGE, 500, found=0.5)[-100:]) == {7}


def test_one_that_finds_nothing_is_given_up_after_a_trial_and_tried_more_and_more_seldom() -> None:
    columns = driven_anew(GPU, 20_000, found=0)
    begins = [step for step, (before, now) in enumerate(pairwise(columns), start=1) if now and not before]
    ends = [step for step, (before, now) in enumerate(pairwise(columns), start=1) if before and not now]
    assert all(end - begin == TRIAL for begin, end in zip(begins, ends, strict=False))
    pauses = [begin - end for end, begin in zip(ends, begins[1:], strict=False)]
    assert pauses == sorted(pauses) and pauses[0] < pauses[1] < pauses[2] and max(pauses) == MAX_PAUSE


def test_a_source_that_lost_in_one_text_is_tried_in_the_next_where_rows_are_cheap() -> None:
    account = SourceAccount()
    assert not decided(account, 20, -0.1, promising=True)[-1]
    account.begin()
    assert not decided(account, 1, -0.1, promising=False)[0] and decided(account, 1, -0.1, promising=True)[0]


@given(st.floats(0, 2), st.integers(1, 64), st.floats(1, 6), st.floats(0, 1.5))
def test_what_fruitless_trials_cost_is_bounded(slope: float, rows: int, tokens: float, edge: float) -> None:
    relative = [1 + slope * max(each - 1, 0) / 63 + (edge if each > 30 else 0) for each in range(ROWS)]
    columns = driven(WindowWidth(MOST, NGRAM, 1000), relative, 3000, 0, rows, tokens)
    lost = 0.0
    for wide in columns:
        more = min(rows + window_rows(wide, NGRAM), ROWS - 1)
        lost += 1 - relative[min(rows, more)] / relative[more]
    assert lost <= MAX_WINDOW_SHARE * sum(map(bool, columns)) + 1e-9
    assert lost <= 0.005 * len(columns)


@given(st.integers(0, 20), st.integers(2, 6), st.lists(st.tuples(st.integers(1, 64), st.integers(0, 4)), max_size=300))
def test_it_is_never_wider_than_it_may_be(most: int, ngram: int, steps: list[tuple[int, int]]) -> None:
    width = WindowWidth(most, ngram, 1000)
    for rows, found in steps:
        assert 0 <= width.decide(GPU, rows, 2.0) <= most
        if width.columns:
            width.record(found)


def test_texts_at_a_time_know_their_own_hits_and_begin_with_the_mean_of_all() -> None:
    common = AcceptanceEstimate([0.5])
    ours, theirs = common.for_text(), common.for_text()
    for _ in range(20):
        ours.record(0, True)
    assert ours.probability[0] > 0.8 and theirs.probability == [0.5]
    known = ours.probability[0]
    theirs.begin()
    assert theirs.probability[0] > 0.7 and ours.probability[0] == known
    assert common._all_hits == ours._all_hits == theirs._all_hits

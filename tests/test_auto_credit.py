"""What guessing may lose: never more than a little, a share of the run and what was won."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lacli.auto.credit import (
    FIRST,
    MOST,
    SHARE,
    Credit,
)

steps = st.lists(st.tuples(st.booleans(), st.integers(1, 8), st.floats(0, 1)), max_size=200)
"""Each: whether it has guesses, tokens it brings, and which part of what it may cost it does."""


@given(steps)
def test_steps_that_cost_what_they_may_never_lose_more_than_the_allowance(
    taken: list[tuple[bool, int, float]],
) -> None:
    credit, tokens, cost = Credit(), 0, 0.0
    for drafts, brought, part in taken:
        if drafts and credit.dearest > 1:
            spent = 1 + part * (credit.dearest - 1)
            credit.book(brought, spent)
        else:
            brought, spent = 1, 1.0
            credit.pass_plain(1)
        tokens, cost = tokens + brought, cost + spent
        assert cost <= tokens * (1 + SHARE) + FIRST + 1e-9


@given(st.integers(1, 500))
def test_guesses_that_are_always_wrong_cost_two_steps_and_a_hundredth_of_the_run(length: int) -> None:
    credit, lost = Credit(), 0.0
    for _ in range(length):
        if credit.dearest >= 1.5:
            lost += 0.5
            credit.book(1, 1.5)
        else:
            credit.pass_plain(1)
    assert lost <= 2 + 0.01 * length


@given(st.integers(0, 2000), st.integers(0, 300))
def test_of_a_run_that_went_well_no_more_than_the_most_is_lost_again(good: int, bad: int) -> None:
    credit, lost = Credit(), 0.0
    for _ in range(good):
        credit.book(4, 2.0)
    for _ in range(bad):
        cost = credit.dearest
        credit.book(1, cost)
        lost += cost - 1
    assert lost <= MOST + SHARE * bad + 1e-9


def test_a_gain_lets_the_next_step_cost_more() -> None:
    credit = Credit()
    before = credit.dearest
    credit.book(4, 2.0)
    assert credit.dearest > before + 1.5
    credit.book(1, 2.0)
    assert before < credit.dearest < before + 1.5


def test_a_step_that_cost_more_than_it_might_stops_guessing_until_it_is_worked_off() -> None:
    credit = Credit()
    credit.book(1, 1 + FIRST + 0.5)
    waited = 0
    while credit.dearest <= 1:
        credit.pass_plain(1)
        waited += 1
    assert 40 <= waited <= 60

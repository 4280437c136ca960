"""How often guesses of a kind come true: what was expected at first, what was seen soon, the latest tries most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.auto.belief import DECAY, PRIOR_TRIES, Belief

chances = st.floats(0.01, 0.99)
tries = st.lists(st.booleans(), max_size=80)


@given(st.lists(chances, min_size=1, max_size=5))
def test_before_any_try_a_kind_is_as_probable_as_expected(expected: list[float]) -> None:
    assert Belief(expected).probability == expected


@given(chances, tries)
def test_the_probability_is_hits_over_tries_each_a_little_older_than_the_next(
    expected: float, seen: list[bool]
) -> None:
    belief = Belief([expected])
    for hit in seen:
        belief.saw(0, hit)
    ages = [DECAY**age for age in range(len(seen))][::-1]
    first = PRIOR_TRIES * DECAY ** len(seen)
    hits = first * expected + sum(age for age, hit in zip(ages, seen, strict=True) if hit)
    assert belief.probability[0] == pytest.approx(hits / (first + sum(ages)))


@given(chances, chances, tries)
def test_a_try_says_nothing_of_other_kinds(expected: float, other: float, seen: list[bool]) -> None:
    belief = Belief([expected, other])
    for hit in seen:
        belief.saw(0, hit)
    assert belief.probability[1] == other


@given(chances, tries, st.booleans())
def test_a_hit_makes_a_kind_more_probable_and_a_miss_less(expected: float, seen: list[bool], hit: bool) -> None:
    belief = Belief([expected])
    for each in seen:
        belief.saw(0, each)
    before = belief.probability[0]
    belief.saw(0, hit)
    assert belief.probability[0] > before if hit else belief.probability[0] < before


@pytest.mark.parametrize("long", [100, 100_000])
@pytest.mark.parametrize("was", [True, False])
def test_a_change_of_subject_is_followed_however_long_the_subject_was(was: bool, long: int) -> None:
    belief = Belief([0.5])
    for _ in range(long):
        belief.saw(0, was)
    for _ in range(70):
        belief.saw(0, not was)
    assert (belief.probability[0] > 0.7) is not was
    assert (belief.probability[0] < 0.3) is was


@pytest.mark.parametrize("hit", [True, False])
def test_nothing_is_ever_certain(hit: bool) -> None:
    """Two guesses of one place that are both certain would contradict each other."""
    belief = Belief([0.98, 0.02])
    for _ in range(10_000):
        belief.saw(0, hit)
        belief.saw(1, hit)
    assert all(0 < chance < 1 for chance in belief.probability)


def test_the_list_of_probabilities_is_the_same_one_always() -> None:
    """Sources ask for it at every guess."""
    belief = Belief([0.5])
    before = belief.probability
    belief.saw(0, True)
    assert before is belief.probability

"""The store source: the longest match in kept texts, the most recent first, and what a cut text leaves of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.auto import kept
from lacli.auto.belief import Belief
from lacli.auto.kept import (
    EXPECTED,
    RUN,
    Kept,
    KeptTexts,
)
from lacli.auto.matching import KINDS, LAST
from lacli.auto.suffix import LONGEST
from tests.session.test_reuse import ctrl_c_at_line

few = st.lists(st.integers(0, 2), max_size=20)
texts = st.lists(few, max_size=3)


def arrays(texts: Sequence[Sequence[int]]) -> list[npt.NDArray[np.int32]]:
    return [np.array(text, np.int32) for text in texts]


def source_of(*texts: Sequence[int], belief: Belief | None = None) -> Kept:
    return Kept(KeptTexts(arrays(texts)), belief)


def drafted(source: Kept, text: Sequence[int], most: int = 100) -> list[int]:
    """The tokens of the source's first guess and of those that follow it."""
    guesses = source.first(text)
    chain: list[int] = []
    while guesses and len(chain) < most:
        chain.append(guesses[0].token)
        guesses = source.after(guesses[0])
    return chain


def expected(texts: Sequence[Sequence[int]], text: Sequence[int]) -> list[int]:
    """What follows the longest match, the latest of the longest ones, by definition."""
    found: tuple[int, list[int]] = (0, [])
    for one in texts:
        for end in range(1, len(one)):
            length = 0
            while length < min(end, len(text)) and one[end - 1 - length] == text[-1 - length]:
                length += 1
            if length >= max(RUN, found[0]):
                found = (length, list(one[end:]))
    return found[1]


@given(texts, few)
def test_what_followed_the_longest_match_is_drafted_the_most_recent_first(
    texts: list[list[int]], text: list[int]
) -> None:
    source = source_of(*texts)
    for length in range(len(text) + 1):
        source.extend(text[:length])
        assert drafted(source, text[:length]) == expected(texts, text[:length])
        assert source.chain(3) == expected(texts, text[:length])[:3]


@given(texts, few, few, st.integers(0, 20))
def test_truncation_at_every_length_equals_a_rebuild(
    texts: list[list[int]], text: list[int], more: list[int], length: int
) -> None:
    source = source_of(*texts)
    source.begin(text)
    source.truncate(text, length)
    again = [*text[:length], *more]
    source.extend(again)
    fresh = source_of(*texts)
    fresh.begin(again)
    assert source.match == fresh.match and drafted(source, again) == drafted(fresh, again)
    for shorter in range(len(again), -1, -1):
        source.truncate(again, shorter)
        fresh = source_of(*texts)
        fresh.begin(again[:shorter])
        assert source.match == fresh.match


def test_a_longer_match_goes_before_a_later_one() -> None:
    source = source_of([5, 1, 2, 3, 4, 7, 7], [1, 2, 3, 4, 8])
    source.begin([5, 1, 2, 3, 4])
    assert drafted(source, [5, 1, 2, 3, 4]) == [7, 7]
    source = source_of([5, 1, 2, 3, 4, 7, 7], [1, 2, 3, 4, 8])
    source.begin([6, 1, 2, 3, 4])
    assert drafted(source, [6, 1, 2, 3, 4]) == [8]


def test_three_tokens_are_no_match_and_no_match_goes_from_one_text_into_the_next() -> None:
    source = source_of([1, 2, 3], [4, 5, 6, 7])
    for text in ([9, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [5, 6, 7], [4, 5, 6, 7]):
        source.begin(text)
        assert source.first(text) == [] and source.match == (0, 0)
        source.truncate(text, 0)


def test_without_texts_there_are_no_guesses() -> None:
    for source in (source_of(), source_of([]), source_of([1, 2])):
        source.begin([1, 2, 3, 4, 5])
        assert source.first([1, 2, 3, 4, 5]) == []


def test_of_many_occurrences_the_latest_one_is_found() -> None:
    source = source_of(*([1, 2, 3, 4, token] for token in range(5, 300)))
    source.begin([1, 2, 3, 4])
    assert drafted(source, [1, 2, 3, 4]) == [299]


def test_a_match_longer_than_what_is_compared_is_followed() -> None:
    text = list(range(10, 200))
    source = source_of(text, [*text[:40], 1])
    source.begin(text[:60])
    assert source.match[1] == LONGEST + 60 - 41
    assert drafted(source, text[:60], most=5) == text[60:65]


def test_runs_with_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FACTORS", (0, 0, 0, 0))
    source = source_of([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    for text, token in (([1, 2, 3, 4], 5), ([6, 7, 8, 9], 10)):
        source.begin(text)
        assert drafted(source, text) == [token]
        source.truncate(text, 0)
    source.begin([1, 2, 3, 9])
    assert source.first([1, 2, 3, 9]) == []


class Noting(Belief):
    """Notes what was seen."""

    def __init__(self) -> None:
        super().__init__(EXPECTED)
        self.seen: list[tuple[int, bool]] = []

    def saw(self, kind: int, hit: bool) -> None:
        self.seen.append((kind, hit))
        super().saw(kind, hit)


def test_guesses_are_believed_by_what_came_of_those_with_matches_as_long() -> None:
    belief = Noting()
    source = source_of(list(range(1, 60)), belief=belief)
    source.begin([1, 2, 3, 4])
    source.extend([1, 2, 3, 4, 5, 6])
    source.extend([1, 2, 3, 4, 5, 6, 60, 61])
    assert belief.seen == [(KINDS[4], True), (KINDS[5], True), (KINDS[6], False)]
    source = source_of(list(range(1, 60)), belief=belief)
    text = list(range(1, 50))
    source.begin(text)
    assert belief.seen == belief.seen[:3]
    (guess,) = source.first(text)
    assert guess.probability == belief.probability[KINDS[LAST]]
    source.extend([*text, 50])
    assert belief.seen[3:] == [(KINDS[LAST], True)]


def test_a_later_guess_of_a_chain_is_believed_as_its_longer_match_is() -> None:
    source = source_of(list(range(1, 60)))
    source.begin([1, 2, 3, 4])
    (guess,) = source.first([1, 2, 3, 4])
    for length in range(4, 50):
        assert guess.probability == source.belief.probability[KINDS[min(length, LAST)]]
        (guess,) = source.after(guess)


def test_an_interrupt_before_any_line_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.session.test_reuse.WATCHED", ("auto/kept", "auto/belief"))
    known = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 8]
    text = [3, 1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4]
    for line in count(1):
        source = source_of(known, known[2:])
        source.begin(text[:3])
        with suppress(KeyboardInterrupt), ctrl_c_at_line(line) as lines:
            source.extend(text)
            source.truncate(text, 6)
            source.extend([*text[:6], 7])
        for now in (text, [*text[:6], 7]):
            source.truncate(now, 5)
            source.extend(now)
            fresh = source_of(known, known[2:])
            fresh.begin(now)
            assert source.match == fresh.match, line
        if not lines.reached:
            assert line > 20
            return

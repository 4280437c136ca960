"""The suffix source: the longest match, what follows it, what it teaches, and the text cut back at any moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from itertools import pairwise
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lacli.auto.suffix import EXPECTED, MAX_COMPARED, OTHER, PROBES, SuffixSource, kind_of
from tests.fakes.recorded_acceptance import RecordedAcceptance

few_tokens = st.integers(0, 3)
texts = st.lists(few_tokens, min_size=1, max_size=40)
copying = st.tuples(st.lists(few_tokens, min_size=2, max_size=12), st.integers(2, 6)).map(
    lambda each: each[0] * each[1]
)
any_text = st.one_of(texts, copying)
ENDS = {0}


def begun(text: list[int], ends: Container[int] = ()) -> SuffixSource:
    source = SuffixSource(is_end=ends.__contains__)
    source.begin(text)
    return source


def index(source: SuffixSource) -> Any:
    """All that the source has learned of a text."""
    return source._latest, source._earlier, source._matches, source._ends


def answers(source: SuffixSource, text: list[int]) -> Any:
    """All that the source says, three guesses deep."""
    first = source.first(text)
    after = [source.after(guess) for guess in first]
    deeper = [source.after(guess) for guesses in after for guess in guesses]
    return source.match, first, after, deeper, source.continuation(9) if source.match[1] else []


def longest(text: list[int], ends: Container[int] = ()) -> tuple[int, int]:
    """The most recent of the longest earlier occurrences of the text's end that no end follows, by definition."""
    best = (0, 0)
    for end in [end for end in range(2, len(text)) if text[end] not in ends]:
        length = 0
        while length < end and text[end - 1 - length] == text[-1 - length]:
            length += 1
        if length >= max(best[1], 2):
            best = end, length
    return best


@given(any_text)
@settings(max_examples=300)
def test_the_match_is_the_most_recent_of_the_longest_ones(text: list[int]) -> None:
    assume(max(Counter(pairwise(text)).values(), default=0) <= PROBES)
    assert begun(text).match == longest(text)


@given(any_text, st.integers(1, 12))
def test_no_guess_is_a_token_that_ends_an_answer(text: list[int], length: int) -> None:
    assume(max(Counter(pairwise(text)).values(), default=0) <= PROBES)
    assume(longest(text, ENDS)[1] < MAX_COMPARED)
    source = begun(text, ENDS)
    place, matched = source.match
    assert (place, matched) == longest(text, ENDS)
    if matched:
        without = begun(text)
        without._matches[-1] = place, matched
        copied = without.continuation(length)
        until = copied.index(0) if 0 in copied else length
        assert source.continuation(length) == copied[:until] and source.available(length) == until
        guesses = source.first(text)
        for _ in range(length):
            assert all(guess.token for guess in guesses)
            guesses = [after for guess in guesses for after in source.after(guess)]


@given(any_text)
def test_where_a_pair_is_very_frequent_it_is_a_match_still(text: list[int]) -> None:
    place, length = begun(text * 3).match
    text = text * 3
    assert (length > 0) == (longest(text)[1] > 0)
    assert text[place - length : place] == text[len(text) - length :]
    assert length == 0 or 2 <= length <= place < len(text)


@given(any_text, st.integers(0, 30))
def test_a_chain_copies_what_follows_the_match_and_then_itself(text: list[int], length: int) -> None:
    source = begun(text)
    place, matched = source.match
    assume(matched)
    copied = list(text)
    for step in range(length):
        copied.append(copied[place + step])
    assert source.continuation(length) == copied[len(text) :]


@given(any_text, st.integers(1, 30))
def test_one_guess_after_another_is_the_chain_with_growing_matches(text: list[int], length: int) -> None:
    source = begun(text)
    assume(source.match[1])
    guess = source.first(text)[0]
    tokens, chances = [guess.token], [guess.probability]
    for _ in range(length - 1):
        (guess,) = source.after(guess)
        tokens.append(guess.token)
        chances.append(guess.probability)
    assert tokens == source.continuation(length)
    assert chances == [source.chance(source.match[1] + step) for step in range(length)]


@given(any_text)
def test_the_first_guesses_differ_and_followed_the_same_two_tokens(text: list[int]) -> None:
    source = begun(text)
    guesses = source.first(text)
    assert bool(guesses) == (source.match[1] > 0)
    tokens = [guess.token for guess in guesses]
    assert len(set(tokens)) == len(tokens) <= 3
    followed = {text[place + 2] for place in range(len(text) - 2) if text[place : place + 2] == text[-2:]}
    assert set(tokens) <= followed
    assert len(tokens) >= min(len(followed), 2) or max(Counter(pairwise(text)).values()) > PROBES
    assert sum(guess.probability for guess in guesses) <= 1
    chances = [guess.probability for guess in guesses[1:]]
    assert chances == sorted(chances, reverse=True)


@given(any_text, st.integers(0, 40))
def test_a_text_is_learned_alike_in_pieces_and_as_a_whole(text: list[int], cut: int) -> None:
    source = begun(text[:cut])
    source.begin(text)
    assert index(source) == index(begun(text))
    assert answers(source, text) == answers(begun(text), text)


@given(any_text, st.integers(0, 40))
def test_how_often_a_match_was_right_is_learned_of_what_was_accepted_and_not_of_the_prompt(
    text: list[int], prompt: int
) -> None:
    prompt = min(prompt, len(text))
    acceptance = RecordedAcceptance(EXPECTED)
    source = SuffixSource(acceptance)
    source.begin(text[:prompt])
    assert acceptance.seen == []
    source.extend(text)
    expected = []
    for known in range(prompt, len(text)):
        place, length = begun(text[:known]).match
        if length:
            expected.append((kind_of(length), text[place] == text[known]))
    assert [(kind, hit) for kind, hit in acceptance.seen if kind != OTHER] == expected


@given(any_text)
def test_the_other_guesses_are_scored_where_the_first_one_failed(text: list[int]) -> None:
    acceptance = RecordedAcceptance(EXPECTED)
    source = SuffixSource(acceptance)
    source.begin(text[:1])
    expected = []
    for known in range(1, len(text)):
        guesses = [guess.token for guess in source.first(text[:known])]
        if len(guesses) > 1 and guesses[0] != text[known]:
            expected.append((OTHER, text[known] in guesses[1:]))
        source.extend(text[: known + 1])
    assert [each for each in acceptance.seen if each[0] == OTHER] == expected


def test_longer_matches_are_believed_more_at_first() -> None:
    source = SuffixSource()
    chances = [source.chance(length) for length in range(2, 60)]
    assert chances == sorted(chances)
    assert len(set(chances)) == len(EXPECTED) - 1

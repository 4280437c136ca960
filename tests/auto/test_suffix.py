"""The suffix source: the longest match, what follows it, and what is learned from accepted tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from itertools import pairwise
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lacli.auto.suffix import EXPECTED, OTHER, PROBES, SuffixSource, kind_of
from tests.fakes.scripted_context import RecordedHits, chain

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


def longest(text: list[int], ends: Container[int] = ()) -> tuple[int, int]:
    """The most recent of the longest earlier occurrences of the text's end that no end follows, by definition."""
    best = (0, 0)
    for end in [end for end in range(1, len(text)) if text[end] not in ends]:
        length = 0
        while length < end and text[end - 1 - length] == text[-1 - length]:
            length += 1
        if length and length >= best[1]:
            best = end, length
    return best


@given(any_text)
@settings(max_examples=300)
def test_the_match_is_the_most_recent_of_the_longest_ones(text: list[int]) -> None:
    assume(max(Counter(pairwise(text)).values(), default=0) <= PROBES)
    assert begun(text).matches[-1] == longest(text)


@given(any_text, st.integers(1, 12))
def test_a_chain_copies_what_follows_the_match_and_then_itself_up_to_the_end_of_an_answer(
    text: list[int], length: int
) -> None:
    source = begun(text, ENDS)
    place, matched = source.matches[-1]
    assume(matched)
    copied = list(text)
    for step in range(length):
        copied.append(copied[place + step])
    new = copied[len(text) :]
    assert new[0] not in ENDS
    new = new[: new.index(0)] if 0 in new else new
    rates = [source.hits.rates[kind_of(matched + step)] for step in range(len(new))]
    assert chain(source, text, length) == list(zip(new, rates, strict=True))


@given(any_text)
def test_the_first_drafts_differ_and_followed_the_same_two_tokens(text: list[int]) -> None:
    source = begun(text)
    drafts = source.first(text)
    matched = source.matches[-1][1]
    assert bool(drafts) == (matched > 0)
    tokens = [drafted.token for drafted in drafts]
    assert len(set(tokens)) == len(tokens) <= 3
    followed = {text[place + 2] for place in range(len(text) - 2) if text[place : place + 2] == text[-2:]}
    assert matched == 1 or set(tokens) <= followed
    assert len(tokens) >= min(len(followed), 2) or max(Counter(pairwise(text)).values()) > PROBES
    assert sum(drafted.probability for drafted in drafts) <= 1
    chances = [drafted.probability for drafted in drafts[1:]]
    assert chances == sorted(chances, reverse=True)


@given(any_text, st.integers(0, 40))
def test_a_text_is_learned_alike_in_pieces_and_as_a_whole(text: list[int], cut: int) -> None:
    def known(source: SuffixSource) -> Any:
        return source._latest, source._earlier, source.matches

    source = begun(text[:cut], ENDS)
    source.extend(text)
    assert known(source) == known(begun(text, ENDS))


@given(any_text, st.integers(0, 40))
def test_how_often_a_match_was_right_is_learned_of_what_was_accepted_and_not_of_the_prompt(
    text: list[int], prompt: int
) -> None:
    prompt = min(prompt, len(text))
    source = SuffixSource()
    acceptance = source.hits = RecordedHits(EXPECTED)
    source.begin(text[:prompt])
    assert acceptance.seen == []
    source.extend(text)
    expected = []
    for known in range(prompt, len(text)):
        place, length = begun(text[:known]).matches[-1]
        if length:
            expected.append((kind_of(length), text[place] == text[known]))
    assert [(kind, hit) for kind, hit in acceptance.seen if kind != OTHER] == expected


@given(any_text)
def test_the_other_drafts_are_scored_if_the_first_one_failed(text: list[int]) -> None:
    source = SuffixSource()
    acceptance = source.hits = RecordedHits(EXPECTED)
    source.begin(text[:1])
    expected = []
    for known in range(1, len(text)):
        drafts = [drafted.token for drafted in source.first(text[:known])]
        if len(drafts) > 1 and drafts[0] != text[known]:
            expected.append((OTHER, text[known] in drafts[1:]))
        source.extend(text[: known + 1])
    assert [each for each in acceptance.seen if each[0] == OTHER] == expected

"""The rewriting source: how a copy goes on after a change, and what is learned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.auto.suffix import EXPECTED_AFTER_CHANGE as EXPECTED
from lacli.auto.suffix import MAX_CHANGE, MIN_COPY, RewritingSource, SuffixSource
from tests.fakes.scripted_context import RecordedHits, chain

END = 1000


class Pair:
    """A rewriting source with the suffix source that it listens to."""

    def __init__(self, text: list[int]) -> None:
        self.suffix = SuffixSource(is_end={END}.__contains__)
        self.source = RewritingSource(self.suffix)
        self.hits = self.source.hits = RecordedHits(EXPECTED)
        self.text = list(text)
        self.begin()

    def begin(self) -> None:
        self.suffix.begin(self.text)
        self.source.begin(self.text)

    def chain(self, length: int) -> list[tuple[int, float]]:
        return chain(self.source, self.text, length)

    def tokens(self, length: int) -> list[int]:
        return [token for token, _ in self.chain(length)]

    @property
    def kind(self) -> int:
        """The kind of the first draft by its rate, -1 without a drafted."""
        return self.hits.rates.index(self.chain(1)[0][1]) if self.chain(1) else -1

    def extend(self, tokens: list[int]) -> None:
        self.text += tokens
        self.suffix.extend(self.text)
        self.source.extend(self.text)


COPIED = list(range(100, 160))
BEGIN = COPIED[: MIN_COPY + 2]


def copying(change: list[int]) -> Pair:
    """A text that copies another one up to token 110, and has `change` then."""
    pair = Pair([*COPIED, 1])
    pair.extend([*BEGIN, *change])
    return pair


CHANGES = {
    "another token": ([1], [111, 112]),
    "another token, and one that agrees": ([1, 111], [112, 113]),
    "several others": ([1, 2, 3, 111], [112, 113]),
    "one more token": ([1, 110], [111, 112]),
    "three tokens less": ([113], [114, 115]),
    "two others for three": ([1, 2, 113], [114, 115]),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_a_copy_goes_on_after_a_change(change: list[int], expected: list[int]) -> None:
    assert copying(change).tokens(2) == expected


SILENT = {
    "nothing was copied": [5, 6, 7],
    "nothing was changed": BEGIN,
    "more than one token is other, and none agrees": [*BEGIN, 1, 2],
    "the copy was left long ago": [*BEGIN, *range(MAX_CHANGE + 1), 111, 112],
}


@pytest.mark.parametrize("tokens", SILENT.values(), ids=SILENT)
def test_nothing_is_drafted_without_a_changed_copy(tokens: list[int]) -> None:
    pair = Pair([*COPIED, 1])
    pair.extend(tokens)
    assert pair.source.first(pair.text) == []


def test_a_draft_stops_at_the_end_of_an_answer() -> None:
    pair = Pair([*BEGIN, 9, 201, 202, 203, END, 204, 205])
    pair.extend([*BEGIN, 8, 201, 202])
    assert pair.tokens(9) == [203]
    pair.extend([203])
    assert pair.tokens(9) == []


few_tokens = st.integers(0, 9)
edits = st.lists(st.tuples(st.integers(0, 59), st.lists(few_tokens, max_size=3), st.integers(0, 3)), max_size=6)


def edited(changes: list[tuple[int, list[int], int]]) -> list[int]:
    """The copied text with some tokens replaced."""
    text = list(COPIED)
    for place, new, length in changes:
        text[place : place + length] = new
    return text


@given(edits, st.integers(0, 60), st.integers(1, 20))
def test_a_draft_that_comes_true_is_what_was_drafted_token_by_token(
    changes: list[tuple[int, list[int], int]], known: int, length: int
) -> None:
    pair = Pair([*COPIED, *COPIED[::3], 99])
    pair.extend(edited(changes)[:known])
    draft = pair.chain(length)
    assert len(draft) <= length
    for token, rate in draft:
        assert pair.tokens(1) == [token]
        assert pair.hits.rates[pair.kind] >= rate
        pair.extend([token])


@given(edits, st.integers(0, 80))
def test_a_source_learns_how_often_its_own_first_draft_is_accepted(
    changes: list[tuple[int, list[int], int]], pieces: int
) -> None:
    text = edited(changes)
    pair, expected = Pair([*COPIED, 99]), []
    for token in text:
        if pair.kind >= 0:
            expected.append((pair.kind, pair.tokens(1) == [token]))
        pair.extend([token])
    assert pair.hits.seen == expected
    at_once = Pair([*COPIED, 99])
    at_once.extend(text[:pieces])
    at_once.extend(text[pieces:])
    assert at_once.hits.seen == expected
    assert at_once.tokens(9) == pair.tokens(9)

"""The index of what has occurred before: the most recent end of the longest run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lacli.modes import SuffixIndex

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def by_scanning(text: list[int], longest: int) -> int | None:
    for length in range(min(longest, len(text)), 0, -1):
        ends = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
        if ends:
            return ends[-1]
    return None


@given(texts, st.integers(1, 4))
def test_it_finds_what_a_scan_of_the_text_finds(text: list[int], longest: int) -> None:
    index = SuffixIndex(longest)
    for end in range(1, len(text) + 1):
        index.extend(text[:end])
        assert index.continuation(text[:end]) == by_scanning(text[:end], longest)


def test_the_last_token_does_not_match_itself() -> None:
    index = SuffixIndex(2)
    index.extend([1, 2])
    assert index.continuation([1, 2]) is None

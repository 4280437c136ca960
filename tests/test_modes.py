"""Drafts of mode lookup, without an engine. tests/engine/test_engine.py compares all modes with plain decoding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lacli.modes import Lookup
from lacli.settings import DecodeSettings

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def by_scanning(text: list[int], longest: int) -> list[int]:
    for length in range(min(longest, len(text)), 0, -1):
        ends = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
        if ends:
            return text[ends[-1] : ends[-1] + 10]
    return []


@given(texts, st.integers(1, 4))
def test_it_drafts_what_a_scan_of_the_text_finds(text: list[int], longest: int) -> None:
    mode = Lookup(DecodeSettings(mode="lookup", lookup_match=longest, lookup_draft=10))
    for end in range(1, len(text) + 1):
        assert mode.grow(text[:end], 64).tokens[1:] == by_scanning(text[:end], longest)


def test_the_last_token_does_not_match_itself() -> None:
    assert len(Lookup(DecodeSettings(mode="lookup")).grow([1, 2], 64)) == 1

"""Texts that are kept in memory for prompts that begin like them."""

from __future__ import annotations

import numpy as np

from lacli.saved import SavedText, SavedTexts


def saved(*tokens: int) -> SavedText:
    return SavedText(tokens, np.zeros(len(tokens), np.uint8))


def test_the_longest_common_beginning_is_found_among_texts() -> None:
    texts = SavedTexts(100)
    short, long = saved(1, 2, 3), saved(1, 2, 4, 5)
    for text in (short, long):
        texts.keep(text)
    assert texts.longest([1, 2, 4, 5, 6]) == (long, 4)
    assert texts.longest([7]) == (None, 0)


def test_a_text_takes_the_place_of_one_that_it_goes_on_from() -> None:
    texts = SavedTexts(7)
    later = saved(1, 2, 3)
    for text in (saved(1, 2), saved(9, 9), later):
        texts.keep(text)
    # With the first one there would be a token too many for a text of three.
    texts.keep(saved(8, 8))
    assert texts.longest([1, 2, 3]) == (later, 3)


def test_the_oldest_texts_go_where_all_have_too_many_tokens() -> None:
    texts = SavedTexts(6)
    for text in (saved(1, 1), saved(2, 2), saved(3, 3, 3)):
        texts.keep(text)
    assert [texts.longest([token])[1] for token in (1, 2, 3)] == [0, 1, 1]
    texts.keep(saved(*range(4, 11)))
    assert [texts.longest([token])[1] for token in (2, 3, 4)] == [0, 0, 0]

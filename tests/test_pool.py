"""The n-gram pool drops the least recently used keys and n-grams first, and learns from sequences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lacli.pool import NgramPool

TOKENS = 4
texts = st.lists(st.integers(0, TOKENS - 1), max_size=25)
sizes = st.integers(2, 5)


def held(pool: NgramPool, key: int) -> list[tuple[int, ...]]:
    return list(pool.lookup(key))


def test_the_least_recently_used_ngram_of_a_key_goes_first() -> None:
    pool = NgramPool(3, 2)
    for continuation in [(1, 1), (2, 2), (1, 1), (3, 3)]:
        pool.insert(9, continuation)
    assert held(pool, 9) == [(3, 3), (1, 1)]


def test_the_least_recently_used_key_goes_first() -> None:
    pool = NgramPool(2, 2, keys=2)
    for key in (1, 2, 1, 3):
        pool.insert(key, (7,))
    assert [key for key in (1, 2, 3) if held(pool, key)] == [1, 3]


def test_a_draft_follows_the_end_of_each_ngram() -> None:
    pool = NgramPool(3, 2)
    pool.learn([1, 2, 3, 4, 5])
    assert pool.draft(1, 10) == [2, 3, 4, 5]
    assert pool.draft(1, 3) == [2, 3, 4]
    assert pool.draft(99, 3) == []


def test_statistics_count_keys_ngrams_and_hits() -> None:
    pool = NgramPool(2, 3)
    for key, token in [(1, 5), (1, 6), (1, 7), (2, 5), (3, 5)]:
        pool.insert(key, (token,))
    for key in (1, 1, 2, 99):
        pool.lookup(key)
    assert pool.statistics() == (3, 5, 0.75)


@given(st.lists(st.tuples(st.integers(0, 5), st.tuples(st.integers(0, 3)))), st.integers(0, 3), st.integers(1, 4))
def test_the_caps_hold_and_the_newest_is_always_there(
    inserts: list[tuple[int, tuple[int, ...]]], guesses: int, keys: int
) -> None:
    pool = NgramPool(2, guesses, keys)
    for key, continuation in inserts:
        pool.insert(key, continuation)
        if guesses:
            assert held(pool, key)[0] == continuation
    assert pool.statistics().keys <= keys
    assert all(len(held(pool, key)) <= guesses for key in range(6))


def followed(text: list[int], ngram: int, key: int) -> list[tuple[int, ...]]:
    """Return the different (ngram - 1)-tuples after `key` in the text, the most recent first."""
    found = [tuple(text[end + 1 : end + ngram]) for end in range(len(text) - ngram, -1, -1) if text[end] == key]
    return list(dict.fromkeys(found))


@given(texts, sizes, st.lists(st.integers(0, 25), max_size=4))
def test_each_ngram_is_learned_once_in_whatever_pieces(text: list[int], ngram: int, cuts: list[int]) -> None:
    pool, start = NgramPool(ngram, 100), 0
    for cut in sorted(cuts):
        start = pool.learn(text[:cut], start)
    start = pool.learn(text, start)
    pool.learn(text, start)
    assert all(held(pool, key) == followed(text, ngram, key) for key in range(TOKENS))

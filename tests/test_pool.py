"""The n-gram pool: least recently used out first, by key and by n-gram; what sequences teach it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lacli.pool import NgramPool

TOKENS = 4
texts = st.lists(st.integers(0, TOKENS - 1), max_size=25)
sizes = st.integers(2, 5)

Known = dict[int, dict[tuple[int, ...], int]]


def held(pool: NgramPool, key: int) -> list[tuple[int, ...]]:
    return list(pool.lookup(key))


def test_lookup_gives_the_most_recent_first() -> None:
    pool = NgramPool(3, 4)
    for continuation in [(1, 1), (2, 2), (3, 3)]:
        pool.insert(9, continuation)
    assert held(pool, 9) == [(3, 3), (2, 2), (1, 1)]


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


def test_statistics_count_keys_ngrams_fan_out_and_hits() -> None:
    pool = NgramPool(2, 3)
    for key, token in [(1, 5), (1, 6), (1, 7), (2, 5), (3, 5)]:
        pool.insert(key, (token,))
    for key in (1, 1, 2, 99):
        pool.lookup(key)
    statistics = pool.statistics()
    assert (statistics.keys, statistics.ngrams) == (3, 5)
    assert (statistics.fan_out_max, statistics.fan_out_median) == (3, 1)
    assert statistics.fan_out_mean == 5 / 3
    assert (statistics.lookups, statistics.hit_rate) == (4, 0.75)


@given(st.lists(st.tuples(st.integers(0, 5), st.tuples(st.integers(0, 3)))), st.integers(0, 3), st.integers(1, 4))
def test_the_caps_hold_and_the_newest_is_always_there(
    inserts: list[tuple[int, tuple[int, ...]]], guesses: int, keys: int
) -> None:
    pool = NgramPool(2, guesses, keys)
    for key, continuation in inserts:
        pool.insert(key, continuation)
        if guesses:
            assert held(pool, key)[0] == continuation
    statistics = pool.statistics()
    assert statistics.keys <= keys
    assert statistics.fan_out_max <= guesses


def test_entries_are_the_most_recent_first_with_their_occurrences_in_the_text() -> None:
    pool = NgramPool(3, 5)
    pool.insert(1, (7, 7))
    pool.learn([1, 2, 3, 1, 2, 3, 1, 4, 4])
    assert pool.entries(1) == [((4, 4), 1), ((2, 3), 2), ((7, 7), 0)]
    assert pool.entries(5) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.tuples(st.integers(0, 3)), st.integers(0, 1)), max_size=20))
def test_asking_for_entries_changes_nothing(inserts: list[tuple[int, tuple[int, ...], int]]) -> None:
    asked, other = (NgramPool(2, 3, keys=3) for _ in range(2))
    for key, continuation, occurrences in inserts:
        asked.insert(key, continuation, occurrences)
        other.insert(key, continuation, occurrences)
        for each in range(4):
            asked.entries(each)
    assert asked.statistics() == other.statistics()
    for key in range(4):
        assert [continuation for continuation, _ in asked.entries(key)] == held(other, key)


def knowledge(pool: NgramPool) -> Known:
    """Each key's n-grams and how often the text has them."""
    return {key: dict(pool.entries(key)) for key in range(TOKENS)}


def ngrams(text: list[int], ngram: int) -> Known:
    """The same by definition."""
    known: Known = {key: {} for key in range(TOKENS)}
    for first in range(len(text) - ngram + 1):
        bucket, found = known[text[first]], tuple(text[first + 1 : first + ngram])
        bucket[found] = bucket.get(found, 0) + 1
    return known


@given(texts, sizes, st.lists(st.integers(0, 25), max_size=4))
def test_each_ngram_is_learned_once_in_whatever_pieces(text: list[int], ngram: int, cuts: list[int]) -> None:
    pool, start = NgramPool(ngram, 100), 0
    for cut in sorted(cuts):
        start = pool.learn(text[:cut], start)
    start = pool.learn(text, start)
    pool.learn(text, start)
    assert knowledge(pool) == ngrams(text, ngram)

"""The n-gram pool: least recently used out first, by key and by n-gram; learning; statistics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lacli.pool import NgramPool


def held(pool: NgramPool, key: int) -> list[tuple[int, ...]]:
    return list(pool.lookup(key))


def test_lookup_gives_the_most_recent_first() -> None:
    pool = NgramPool(3, 4)
    for continuation in [(1, 1), (2, 2), (3, 3)]:
        pool.insert(9, continuation)
    assert held(pool, 9) == [(3, 3), (2, 2), (1, 1)]


def test_inserting_again_makes_it_the_most_recent_and_not_a_second_one() -> None:
    pool = NgramPool(3, 4)
    for continuation in [(1, 1), (2, 2), (1, 1)]:
        pool.insert(9, continuation)
    assert held(pool, 9) == [(1, 1), (2, 2)]


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


def test_no_guesses_means_nothing_is_kept() -> None:
    pool = NgramPool(3, 0)
    pool.learn([1, 2, 3, 4, 5])
    assert held(pool, 1) == []
    assert pool.statistics().keys == 0


def test_learning_adds_every_complete_ngram_from_the_start_index_on() -> None:
    pool = NgramPool(3, 5)
    pool.learn([1, 2, 3, 4, 5], start=1)
    assert held(pool, 1) == []
    assert held(pool, 2) == [(3, 4)]
    assert held(pool, 3) == [(4, 5)]
    assert held(pool, 4) == []


def test_a_text_shorter_than_an_ngram_teaches_nothing() -> None:
    pool = NgramPool(5, 5)
    pool.learn([1, 2, 3])
    assert pool.statistics().ngrams == 0


def test_a_chain_follows_the_end_of_each_ngram() -> None:
    pool = NgramPool(3, 2)
    pool.learn([1, 2, 3, 4, 5])
    assert pool.chain(1, 10) == [2, 3, 4, 5]
    assert pool.chain(1, 3) == [2, 3, 4]
    assert pool.chain(99, 3) == []


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


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 30), st.integers(2, 4))
def test_what_a_text_taught_can_be_taken_back(tokens: list[int], length: int, ngram: int) -> None:
    pool, shorter = NgramPool(ngram, 100), NgramPool(ngram, 100)
    pool.learn(tokens)
    pool.forget(tokens, max(length - ngram + 1, 0))
    shorter.learn(tokens[:length])
    for key in range(4):
        assert sorted(held(pool, key)) == sorted(held(shorter, key))
    assert pool.statistics().keys == shorter.statistics().keys


def test_forgetting_leaves_what_the_window_found() -> None:
    pool = NgramPool(3, 5)
    pool.insert(9, (1, 1))
    pool.learn([9, 2, 2])
    pool.forget([9, 2, 2])
    pool.forget([9, 1, 1])
    assert held(pool, 9) == [(1, 1)]


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

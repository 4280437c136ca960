"""The n-gram pool: least recently used out first, by key and by n-gram; what texts teach it, and take back."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.pool import NgramPool, TextNgrams
from tests.session.test_reuse import ctrl_c_at_line

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
    pool = NgramPool(ngram, 100)
    taught = TextNgrams(pool)
    for cut in sorted(cuts):
        taught.learn(text[:cut])
    taught.learn(text)
    taught.learn(text)
    assert knowledge(pool) == ngrams(text, ngram)


@given(texts, sizes, st.integers(0, 25), texts)
@settings(max_examples=60)
def test_a_text_cut_back_at_any_length_leaves_what_the_shorter_one_teaches(
    text: list[int], ngram: int, begin: int, more: list[int]
) -> None:
    for length in range(len(text) + 1):
        pool = NgramPool(ngram, 100)
        taught = TextNgrams(pool)
        taught.learn(text[:begin])
        taught.learn(text)
        taught.truncate(text, length)
        assert knowledge(pool) == ngrams(text[:length], ngram)
        now = [*text[:length], *more]
        taught.refresh(now)
        taught.learn(now)
        assert knowledge(pool) == ngrams(now, ngram)


@given(texts, sizes, st.lists(st.integers(0, 25), max_size=5), texts)
def test_it_may_be_cut_back_again_and_again(text: list[int], ngram: int, cuts: list[int], more: list[int]) -> None:
    pool = NgramPool(ngram, 100)
    taught = TextNgrams(pool)
    for cut in cuts:
        taught.learn(text)
        taught.truncate(text, cut)
        text = [*text[:cut], *more]
    taught.learn(text)
    assert knowledge(pool) == ngrams(text, ngram)


@given(texts, texts, sizes)
def test_what_is_skipped_is_never_learned_and_never_taken_back(prompt: list[int], text: list[int], ngram: int) -> None:
    pool = NgramPool(ngram, 100)
    before = knowledge(pool)
    taught = TextNgrams(pool)
    taught.skip(prompt)
    taught.learn(prompt)
    assert knowledge(pool) == before
    taught.learn([*prompt, *text])
    begun = sum(len(bucket) for bucket in knowledge(pool).values())
    assert begun <= len(text)
    taught.truncate([*prompt, *text], 0)
    assert knowledge(pool) == before


def test_refreshing_makes_the_text_s_ngrams_the_most_recent_ones_and_counts_them_once() -> None:
    pool = NgramPool(3, 5)
    taught = TextNgrams(pool)
    taught.learn([1, 2, 3, 0])
    pool.insert(1, (0, 0))
    assert pool.entries(1) == [((0, 0), 0), ((2, 3), 1)]
    taught.refresh([1, 2, 3, 0])
    assert pool.entries(1) == [((2, 3), 1), ((0, 0), 0)]


def test_what_the_window_found_too_stays_when_the_text_goes() -> None:
    pool = NgramPool(3, 5)
    taught = TextNgrams(pool)
    pool.insert(1, (0, 0))
    taught.learn([1, 2, 3])
    taught.truncate([1, 2, 3], 0)
    assert pool.entries(1) == [((0, 0), 0)]


def test_an_interrupt_at_any_line_leaves_nothing_that_is_never_taken_back() -> None:
    text = [1, 2, 3, 1, 2, 3, 1, 2]
    for line in count(1):
        pool = NgramPool(3, 5)
        taught = TextNgrams(pool)
        taught.learn(text[:5])
        with suppress(KeyboardInterrupt), ctrl_c_at_line(line) as lines:
            taught.learn(text)
            taught.truncate(text, 4)
            taught.learn(text)
        taught.truncate(text, 0)
        left = sum(occurrences for key in range(TOKENS) for _, occurrences in pool.entries(key))
        # The n-grams of the call in which it came may stay, as those that a window found do.
        assert left <= len(text)
        taught.learn(text)
        assert all(set(found) <= set(knowledge(pool)[key]) for key, found in ngrams(text, 3).items())
        if not lines.reached:
            assert left == 0
            return

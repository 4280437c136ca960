"""The pool as a source: whose n-grams it gives, how far, and what it learns from what was accepted."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from lacli.auto.planner import Guess
from lacli.auto.pool_source import DEPTHS, EXPECTED, RANKS, PoolSource
from lacli.pool import NgramPool
from lacli.tree import Origin
from tests.fakes.recorded_acceptance import RecordedAcceptance

TOKENS = 4
texts = st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=25)
found = st.lists(st.tuples(*[st.integers(0, TOKENS - 1)] * 3), max_size=8)
sizes = st.integers(2, 5)


def taught(ngram: int = 3, guesses: int = 100, acceptance: RecordedAcceptance | None = None) -> PoolSource:
    pool = NgramPool(ngram, guesses)
    return PoolSource(pool, Origin.POOL, acceptance, teaches=True)


def paths(source: PoolSource, text: Sequence[int]) -> list[list[Guess]]:
    """Each first guess with all that follows it."""
    chains = []
    for guess in source.first(text):
        chain = [guess]
        while below := source.after(chain[-1]):
            (guess,) = below
            chain.append(guess)
        chains.append(chain)
    return chains


def tokens(chains: list[list[Guess]]) -> list[tuple[int, ...]]:
    return [tuple(guess.token for guess in chain) for chain in chains]


def followed(text: list[int], ngram: int) -> list[tuple[int, ...]]:
    """What followed the text's last token there, the most recent first, each once."""
    ends = range(len(text) - ngram, -1, -1)
    return list(dict.fromkeys(tuple(text[end + 1 : end + ngram]) for end in ends if text[end] == text[-1]))


@given(texts, sizes)
def test_it_guesses_what_followed_the_last_token_in_the_text(text: list[int], ngram: int) -> None:
    source = taught(ngram)
    source.begin(text)
    assert tokens(paths(source, text)) == followed(text, ngram)


@given(texts, found)
def test_what_the_text_taught_and_what_a_window_found_are_two_sources(
    text: list[int], inserted: list[tuple[int, int, int]]
) -> None:
    pool = NgramPool(3, 100)
    mine, windows = PoolSource(pool, Origin.POOL, teaches=True), PoolSource(pool, Origin.WINDOW)
    for key, *continuation in inserted:
        pool.insert(key, tuple(continuation))
    for source in (mine, windows):
        source.begin(text)
    known = followed(text, 3)
    others = {tuple(more) for key, *more in inserted if key == text[-1]} - set(known)
    assert set(tokens(paths(mine, text))) == set(known)
    assert set(tokens(paths(windows, text))) == others


@given(texts)
def test_the_probability_is_that_of_the_rank_and_the_depth(text: list[int]) -> None:
    source = taught(ngram=6)
    source.begin(text)
    for rank, chain in enumerate(paths(source, text)):
        for depth, guess in enumerate(chain):
            expected = EXPECTED[min(rank, RANKS - 1) * DEPTHS + min(depth, DEPTHS - 1)]
            assert guess.probability == expected == source.acceptance.probability[EXPECTED.index(expected)]


@given(texts, texts, sizes)
def test_of_each_continuation_the_tokens_up_to_the_first_wrong_one_are_scored(
    text: list[int], more: list[int], ngram: int
) -> None:
    acceptance = RecordedAcceptance(EXPECTED)
    source = taught(ngram, acceptance=acceptance)
    source.begin(text)
    asked = tokens(paths(source, text))
    source.extend([*text, *more])
    expected = []
    for rank, continuation in enumerate(asked):
        for depth, (token, real) in enumerate(zip(continuation, more, strict=False)):
            expected.append((min(rank, RANKS - 1) * DEPTHS + min(depth, DEPTHS - 1), token == real))
            if token != real:
                break
    assert acceptance.seen == expected
    source.extend([*text, *more])
    assert acceptance.seen == expected


def test_without_a_teacher_nothing_of_the_text_is_learned() -> None:
    pool = NgramPool(3, 5)
    source = PoolSource(pool, Origin.WINDOW)
    source.begin([1, 2, 3, 1])
    source.extend([1, 2, 3, 1, 2, 3])
    assert pool.statistics().ngrams == 0 and not source.first([1])


def test_a_long_ngram_is_followed_to_its_end() -> None:
    source = taught(ngram=400)
    text = [*range(500), 0]
    source.begin(text)
    assert tokens(paths(source, text)) == [tuple(range(1, 400))]

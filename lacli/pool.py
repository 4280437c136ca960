"""The n-gram pool: n-grams by their first token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

Continuation = tuple[int, ...]


class PoolStatistics(NamedTuple):
    """Sizes of a pool. `hit_rate`: the share of its lookups that found an n-gram, 0.0 before the first lookup."""

    keys: int
    ngrams: int
    hit_rate: float


class NgramPool:
    """N-grams by their first token, the key: at most `keys` keys, and `guesses` n-grams a key. The oldest are dropped.

    Source: section 3.2 of the paper and Algorithm 2, line 29. With N = 3 and G = 2:

    >>> pool = NgramPool(ngram=3, guesses=2)
    >>> pool.learn([7, 1, 2, 7, 1, 3, 7, 4, 4])
    7
    >>> list(pool.lookup(7))
    [(4, 4), (1, 3)]
    """

    def __init__(self, ngram: int, guesses: int, keys: int = 10_000) -> None:
        self.ngram = ngram
        self.guesses = guesses
        self.max_keys = keys
        # A dict keeps insertion order, so its first entry is the least recently used one.
        self._by_key: dict[int, dict[Continuation, None]] = {}
        self._lookups = 0
        self._hits = 0

    def insert(self, key: int, continuation: Continuation) -> None:
        """Add the n-gram of `key` and the N-1 tokens of `continuation`, or make it the most recent of its key."""
        if not self.guesses:
            return
        bucket = self._by_key.pop(key, None)
        if bucket is None:
            bucket = {}
            if len(self._by_key) >= self.max_keys:
                del self._by_key[next(iter(self._by_key))]
        self._by_key[key] = bucket
        bucket.pop(continuation, None)
        # Delete first: an interrupt in between may lose an n-gram, but never leaves more than G.
        if len(bucket) >= self.guesses:
            del bucket[next(iter(bucket))]
        bucket[continuation] = None

    def learn(self, tokens: Sequence[int], start: int = 0) -> int:
        """Insert each n-gram of `tokens` from index `start` on. Return the `start` of a later call with more tokens."""
        end = max(len(tokens) - self.ngram + 1, start)
        for first in range(start, end):
            self.insert(tokens[first], tuple(tokens[first + 1 : first + self.ngram]))
        return end

    def lookup(self, key: int) -> Iterator[Continuation]:
        """Return the continuations of a token, N-1 tokens each, most recent first; count the call for the hit rate."""
        bucket = self._by_key.pop(key, None)
        self._lookups += 1
        if bucket is None:
            return iter(())
        self._by_key[key] = bucket
        self._hits += 1
        return reversed(bucket)

    def draft(self, token: int, length: int) -> list[int]:
        """Return up to `length` tokens after `token`: its latest n-gram, and on from the last token in the same way."""
        draft: list[int] = []
        while len(draft) < length and (bucket := self._by_key.get(token)):
            draft.extend(islice(next(reversed(bucket)), length - len(draft)))
            token = draft[-1]
        return draft

    def statistics(self) -> PoolStatistics:
        # In one call, during which no other thread changes the pool.
        ngrams = list(map(len, self._by_key.values()))
        return PoolStatistics(len(ngrams), sum(ngrams), self._hits / max(self._lookups, 1))

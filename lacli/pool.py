"""The n-gram pool: n-grams by first token, and those that texts bring to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

Continuation = tuple[int, ...]


@dataclass(frozen=True)
class PoolStatistics:
    """What a pool holds and how often it was of use.

    fan-out: continuations of one key. `hit_rate`: lookups so far that found at least one, 0 before the first.
    """

    keys: int
    ngrams: int
    fan_out_mean: float
    fan_out_median: float
    fan_out_max: int
    lookups: int
    hit_rate: float


class NgramPool:
    """N-grams by their first token: at most `guesses` a key and `keys` keys, least recently used out first.

    `found`: True if the last lookup found a continuation, None before the first one. What was learned of a text can be
    forgotten again when that text is taken back; what else was inserted stays.

    Source: section 3.2 of the paper and Algorithm 2, line 29. With N = 3 and G = 2:

    >>> pool = NgramPool(ngram=3, guesses=2)
    >>> pool.learn([7, 1, 2, 7, 1, 3, 7, 4, 4])
    >>> list(pool.lookup(7))
    [(4, 4), (1, 3)]
    """

    def __init__(self, ngram: int, guesses: int, keys: int = 10_000) -> None:
        self.ngram = ngram
        self.guesses = guesses
        self.max_keys = keys
        self.found: bool | None = None
        # A dict keeps insertion order, so its first entry is the least recently used one.
        # An n-gram's number: how often the text that was learned has it, 0 where it came from elsewhere.
        self._by_key: dict[int, dict[Continuation, int]] = {}
        self._lookups = 0
        self._hits = 0

    def insert(self, key: int, continuation: Continuation, occurrences: int = 0) -> None:
        """Add one n-gram, or make it the most recent one of its key. `occurrences`: in the text being learned."""
        if not self.guesses:
            return
        bucket = self._by_key.pop(key, None)
        if bucket is None:
            bucket = {}
            if len(self._by_key) >= self.max_keys:
                del self._by_key[next(iter(self._by_key))]
        self._by_key[key] = bucket
        occurrences += bucket.pop(continuation, 0)
        # Before it is entered: an interrupt in between may lose an n-gram, but never leaves more than G.
        if len(bucket) >= self.guesses:
            del bucket[next(iter(bucket))]
        bucket[continuation] = occurrences

    def learn(self, tokens: Sequence[int], start: int = 0, *, again: bool = False) -> None:
        """Insert every n-gram of a text that begins at index `start` or later.

        `again`: they were learned before and are fresh now; only those that were pushed out since are counted anew.
        """
        for first in range(start, len(tokens) - self.ngram + 1):
            key, continuation = tokens[first], tuple(tokens[first + 1 : first + self.ngram])
            counted = again and continuation in self._by_key.get(key, ())
            self.insert(key, continuation, 0 if counted else 1)

    def forget(self, tokens: Sequence[int], start: int = 0) -> None:
        """Take back what `learn` did with the same text from the same index on, as far as it is still here."""
        for first in range(start, len(tokens) - self.ngram + 1):
            bucket, continuation = self._by_key.get(tokens[first], {}), tuple(tokens[first + 1 : first + self.ngram])
            occurrences = bucket.get(continuation, 0)
            if occurrences > 1:
                bucket[continuation] = occurrences - 1
            elif occurrences:
                del bucket[continuation]
                if not bucket:
                    del self._by_key[tokens[first]]

    def lookup(self, key: int) -> Iterator[Continuation]:
        """The continuations of a token, N-1 tokens each, most recent first; counted for the hit rate."""
        bucket = self._by_key.pop(key, None)
        self._lookups += 1
        self.found = bucket is not None
        if bucket is None:
            return iter(())
        self._by_key[key] = bucket
        self._hits += 1
        return reversed(bucket)

    def entries(self, key: int) -> list[tuple[Continuation, int]]:
        """The continuations of a token, most recent first, each with its occurrences in the text, 0 for a find."""
        return list(reversed(self._by_key.get(key, {}).items()))

    def draft(self, token: int, length: int) -> list[int]:
        """Return at most `length` tokens that may follow: each n-gram's end is looked up in turn."""
        draft: list[int] = []
        while len(draft) < length and (bucket := self._by_key.get(token)):
            draft.extend(islice(next(reversed(bucket)), length - len(draft)))
            token = draft[-1]
        return draft

    def statistics(self) -> PoolStatistics:
        """Sizes, fan-out and hit rate as they are now."""
        # In one call, during which no other thread changes the pool.
        fan_outs = list(map(len, self._by_key.values()))
        ngrams = sum(fan_outs)
        return PoolStatistics(
            keys=len(fan_outs),
            ngrams=ngrams,
            fan_out_mean=ngrams / len(fan_outs) if fan_outs else 0.0,
            fan_out_median=float(median(fan_outs)) if fan_outs else 0.0,
            fan_out_max=max(fan_outs, default=0),
            lookups=self._lookups,
            hit_rate=self._hits / self._lookups if self._lookups else 0.0,
        )


class TextNgrams:
    """The n-grams of one text in a pool: learned as the text grows, forgotten as it is cut back."""

    def __init__(self, pool: NgramPool) -> None:
        self._pool = pool
        # Where on the text the n-grams begin that the pool has learned, and where the next one will.
        self._spans: list[tuple[int, int]] = []
        self._next = 0

    def skip(self, tokens: Sequence[int]) -> None:
        """Learn none of what the text is so far."""
        self._next = max(self._next, len(tokens))

    def refresh(self, tokens: Sequence[int]) -> None:
        """Make the text's n-grams the most recent ones: what was found since would push them out where G is small."""
        for begin, end in self._spans:
            self._pool.learn(tokens[: end + self._pool.ngram - 1], begin, again=True)

    def learn(self, tokens: Sequence[int]) -> None:
        """Put the n-grams that the text has completed since the last call into the pool."""
        complete = len(tokens) - self._pool.ngram + 1
        if complete > self._next:
            self._pool.learn(tokens, self._next)
            begin = self._spans.pop()[0] if self._spans and self._spans[-1][1] == self._next else self._next
            self._spans.append((begin, complete))
            self._next = complete

    def truncate(self, tokens: Sequence[int], length: int) -> None:
        """Forget what is not complete in the first `length` tokens of the text, which is still whole here."""
        ngram = self._pool.ngram
        self._next = min(self._next, max(length - ngram + 1, 0))
        while self._spans and self._spans[-1][1] > self._next:
            begin, end = self._spans.pop()
            self._pool.forget(tokens[: end + ngram - 1], max(begin, self._next))
            if begin < self._next:
                self._spans.append((begin, self._next))

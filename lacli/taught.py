"""What a text has taught a pool: the n-grams of its beginning, which can be taken back with the text.

Token ids only. The pool itself is `pool.py`; who asks it are the modes.
"""

from __future__ import annotations

from collections.abc import Sequence

from lacli.pool import NgramPool


class Taught:
    """Learns a text's n-grams into a pool as it grows, and forgets them as it is cut back."""

    def __init__(self, pool: NgramPool) -> None:
        self._pool = pool
        # Where on the text the n-grams begin that the pool has learned, and where the next one will.
        self._spans: list[tuple[int, int]] = []
        self._next = 0

    def skip(self, text: Sequence[int]) -> None:
        """Learn none of what the text is so far."""
        self._next = max(self._next, len(text))

    def refresh(self, text: Sequence[int]) -> None:
        """Make the text's n-grams the most recent ones: what was found since would push them out where G is small."""
        for begin, end in self._spans:
            self._pool.learn(text[: end + self._pool.ngram - 1], begin, again=True)

    def learn(self, text: Sequence[int]) -> None:
        """Put the n-grams that the text has completed since the last call into the pool."""
        complete = len(text) - self._pool.ngram + 1
        if complete > self._next:
            self._pool.learn(text, self._next)
            begin = self._spans.pop()[0] if self._spans and self._spans[-1][1] == self._next else self._next
            self._spans.append((begin, complete))
            self._next = complete

    def truncate(self, text: Sequence[int], length: int) -> None:
        """Forget what is not complete in the first `length` tokens of the text, which is still whole here."""
        ngram = self._pool.ngram
        self._next = min(self._next, max(length - ngram + 1, 0))
        while self._spans and self._spans[-1][1] > self._next:
            begin, end = self._spans.pop()
            self._pool.forget(text[: end + ngram - 1], max(begin, self._next))
            if begin < self._next:
                self._spans.append((begin, self._next))

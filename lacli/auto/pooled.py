"""The pool as a source: continuations of the text's last token, of those that the text taught or that the window found.

What a pool keeps is `pool.py`; the window's rows in a step are `columns.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lacli.auto.belief import Belief
from lacli.auto.source import Guess, Source
from lacli.pool import Continuation, NgramPool, Taught
from lacli.tree import Origin

RANKS, DEPTHS = 4, 4
"""Places in a pool that are told apart: by recency, and by depth in the n-gram; the last ones stand for all behind."""

EXPECTED = (
    *(0.27, 0.66, 0.76, 0.77),
    *(0.19, 0.63, 0.55, 0.67),
    *(0.15, 0.43, 0.36, 0.5),
    *(0.06, 0.45, 0.55, 0.7),
)
"""How often a continuation's tokens came true, by rank and depth. Source: docs/auto.md."""

DEEPEST = 1 << 16


class Pooled(Source):
    """Guesses from a pool. origin: WINDOW takes the n-grams that the text does not hold, POOL those that it taught."""

    expected = EXPECTED

    def __init__(
        self, pool: NgramPool, origin: Origin, taught: Taught | None = None, belief: Belief | None = None
    ) -> None:
        """taught: learns the text into the pool here, where no one else does."""
        self.origin = origin
        self.belief = belief or Belief(EXPECTED)
        self._pool = pool
        self._taught = taught
        self._asked: list[Continuation] = []
        self._asked_at = 0
        self._fresh = False

    def begin(self, text: Sequence[int]) -> None:
        self._asked = []
        self._fresh = False

    def truncate(self, text: Sequence[int], length: int) -> None:
        self._asked = []
        if self._taught:
            self._taught.truncate(text, length)

    def extend(self, text: Sequence[int]) -> None:
        for rank, continuation in enumerate(self._asked):
            self._score(rank, continuation, text[self._asked_at : self._asked_at + len(continuation)])
        self._asked = []
        self._teach(text)

    def first(self, text: Sequence[int]) -> Sequence[Guess]:
        self._teach(text)
        wanted = self.origin is Origin.POOL
        entries = self._pool.entries(text[-1])
        self._asked = [continuation for continuation, occurrences in entries if (occurrences > 0) == wanted]
        self._asked_at = len(text)
        return [self._guess(rank, 0) for rank in range(len(self._asked))]

    def _teach(self, text: Sequence[int]) -> None:
        """Let the pool learn the text, not before somebody asks: where rows are dear nobody does."""
        if self._taught:
            if not self._fresh:
                self._taught.refresh(text)
                self._fresh = True
            self._taught.learn(text)

    def after(self, guess: Guess) -> Sequence[Guess]:
        rank, depth = divmod(guess.place, DEEPEST)
        return [self._guess(rank, depth)] if depth < len(self._asked[rank]) else ()

    def _guess(self, rank: int, depth: int) -> Guess:
        chance = self.belief.probability[_kind(rank, depth)]
        return Guess(self._asked[rank][depth], chance, rank * DEEPEST + depth + 1)

    def _score(self, rank: int, continuation: Continuation, came: Sequence[int]) -> None:
        for depth, (token, real) in enumerate(zip(continuation, came, strict=False)):
            self.belief.saw(_kind(rank, depth), token == real)
            if token != real:
                return


def _kind(rank: int, depth: int) -> int:
    return min(rank, RANKS - 1) * DEPTHS + min(depth, DEPTHS - 1)

"""The pool source: continuations of the text's last token from the text itself or from the window."""

from __future__ import annotations

from collections.abc import Sequence

from lacli.auto.acceptance import AcceptanceEstimate
from lacli.auto.planner import Guess, Source
from lacli.pool import Continuation, NgramPool, TextNgrams
from lacli.tree import Origin

RANKS, DEPTHS = 4, 4
"""Places told apart, by recency and by depth in the n-gram; the last ones stand for all behind them."""

EXPECTED = (
    *(0.27, 0.66, 0.76, 0.77),
    *(0.19, 0.63, 0.55, 0.67),
    *(0.15, 0.43, 0.36, 0.5),
    *(0.06, 0.45, 0.55, 0.7),
)
"""How often a continuation's tokens came true, by rank and depth.

Answers of Qwen2.5-Coder have up to 0.3 more (benchmarks.hit_rates); beginning with those lost 0.4% (benchmarks.replay).
"""

DEPTH_BASE = 1 << 16
"""A guess's place is its rank times this, plus its depth."""


class PoolSource(Source):
    """Guesses from a pool. `origin`: POOL takes the n-grams of the text itself, WINDOW all others."""

    def __init__(
        self,
        pool: NgramPool,
        origin: Origin,
        text_ngrams: TextNgrams | None = None,
        acceptance: AcceptanceEstimate | None = None,
    ) -> None:
        """Guess from `pool`; `text_ngrams` writes the text's n-grams into it if nothing else does."""
        super().__init__()
        self.origin = origin
        self.acceptance = acceptance or AcceptanceEstimate(EXPECTED)
        self._pool = pool
        self._text_ngrams = text_ngrams
        self._asked: list[Continuation] = []
        self._asked_at = 0
        self._fresh = False

    def begin(self, text: Sequence[int]) -> None:
        self._asked = []
        self._fresh = False

    def truncate(self, text: Sequence[int], length: int) -> None:
        self._asked = []
        if self._text_ngrams:
            self._text_ngrams.truncate(text, length)

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
        """Write the text into the pool on the first request for guesses: where rows are dear there is none."""
        if self._text_ngrams:
            if not self._fresh:
                self._text_ngrams.refresh(text)
                self._fresh = True
            self._text_ngrams.learn(text)

    def after(self, guess: Guess) -> Sequence[Guess]:
        rank, depth = divmod(guess.place, DEPTH_BASE)
        return [self._guess(rank, depth)] if depth < len(self._asked[rank]) else ()

    def _guess(self, rank: int, depth: int) -> Guess:
        chance = self.acceptance.probability[_kind(rank, depth)]
        return Guess(self._asked[rank][depth], chance, rank * DEPTH_BASE + depth + 1)

    def _score(self, rank: int, continuation: Continuation, came: Sequence[int]) -> None:
        for depth, (token, real) in enumerate(zip(continuation, came, strict=False)):
            self.acceptance.record(_kind(rank, depth), token == real)
            if token != real:
                return


def _kind(rank: int, depth: int) -> int:
    return min(rank, RANKS - 1) * DEPTHS + min(depth, DEPTHS - 1)

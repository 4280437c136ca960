"""The pool source: continuations of the text's last token from the text itself or from the window."""

from __future__ import annotations

from collections.abc import Sequence

from lacli.auto.acceptance import AcceptanceEstimate
from lacli.auto.planner import Guess, Source
from lacli.pool import Continuation, NgramPool
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
    """Drafts n-grams of a pool. `origin`: POOL takes those of sequences, WINDOW all others."""

    def __init__(
        self, pool: NgramPool, origin: Origin, acceptance: AcceptanceEstimate | None = None, *, teaches: bool = False
    ) -> None:
        """Draft from `pool`; `teaches`: write the sequence's own n-grams into it, which nothing else does."""
        super().__init__()
        self.origin = origin
        self.acceptance = acceptance or AcceptanceEstimate(EXPECTED)
        self._pool = pool
        self._teaches = teaches
        self._unlearned = 0
        self._asked: list[Continuation] = []
        self._asked_at = 0

    def begin(self, text: Sequence[int]) -> None:
        """Wait with the prompt for the first request: where rows are dear there is none."""

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
        if self._teaches:
            self._unlearned = self._pool.learn(text, self._unlearned)

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

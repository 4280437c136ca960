"""How often drafted tokens of each kind are accepted."""

from __future__ import annotations

from collections.abc import Sequence

DECAY = 0.98
"""Weight of a draft when the next one of its kind comes: about the last fifty decide. Source: docs/auto.md."""

EXPECTED_TRIES = 6.0
"""Drafts that an expected rate counts as at first."""

MAX_RATE = 0.999
"""Two drafts for one place that are both certain would contradict each other."""


class HitRates:
    """Accepted over drafted tokens of each kind in one sequence; a source defines its kinds.

    `rates`: of each kind now.

    >>> hits = HitRates([0.5, 0.9])
    >>> hits.record(0, True)
    >>> hits.rates[0] > 0.5
    True
    """

    def __init__(self, expected: Sequence[float]) -> None:
        """Begin with the `expected` rate of each kind."""
        self.rates = [min(rate, MAX_RATE) for rate in expected]
        self._hits = [EXPECTED_TRIES * rate for rate in expected]
        self._tries = [EXPECTED_TRIES] * len(expected)

    def record(self, kind: int, hit: bool) -> None:
        """Record whether a drafted token of this kind was accepted."""
        hits = self._hits[kind] = self._hits[kind] * DECAY + hit
        tries = self._tries[kind] = self._tries[kind] * DECAY + 1.0
        self.rates[kind] = min(hits / tries, MAX_RATE)

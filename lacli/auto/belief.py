"""How often guesses of a kind come true: learned while running, and soon forgotten again when the subject changes.

Numbers only; what a kind is (a match length, a probability, a place in a pool) the sources decide.
"""

from __future__ import annotations

from collections.abc import Sequence

DECAY = 0.98
"""What a try still counts one try of its kind later: about the last fifty decide."""

PRIOR_TRIES = 6.0
"""Tries that an expectation counts as, beside those that are seen; it fades with them."""


SUREST = 0.999
"""Nothing is certain: a kind that has always come true does not rule out all others."""


class Belief:
    """Hits over tries of some kinds of guesses, each try worth a little less than the one after it.

    probability: of each kind now.

    >>> belief = Belief([0.5, 0.9])
    >>> belief.saw(0, True)
    >>> belief.probability[0] > 0.5
    True
    """

    def __init__(self, expected: Sequence[float], decay: float = DECAY) -> None:
        """expected: the probability of each kind before any was tried."""
        self.probability = [min(chance, SUREST) for chance in expected]
        self._decay = decay
        self._hits = [PRIOR_TRIES * chance for chance in expected]
        self._tries = [PRIOR_TRIES] * len(expected)

    def saw(self, kind: int, hit: bool) -> None:
        """A guess of this kind was tried: whether it came true."""
        hits = self._hits[kind] = self._hits[kind] * self._decay + hit
        tries = self._tries[kind] = self._tries[kind] * self._decay + 1.0
        self.probability[kind] = min(hits / tries, SUREST)

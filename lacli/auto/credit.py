"""What guessing may lose: a little at first, a small share of the run, and what it has gained.

In plain steps. It bounds the worst case: a run in which every guess is wrong is hardly longer than a plain one.
"""

from __future__ import annotations

FIRST = 2.0
"""Plain steps that may be lost before anything was gained."""

SHARE = 0.01
"""The part of a run that may be lost besides."""

MOST, LEAST = 12.0, -12.0
"""Gains and debts that are remembered: a run that went well must not lose it all, one that went badly may recover."""


MARGIN, CAUTION, CALM = 1.08, 0.3, 4.0
"""How much better than a plain step a step with guesses must look, how much more where there is no credit, and the
credit from which the first is enough: expectations are a little too bright, and at first they are the least known."""


class Credit:
    """An account of plain steps: what guesses won and lost."""

    def __init__(self) -> None:
        self._balance = FIRST

    @property
    def dearest(self) -> float:
        """Plain steps that a step may cost: it brings one token at least."""
        return 1 + self._balance

    @property
    def margin(self) -> float:
        """Times as good as a plain step that one with guesses must look."""
        return MARGIN + CAUTION * max(1 - self._balance / CALM, 0.0)

    def book(self, tokens: int, cost: float) -> None:
        """A step with guesses brought so many tokens and cost so many plain steps."""
        self._balance = min(max(self._balance + tokens - cost + SHARE * tokens, LEAST), MOST)

    def pass_plain(self, steps: int) -> None:
        """So many plain steps were taken."""
        self._balance = min(self._balance + SHARE * steps, MOST)

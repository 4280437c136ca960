"""What drafts may lose: it bounds how much slower than plain decoding a run can be."""

from __future__ import annotations

INITIAL_BALANCE, MIN_BALANCE, MAX_BALANCE = 2.0, -12.0, 12.0
"""Plain steps that drafts may lose before they gain anything, and the bounds of the balance of losses and gains."""

LEAST_AT_FIRST = 1.0
"""Plain steps that drafts may lose in a sequence whatever they lost in those before it."""

SHARE = 0.01
"""Part of a run that drafts may lose besides: a run of wrong drafts is hardly longer than a plain one."""

MARGIN, EXTRA_MARGIN, AMPLE_BALANCE = 1.08, 0.3, 4.0
"""Ratio to plain decoding that a draft must promise, what an empty balance adds, and the balance that adds nothing.

Hit rates are a little too bright, and least known at first.
"""

REGAINED, MAX_REGAINED = 0.25, 6.0
"""Plain steps of losses that are forgotten for each token of a long copy while nothing may be spent, and in a sequence.

Without this an answer whose first draft failed never followed its copies: mode auto was 0.6% slower, and 10% in three
classes (benchmarks.replay).
"""


class LossBudget:
    """Plain steps that drafts have saved and lost."""

    def __init__(self) -> None:
        self._balance, self._regained = INITIAL_BALANCE, 0.0

    def begin(self) -> None:
        """Forget the losses of the sequence before: those on a busy machine stopped drafts for 600 tokens."""
        self._balance, self._regained = max(self._balance, LEAST_AT_FIRST), 0.0

    @property
    def max_cost(self) -> float:
        """Plain steps that a step may cost; it brings at least one token."""
        return 1 + self._balance

    @property
    def margin(self) -> float:
        """Tokens per plain step that a step with drafts must promise."""
        return MARGIN + EXTRA_MARGIN * max(1 - self._balance / AMPLE_BALANCE, 0.0)

    def record(self, tokens: float, cost: float) -> None:
        """Book a step that brought `tokens` to each sequence at `cost` plain steps."""
        self._balance = min(max(self._balance + tokens - cost + SHARE, MIN_BALANCE), MAX_BALANCE)

    def regain(self) -> None:
        """Forget some of the losses, since a step without drafts went on with a long copy."""
        if self._balance < 0 and self._regained < MAX_REGAINED:
            self._balance += REGAINED
            self._regained += REGAINED

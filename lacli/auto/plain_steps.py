"""Steps without guesses: what one costs now, when the next is due, and what going back to one row costs."""

from __future__ import annotations

from collections import deque
from statistics import median_low

RETURN_S, MAX_RETURN, RETURNS = 2e-4, 2.0, 8
"""Seconds that going back to one row costs at first (llama.cpp builds another graph: 0.2 ms on the 7M model), the
most plain steps it may cost, and the number of steps whose mean it is."""

PLAIN_STEPS, MIN_PLAIN = 9, 2
"""Latest plain steps whose median is the cost of one, and plain steps timed before others are compared with them."""

PATIENCE, MAX_PATIENCE = 16, 64
"""Steps with guesses after which a plain step is timed again, at first and at most; it doubles each time."""

JUMP = 1.5
"""Slow-down beyond which a step is an outlier, where one of its size was seen before."""


class PlainSteps:
    """Times of single-row steps: the seconds of one, when the next is due, and what going back to one row costs.

    `larger`: steps of more rows since the last plain one. `change`: plain steps that a step costs more behind one of
    another number of rows. `return_cost`: those of going back to one row, for each step of more rows.
    `is_return_known`: False while both are guessed or as measured before the run.
    """

    def __init__(self, change_s: float | None = None) -> None:
        """`change_s`: seconds that a change of rows costs, as `lacli cost` has measured it."""
        self._change_s = RETURN_S if change_s is None else change_s
        self.larger = 0
        self.change = self.return_cost = 0.0
        self.is_return_known = False
        # The return cost in single-row steps, None once it was learned here; what is only handed on stays as it was.
        self._carried: float | None = None
        self._patience = PATIENCE
        self._times: deque[float] = deque(maxlen=PLAIN_STEPS)

    def __len__(self) -> int:
        return len(self._times)

    @property
    def seconds(self) -> float:
        """Median seconds of a plain step, 0 before the first."""
        # A median, since one of a few steps may meet a busy moment, or be the first of a context and slow for that.
        return median_low(self._times) if self._times else 0.0

    def of_other_texts(self, own_cost: float, other_cost: float) -> PlainSteps:
        """Return those of another number of texts; `own_cost`, `other_cost`: single-row steps that one costs."""
        steps = PlainSteps(self._change_s)
        steps.change = min(self.change * own_cost / other_cost, MAX_RETURN)
        steps._carried = self.return_cost * own_cost if self._carried is None else self._carried
        steps.return_cost = min(steps._carried / other_cost, MAX_RETURN)
        steps.is_return_known = self.is_return_known
        return steps

    @property
    def is_first_guess(self) -> bool:
        """True while the return cost is a guess that the first plain steps correct."""
        return len(self._times) <= MIN_PLAIN and not self.is_return_known

    def is_due(self, measured_s: float) -> bool:
        """Return True if a plain step has to be timed first; `measured_s`: seconds of one as once measured, or 0."""
        if self.larger >= self._patience or not self._times:
            return True
        # The first one may be slow for reasons of its own; that shows beside a measured one.
        return len(self._times) < MIN_PLAIN and self._times[0] > JUMP * measured_s

    def record(self, seconds: float) -> float:
        """Record a plain step and return its excess in plain steps, 0 unless it came behind a larger one."""
        if not self.larger:
            self._times.append(seconds)
            if self.is_first_guess:
                self._carried = None
                self.return_cost = min(self._change_s / self.seconds, MAX_RETURN / 2) if self.seconds else 0.0
                self.change = self.return_cost
            return 0.0
        plain = self.seconds
        excess = min(max(seconds / plain - 1, 0.0), MAX_RETURN)
        self._average(excess)
        self.change += (excess - self.change) / RETURNS
        if self.larger >= self._patience:
            self._patience = min(2 * self._patience, MAX_PATIENCE)
        self.larger = 0
        # Behind a larger step it tells only whether plain steps still cost what they did.
        if not plain / JUMP < seconds < plain * (JUMP + self.return_cost):
            self._times.clear()
        return excess

    def record_larger(self) -> None:
        """Count a step of more rows; behind another one it did not come back to a single row."""
        if self.larger:
            self._average(0.0)
        self.larger += 1

    def _average(self, excess: float) -> None:
        self._carried, self.is_return_known = None, True
        self.return_cost += (excess - self.return_cost) / RETURNS

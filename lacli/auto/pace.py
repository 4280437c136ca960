"""What a step of so many rows costs here and now: t(b), from what was measured before and from the steps themselves.

Seconds and rows only. The measured staircases are `lacli/cost`'s; without one the prompt's own decoding and the first
steps say how steep it is.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from lacli.cost.staircase import Cost, Staircase

UNKNOWN_ROW = 0.35
"""Plain steps that a further row is taken to cost, where nothing at all is known of the machine."""

LEAST_PREFILL = 16
"""Rows of a prompt from which its time says something about rows."""

SMALL_BATCHES = 1.3
"""How much dearer a row of a small step is than one of a long prompt."""

TRUST = 4
"""Steps that a measurement made before counts as."""

PLAIN_STEPS = 9
"""The latest plain steps, whose median is what one costs."""

PATIENCE = 8
"""Steps with guesses after which a plain one is timed again, at first; then twice as many each time."""

MEMORY = 12
"""Steps of a size that decide what it costs."""

JUMP = 1.5
"""A step counts as at most so much slower or faster than its size was: a busy moment is no new machine."""

TINY = 1e-3

CONTEXT_STEP = 256
"""Tokens after which the staircase of the longer text is asked for."""


class Pace:
    """The seconds of a plain step, and what others cost in plain steps.

    relative[b]: plain steps that one of b rows costs, up to `most` rows. slope[b]: the least that each further row
    costs from there on, on average up to any larger size.
    """

    def __init__(self, most: int, cost: Cost | None = None) -> None:
        self._most = most
        self._cost = cost if cost and cost.staircases else None
        self._row = UNKNOWN_ROW
        self._prefilled: tuple[int, float] | None = None
        self._plain_steps: deque[float] = deque(maxlen=PLAIN_STEPS)
        self._since = 0
        self._patience = PATIENCE
        self._known_for = -CONTEXT_STEP
        self._before: list[float] = []
        self._seen: dict[int, tuple[float, int]] = {}
        self.reach(0)

    def reach(self, context: int) -> None:
        """The text has so many tokens: where they cost something, the staircase there is another one."""
        if abs(context - self._known_for) >= CONTEXT_STEP:
            self._known_for = context
            self._before = self._expected(context)
            self._update()

    def prefilled(self, rows: int, seconds: float) -> None:
        """A prompt's rows took so long: without a measured staircase the best hint there is."""
        if rows >= LEAST_PREFILL and seconds > 0 and not self._cost:
            self._prefilled = rows, seconds

    def saw(self, rows: int, seconds: float) -> None:
        """A step took so long."""
        if rows == 1:
            self._plain_steps.append(seconds)
            self._since = 0
            if self._prefilled and len(self._plain_steps) > 1:
                self._expect_by_prompt(*self._prefilled)
        elif self.plain and rows <= self._most:
            self._since += 1
            self._saw_more(rows, seconds / self.plain)

    @property
    def doubtful(self) -> bool:
        """Whether a plain step has to be timed before others can be compared with it: at first, and now and then."""
        if self._since < self._patience:
            return not self._plain_steps
        self._patience *= 2
        return True

    @property
    def plain(self) -> float:
        """Seconds of a step of one row, 0 before the first."""
        # A median, since one of a few steps may meet a busy moment, or be the first of a context and slow for that.
        steps = sorted(self._plain_steps)
        return steps[(len(steps) - 1) // 2] if steps else 0.0

    def _saw_more(self, rows: int, relative: float) -> None:
        expected = self.relative[rows]
        mean, count = self._seen.get(rows, (expected, TRUST if self._cost else 0))
        if count:
            relative = min(max(relative, mean / JUMP), mean * JUMP)
        count = min(count + 1, MEMORY)
        mean += (max(relative, 1.0) - mean) / count
        self._seen[rows] = mean, count
        if abs(mean - expected) > 0.02 * expected:
            self._update()

    def _expect_by_prompt(self, rows: int, seconds: float) -> None:
        self._prefilled = None
        self._row = min(SMALL_BATCHES * seconds / rows / self.plain, 1.0)
        self._before = self._expected(self._known_for)
        self._update()

    def _expected(self, context: int) -> list[float]:
        """What was known of each size before its first step here."""
        stairs: Staircase | None = self._cost.at(context) if self._cost else None
        if stairs is None or stairs.most_rows == 1:
            return [1 + (rows - 1) * self._row for rows in range(self._most + 1)]
        # Where a size was measured as no dearer than one row, what is seen of it later must still make a difference.
        return [1.0, *(max(stairs.relative(rows), 1 + (rows - 1) * TINY) for rows in range(1, self._most + 1))]

    def _update(self) -> None:
        """Sizes that were seen cost what they did; others are off as the nearest seen one is, the less the farther."""
        relative = np.array(self._before)
        if self._seen:
            sizes = np.array(sorted(self._seen))
            means = np.array([self._seen[size][0] for size in sizes.tolist()])
            shares = np.maximum((means - 1) / np.maximum(relative[sizes] - 1, TINY), TINY)
            rows = np.arange(2, self._most + 1)
            apart = np.abs(np.log(rows)[:, None] - np.log(sizes))
            near = apart.argmin(axis=1)
            relative[2:] = 1 + (relative[2:] - 1) * shares[near] ** np.exp(-apart.min(axis=1))
        self.relative: list[float] = relative.tolist()
        self.slope: list[float] = _slopes(relative)


def _slopes(cost: npt.NDArray[np.float64]) -> list[float]:
    """By rows the least that each further row costs, on average, up to any larger size."""
    rows = np.arange(len(cost))
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = (cost - cost[:, None]) / (rows - rows[:, None])
    slopes[rows[:, None] >= rows] = np.inf
    least: list[float] = slopes.min(axis=1).tolist()
    return least

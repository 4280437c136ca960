"""What a step of so many rows costs here and now: t(b), from what was measured before and from the steps themselves.

Seconds and rows only. The measured staircases are `lacli/cost`'s; without one the prompt's own decoding and the first
steps say how steep it is.
"""

from __future__ import annotations

from collections import deque
from math import inf

import numpy as np
import numpy.typing as npt

from lacli.staircase import Cost, Staircase

UNKNOWN_ROW = 0.35
"""Plain steps that a further row is taken to cost, where nothing at all is known of the machine."""

LEAST_PREFILL = 16
"""Rows of a prompt from which its time says something about rows."""

DEAREST_ROW = 0.5
"""Plain steps that a row costs at most as far as a prompt's time is believed."""

SMALL_BATCHES = 1.3
"""How much dearer a row of a small step is than one of a long prompt."""

QUIET = 32
"""Steps after one that seemed to be held up in which no other is taken for such."""

SPREAD = 0.1
"""How much a size's cost must change until those beside it follow."""

RETURN_S = 2e-4
"""Seconds that a step with guesses costs besides, where nothing is known yet: its own work here, and llama.cpp's of
building another graph before and behind it."""

RETURNS = 8
MOST_RETURN = 2.0
"""Steps that decide what going back costs, and plain steps that it may cost at most."""

TRUST = 4
"""Steps that a measurement made before counts as."""

PLAIN_STEPS = 9
"""The latest plain steps, whose median is what one costs."""

LEAST_PLAIN = 2
"""Plain steps that are timed before others are compared with them."""

PATIENCE, MOST_PATIENCE = 16, 64
"""Steps with guesses after which a plain one is timed again, at first; then twice as many each time."""

MEMORY = 12
"""Steps of a size that decide what it costs."""

JUMP, FIRST_JUMP = 1.5, 2.0
"""Times as slow as its size was that a step is believed at once, of known sizes and of new ones."""

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
        self._known_for = 0
        self._single = 0.0
        self._mended = True
        self._before = self._expected(0)
        # By size how many times as much its further rows cost as expected, and how many steps say so.
        self._seen: dict[int, tuple[float, int]] = {}
        self._lately: set[int] = set()
        # The same when the sizes beside them were last mended by it.
        self._spread: dict[int, float] = {}
        self._return, self._returns = 0.0, False
        self._quiet = QUIET
        self.settle()

    def reach(self, context: int) -> None:
        """The text has so many tokens: where they cost something, the staircase there is another one."""
        if abs(context - self._known_for) >= CONTEXT_STEP:
            self._known_for = context
            # What looked too dear to be taken again would never be looked at again.
            self._seen = {rows: seen for rows, seen in self._seen.items() if rows in self._lately}
            self._lately = set()
            self._before = self._expected(context)
            self._mended = True

    def prefilled(self, rows: int, seconds: float) -> None:
        """A prompt's rows took so long: without a measured staircase the best hint there is."""
        if rows >= LEAST_PREFILL and seconds > 0 and not self._cost:
            self._prefilled = rows, seconds

    def saw(self, rows: int, seconds: float) -> float:
        """A step took so long: what it cost in plain steps, as far as it is believed.

        Of a plain step: what it cost beyond one, because it came behind a larger step.
        """
        if rows == 1:
            return self._saw_plain(seconds)
        if not self.plain or rows > self._most:
            return 1.0
        if self._since:
            self._weigh_return(0.0)
        self._since += 1
        return self._saw_more(rows, seconds / self.plain)

    def _saw_plain(self, seconds: float) -> float:
        if self._since:
            plain = self.plain
            excess = min(max(seconds / plain - 1, 0.0), MOST_RETURN)
            self._weigh_return(excess)
            if self._since >= self._patience:
                self._patience = min(2 * self._patience, MOST_PATIENCE)
            self._since = 0
            # Behind other steps it says only whether plain ones cost what they did.
            if not plain / JUMP < seconds < plain * (JUMP + self._return):
                self._plain_steps.clear()
            return excess
        self._plain_steps.append(seconds)
        if len(self._plain_steps) <= LEAST_PLAIN and not self._returns:
            self._return = min(RETURN_S / self.plain, MOST_RETURN / 2) if self.plain else 0.0
            self.relative[2:] = [cost + self._return for cost in self._cost_of[2:]]
        if self._prefilled and len(self._plain_steps) >= LEAST_PLAIN:
            self._expect_by_prompt(*self._prefilled)
        return 0.0

    def _weigh_return(self, excess: float) -> None:
        """What going back to one row costs on average, for each step that had more."""
        self._returns = True
        self._return += (excess - self._return) / RETURNS

    def _saw_more(self, rows: int, relative: float) -> float:
        expected = self._cost_of[rows]
        unit = max(self._before[rows] - 1, TINY)
        seen = rows in self._seen
        share, count = self._seen.get(rows, ((expected - 1) / unit, TRUST if self._cost else 0))
        most, booked = expected * (JUMP if seen else FIRST_JUMP), relative
        self._quiet += 1
        if relative <= most:
            relative = booked = max(relative, expected / JUMP if count else 1.0, 1.0)
        elif self._quiet < QUIET:
            count = 0
        else:
            # It may have been held up by something else. Where another one soon is so slow too, it was not.
            relative, self._quiet = most, 0
            booked, count = (most, count) if seen else (booked, 0)
        count = min(count + 1, MEMORY)
        share += ((relative - 1) / unit - share) / count
        self._seen[rows] = share, count
        self._lately.add(rows)
        self._mended = self._mended or abs(share - self._spread.get(rows, inf)) > SPREAD * share
        self._cost_of[rows] = 1 + unit * share
        self.relative[rows] = self._cost_of[rows] + self._return
        return booked

    @property
    def doubtful(self) -> bool:
        """Whether a plain step has to be timed before others can be compared with it: at first, and now and then."""
        if self._since >= self._patience or not self._plain_steps:
            return True
        # The first one may be slow for reasons of its own; that shows beside a measured one.
        return len(self._plain_steps) < LEAST_PLAIN and self._plain_steps[0] > JUMP * self._single

    @property
    def plain(self) -> float:
        """Seconds of a step of one row, 0 before the first."""
        # A median, since one of a few steps may meet a busy moment, or be the first of a context and slow for that.
        steps = sorted(self._plain_steps)
        return steps[(len(steps) - 1) // 2] if steps else 0.0

    def _expect_by_prompt(self, rows: int, seconds: float) -> None:
        self._prefilled = None
        # A prompt may be slow because the weights come from disk; then the first guesses have to find out.
        self._row = min(SMALL_BATCHES * seconds / rows / self.plain, DEAREST_ROW)
        self._before = self._expected(self._known_for)
        self._mended = True

    def _expected(self, context: int) -> npt.NDArray[np.float64]:
        """What was known of each size before its first step here."""
        stairs: Staircase | None = self._cost.at(context) if self._cost else None
        self._single = stairs.single if stairs else 0.0
        rows = np.arange(self._most + 1)
        if stairs is None or stairs.most_rows == 1:
            return np.asarray(1 + (rows - 1) * self._row, np.float64)
        sizes = [point.rows for point in stairs.points]
        cost: npt.NDArray[np.float64] = np.interp(rows, sizes, [stairs.relative(size) for size in sizes])
        beyond = range(sizes[-1] + 1, self._most + 1)
        cost[sizes[-1] + 1 :] = [stairs.relative(size) for size in beyond]
        # Where a size was measured as no dearer than one row, what is seen of it later must still make a difference.
        return np.asarray(np.maximum(cost, 1 + (rows - 1) * TINY), np.float64)

    def settle(self) -> None:
        """Let what was learned since the last call count in `relative` and `slope`.

        Sizes that were seen cost what they did; others are off as the nearest seen one is, the less the farther.
        """
        if not self._mended:
            return
        self._mended = False
        cost = np.array(self._before)
        self._spread = {rows: share for rows, (share, _) in self._seen.items()}
        if self._spread:
            sizes = np.array(list(self._spread))
            shares = np.maximum(list(self._spread.values()), TINY)
            rows = np.arange(2, self._most + 1)
            apart = np.abs(np.log(rows)[:, None] - np.log(sizes))
            near = apart.argmin(axis=1)
            cost[2:] = 1 + (cost[2:] - 1) * shares[near] ** np.exp(-apart.min(axis=1))
        self._cost_of: list[float] = cost.tolist()
        cost[2:] += self._return
        self.relative: list[float] = cost.tolist()
        self.slope: list[float] = _slopes(cost)


def _slopes(cost: npt.NDArray[np.float64]) -> list[float]:
    """By rows the least that each further row costs, on average, up to any larger size."""
    rows = np.arange(len(cost))
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = (cost - cost[:, None]) / (rows - rows[:, None])
    slopes[rows[:, None] >= rows] = np.inf
    least: list[float] = slopes.min(axis=1).tolist()
    return least

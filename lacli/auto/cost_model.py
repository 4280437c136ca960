"""What a step of b rows costs here and now: t(b) as measured before, corrected by the steps themselves."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from lacli.auto.plain_steps import JUMP, MIN_PLAIN, PlainSteps
from lacli.auto.step_cost import Cost

UNKNOWN_ROW = 0.35
"""Plain steps assumed for a further row where nothing is known of the machine; the first steps correct it."""

MIN_PREFILL, MAX_PREFILL_ROW, SMALL_BATCH = 16, 0.5, 1.3
"""Rows from which a prefill's time is a hint, plain steps a row that it may suggest at most, and the ratio of a small
batch's row to a long prefill's."""

OUTLIER_PAUSE = 32
"""Steps after an outlier in which no other step is taken for one: two slow steps are believed."""

NEIGHBOUR_CHANGE = 0.1
"""Relative change of a size's cost from which its neighbours follow."""

MEASURED_WEIGHT, MAX_WEIGHT = 4, 12
"""Steps that an earlier measurement counts as, and most steps that decide what a size costs."""

FIRST_JUMP = 2.0
"""Slow-down beyond which a step is an outlier where none of its size was seen before; JUMP counts for the others."""

MAX_ROW_COST = 2.0
"""Plain steps that a row may cost at most; a dearer step was held up by something else.

Two rows of Q8_0 cost 2.6 on two AVX-512 cores, and no machine was seen where a row costs more.
"""

LEAST_MEASURED = 8
"""Rows that the largest measured step must have, else the cost is learned as if nothing were measured.

Kernels that take rows by four let two rows cost 1.92 plain steps and four 1.76 (3B Q4_0, an EPYC core): by the first
two alone no guess would ever pay.
"""

FIRST_ROWS = 3
"""Rows of the first steps where nothing is known of the machine: a wrong guess costs a plain step or two."""

LEAST_CHANGE = 0.05
"""Plain steps that a change of rows must cost to be planned with: 1.2 on an H200 (0.5B), 0.02 and less on CPUs."""

MIN_COST = 1e-3
"""Plain steps that a further row costs at least, so that later times can still change its share."""

FILL_ROWS, FILL_SAVING = 3, 0.1
"""Rows by which a step of several texts is filled up at most, and the part of its time that this must save.

Repacked kernels of llama.cpp take rows by four and each row left over alone: 0.5B Q4_0 on an AVX-512 core takes 35.2 ms
for 3 rows, 23.6 for 4; 57.0 for 7, 44.2 for 8; 77.6 for 11, 63.3 for 12 (2026-11-23).
Only sizes that were measured before count: where those timed between answers did too, mode auto that knew nothing was
slower by 5% in edits of 3 texts, since plain steps had to be timed anew for each new size.
"""

CONTEXT_STEP, CONTEXT_STEPS = 256, 1024
"""Tokens of growth, or steps, after which costs are looked up anew.

A server's answers may all be short, and a size that looked too dear in a busy moment would never be looked at again;
four such contexts are long enough to see the others.
"""


@dataclass
class _Observed:
    """What steps of one size showed: the cost of its further rows as a multiple of the expected one.

    `count`: steps that say so. `followed`: the multiple that the neighbouring sizes follow. `recent`: since the context
    last changed.
    """

    share: float
    count: float
    followed: float = inf
    recent: bool = True

    def learn(self, share: float) -> None:
        """Take in what one more step showed."""
        self.count = min(self.count + 1, MAX_WEIGHT)
        self.share += (share - self.share) / self.count
        self.recent = True


class StepCostModel:
    """The seconds of a plain step here and now, and the cost of larger ones in plain steps.

    relative[b]: cost of a step of b rows, up to `max_rows`. slope[b]: least cost of a further row from there on, on
    average up to any larger size. filled[b]: rows of the step that b rows are filled up to where several texts decode;
    it is its cost that `relative` gives, and its rows that `set_texts` takes. `fills`: False if no step is.
    What a step showed counts for its own size at once, for the others and in `slope` from the next `refresh` on. Where
    several texts decode, their steps without guesses take the place of plain ones: they are what others are timed
    beside, and `plain_s` is what a single row would take by them.
    """

    relative: list[float]
    slope: list[float]
    filled: list[int]
    _expected: npt.NDArray[np.float64]

    def __init__(self, max_rows: int, cost: Cost | None = None, *, fills: bool = True) -> None:
        self._max_rows = max_rows
        self._fills = fills
        self._measured = cost if cost and cost.staircases and cost.at(0).max_rows >= LEAST_MEASURED else None
        self._context = self._steps = 0
        self._unmeasured_row = UNKNOWN_ROW
        self._prefill: tuple[int, float] | None = None
        self._texts = 1
        self._plain = PlainSteps(cost.change_s if cost and self._measured else None)
        self._last = 1
        # Seconds of a plain step by the steps of another number of texts, 0 where these have been timed beside them.
        self._before_s, self._before_texts = 0.0, 1
        self._knows_single = False
        self._observed: dict[int, _Observed] = {}
        self._since_outlier = OUTLIER_PAUSE
        self._expect()
        self.refresh()

    @property
    def plain_s(self) -> float:
        """Seconds of a step of one row, 0 before the first."""
        return self._plain.seconds / self._base

    @property
    def needs_plain_step(self) -> bool:
        """True if a plain step has to be timed before others are compared with it: at first, and now and then."""
        return self._plain.is_due(self._measured_s * self._base)

    @property
    def max_trial_rows(self) -> int:
        """Rows of the largest step to be tried: twice those of the largest one whose cost is known."""
        known = self._measured.at(self._context).max_rows if self._measured else 1
        return max(2 * max(known, *self._observed, self._texts), FIRST_ROWS)

    @property
    def _base(self) -> float:
        """Cost of a step without guesses, a row for each text."""
        return self._without_return[self._texts]

    def set_texts(self, count: int) -> None:
        """Compare the steps of `count` texts, at most `max_rows`, from now on."""
        if count != self._texts:
            if self.plain_s:
                self._before_s, self._before_texts = self.plain_s, self._texts
            self._plain = self._plain.of_other_texts(self._base, self._without_return[count])
            self._texts = self._last = count
            self._stale = True
            self.refresh()

    def set_context(self, tokens: int) -> None:
        """Look up costs anew, behind `tokens` tokens, if the context has changed enough or many steps were taken.

        Called once a step.
        """
        self._steps += 1
        if abs(tokens - self._context) >= CONTEXT_STEP or self._steps >= CONTEXT_STEPS:
            self._context, self._steps = tokens, 0
            # What looked too dear to be taken again would never be looked at again.
            self._observed = {rows: each for rows, each in self._observed.items() if each.recent}
            for each in self._observed.values():
                each.recent = False
            self._expect()

    def record_prefill(self, rows: int, seconds: float) -> None:
        """Take a prefill's time as a hint where no step was measured before."""
        if rows >= MIN_PREFILL and seconds > 0 and not self._measured:
            self._prefill = rows, seconds

    def record(self, rows: int, seconds: float) -> float:
        """Record a step's time and return its cost in plain steps, outliers clipped; of a plain step its excess.

        A plain step has a row for each text.
        """
        last, self._last = self._last, rows
        if rows == self._texts:
            return self._record_plain(seconds)
        if not self.plain_s or rows > self._max_rows:
            return 1.0
        self._plain.record_larger()
        change = self._plain.change if rows != last else 0.0
        return change + self._record_larger(rows, seconds / self.plain_s - change * self._base) / self._base

    def next_costs(self) -> tuple[list[float], list[float]]:
        """Return `relative` and `slope` for the next step, which a change of rows makes dearer.

        llama.cpp builds its graph anew for a step of other rows or outputs than the one before (llm_graph_result's
        `can_reuse`). Leaving plain steps costs a change and the way back, shared by the steps that usually follow.
        """
        change, back, last = self._plain.change * self._base, self._plain.return_cost * self._base, self._last
        if change < LEAST_CHANGE * self._base:
            return self.relative, self.slope
        plain = self._texts
        more = back if last == plain else change - back
        relative = [cost + more if rows > plain else cost for rows, cost in enumerate(self.relative)]
        slope = self.slope
        if plain < last <= self._max_rows:
            relative[last] = self._without_return[last]
            up = [(relative[last] - relative[rows]) / (last - rows) for rows in range(last)]
            slope = [*map(min, slope, up), *slope[last:]]
        return relative, slope

    def refresh(self) -> None:
        """Let new times count in `relative` and `slope`: sizes without any follow the nearest one that has some."""
        if not self._stale:
            return
        self._stale = False
        cost = np.array(self._expected)
        if self._observed:
            for each in self._observed.values():
                each.followed = each.share
            sizes = np.array(list(self._observed))
            shares = np.maximum([each.share for each in self._observed.values()], MIN_COST)
            rows = np.arange(2, self._max_rows + 1)
            distance = np.abs(np.log(rows)[:, None] - np.log(sizes))
            cost[2:] = 1 + (cost[2:] - 1) * shares[distance.argmin(axis=1)] ** np.exp(-distance.min(axis=1))
        self._without_return: list[float] = cost.tolist()
        self._fill()
        self.slope = _slopes(np.array(self.relative))

    def _record_plain(self, seconds: float) -> float:
        is_behind_larger = self._plain.larger > 0
        excess = self._plain.record(seconds)
        if is_behind_larger:
            return excess
        if self._texts > 1 or self._before_s:
            self._compare_texts(seconds)
        if self._plain.is_first_guess:
            self._fill()
        if self._prefill and len(self._plain) >= MIN_PLAIN:
            # A prefill may be slow because the weights come from disk; then the first guesses have to find out.
            rows, prefill_s = self._prefill
            row_s = SMALL_BATCH * prefill_s / rows
            plain_s = max(self._plain.seconds - row_s * (self._texts - 1), self._plain.seconds / self._texts)
            self._unmeasured_row = min(row_s / plain_s, MAX_PREFILL_ROW)
            self._prefill = None
            self._expect()
        return 0.0

    def _compare_texts(self, seconds: float) -> None:
        """Learn from the first plain step of another number of texts what one costs beside a single text's.

        Comparisons with other numbers of texts, and every further one that scales all sizes, would add up their noise.
        """
        own = self._observed.get(self._texts)
        before_s, self._before_s = self._before_s, 0.0
        if own and (not before_s or self._before_texts > 1):
            own.recent = True
            return
        if self._texts > 1:
            cost = _plausible(seconds / before_s if before_s else self._base, self._texts)
            seen = self._observed.setdefault(self._texts, _Observed(0.0, 0))
            seen.learn((cost - 1) / self._unit(self._texts))
        elif not self._knows_single:
            # What was timed beside steps of several rows was not timed beside this one.
            for rows, each in self._observed.items():
                cost = _plausible((1 + self._unit(rows) * each.share) * before_s / seconds, rows)
                each.share = (cost - 1) / self._unit(rows)
        self._knows_single = self._knows_single or self._texts == 1
        self._stale = True
        self.refresh()

    def _unit(self, rows: int) -> float:
        """Return the plain steps that the further rows of a step were expected to cost."""
        return max(float(self._expected[rows]) - 1, MIN_COST)

    def _record_larger(self, rows: int, relative: float) -> float:
        expected, unit = self._without_return[rows], self._unit(rows)
        is_new = rows not in self._observed
        if is_new:
            weight = MEASURED_WEIGHT if self._measured else 0
            self._observed[rows] = _Observed((expected - 1) / unit, weight)
        seen = self._observed[rows]
        believed, booked = self._clip(relative, expected, seen, is_new)
        seen.learn((_plausible(believed, rows) - 1) / unit)
        self._stale = self._stale or abs(seen.share - seen.followed) > NEIGHBOUR_CHANGE * seen.share
        self._without_return[rows] = 1 + unit * seen.share
        for less in range(max(rows - FILL_ROWS, 1), rows + 1):
            if self.filled[less] == rows:
                self.relative[less] = self._without_return[rows] + self._plain.return_cost * self._base
        return booked

    def _fill(self) -> None:
        """Set what steps are filled up to, and what that costs."""
        cost, self.filled = self._without_return, [*range(self._max_rows + 1)]
        # A size without a time of its own may look cheap between its neighbours.
        for size in self._timed if self._texts > 1 and self._fills else ():
            for rows in range(max(size - FILL_ROWS, 2), size):
                if cost[size] < min((1 - FILL_SAVING) * cost[rows], cost[self.filled[rows]]):
                    self.filled[rows] = size
        back = self._plain.return_cost * self._base
        self.relative = [cost[size] + (back if size > self._texts else 0.0) for size in self.filled]

    def _clip(self, relative: float, expected: float, seen: _Observed, is_new: bool) -> tuple[float, float]:
        """Return the cost to learn from a step and the cost to book for it; a believed jump forgets earlier steps."""
        most = expected * (FIRST_JUMP if is_new else JUMP)
        self._since_outlier += 1
        if relative <= most:
            relative = max(relative, expected / JUMP if seen.count else 1.0, 1.0)
            return relative, relative
        if self._since_outlier >= OUTLIER_PAUSE:
            # Something else may have held it up. If another step is as slow soon, it was not that.
            self._since_outlier = 0
            if not is_new:
                return most, most
            seen.count = 0
            return most, relative
        seen.count = 0
        return relative, relative

    def _expect(self) -> None:
        """Set what each size was expected to cost before its first step here."""
        self._stale = True
        rows = np.arange(self._max_rows + 1)
        known = self._measured.at(self._context) if self._measured else None
        sizes = [point.rows for point in known.points] if known else []
        self._timed = [size for size in sizes if size <= self._max_rows]
        self._measured_s = known.single if known else 0.0
        if known is None or known.max_rows == 1:
            self._expected = np.asarray(1 + (rows - 1) * self._unmeasured_row, np.float64)
            return
        cost = np.interp(rows, sizes, [known.relative(size) for size in sizes])
        cost[sizes[-1] + 1 :] = [known.relative(size) for size in range(sizes[-1] + 1, self._max_rows + 1)]
        self._expected = np.asarray(np.maximum(cost, 1 + (rows - 1) * MIN_COST), np.float64)


def _plausible(cost: float, rows: int) -> float:
    return min(max(cost, 1.0), MAX_ROW_COST * rows)


def _slopes(cost: npt.NDArray[np.float64]) -> list[float]:
    """Return by rows the least cost of a further row, on average up to any larger size."""
    rows = np.arange(len(cost))
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = (cost - cost[:, None]) / (rows - rows[:, None])
    slopes[rows[:, None] >= rows] = np.inf
    least: list[float] = slopes.min(axis=1).tolist()
    return least

"""The cost t(b) of a step of b rows: as measured once, and as corrected by the steps themselves."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, median_low

import numpy as np
import numpy.typing as npt

ROWS = (*range(1, 21), 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)
"""Sizes of steps. All up to 20: if kernels take rows by four, 13 cost more than 16 (0.5B Q4_0, AVX-512)."""

CONTEXTS = (64, 2048)
"""Tokens before the steps: a short and a long sequence."""

UNKNOWN_ROW = 0.35
"""Plain steps assumed for a further row if nothing was measured; the first steps correct it."""

FIRST_ROWS = 3
"""Rows of the first steps if nothing was measured: a rejected draft costs a plain step or two."""

LEAST_MEASURED = 8
"""If the largest measured step has fewer rows, the cost is learned as if nothing were measured."""

MEASURED_WEIGHT = 4
"""Steps that an earlier measurement of a size counts as."""

RECENT, MEMORY, PATIENCE = 9, 512, 48
"""RECENT: the median of so many latest steps is a size's time. MEMORY: after so many steps it is forgotten, or a size
that looked too slow would never be tried again. PATIENCE: steps with drafts before a plain step is timed again."""

CHANGE_S, MAX_CHANGE, LEAST_CHANGE = 2e-4, 2.0, 0.02
"""CHANGE_S: seconds assumed for a change of rows (0.2 ms on a 7M model). MAX_CHANGE, LEAST_CHANGE: bounds of the
plain steps planned for a change: 1.2 on an H200 (0.5B), 0.02 and less on CPUs."""

MIN_COST = 1e-3
"""Least cost of a further row in plain steps, so that later times can still change its share."""

JUMP, FIRST_JUMP, NOTICEABLE = 1.5, 2.0, 0.05
"""JUMP, FIRST_JUMP: beyond this slow-down something else has delayed a step, or the first step of a size. NOTICEABLE:
the other sizes follow a size whose time changes by more."""

WRONG = 2.0
"""If a measured time is wrong by more than this factor, the measurement is dropped."""

CONTEXT_STEP = 256
"""Tokens of growth after which the measured cost is looked up again."""


@dataclass(frozen=True)
class MeasurePlan:
    """The contexts (tokens) and step sizes (rows, from a single one on) to measure in about `seconds` seconds."""

    contexts: tuple[int, ...] = CONTEXTS
    rows: tuple[int, ...] = ROWS
    seconds: float = 20.0

    def covers(self, other: MeasurePlan) -> bool:
        """Return whether this plan measures everything in the other plan too."""
        has_all = {*self.contexts} >= {*other.contexts} and {*self.rows} >= {*other.rows}
        return has_all and self.seconds >= other.seconds


@dataclass(frozen=True)
class StepCost:
    """t(b) after `context` tokens. `measured`: seconds by rows, ascending from a single row."""

    context: int
    measured: Mapping[int, float]

    @property
    def max_rows(self) -> int:
        return max(self.measured)

    @property
    def is_plausible(self) -> bool:
        """Whether no size costs less than half a plain step, or more than twice the plain steps of its rows."""
        return all(0.5 <= self.relative(rows) <= 2 * rows for rows in self.measured)

    def seconds(self, rows: int) -> float:
        """Return the seconds of a step of `rows` rows whose logits are all read."""
        return float(self.curve(np.array([rows]))[0])

    def curve(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the seconds for each of many sizes.

        Interpolates linearly, and extrapolates by the slope of the larger half of the sizes: the last two sizes differ
        mostly by noise.
        """
        sizes, seconds = [*self.measured], [*self.measured.values()]
        half = max((size for size in sizes if 2 * size <= sizes[-1]), default=0)
        slope = max((seconds[-1] - self.measured[half]) / (sizes[-1] - half), 0.0) if half else 0.0
        found: npt.NDArray[np.float64] = np.interp(rows, sizes, seconds) + slope * np.maximum(rows - sizes[-1], 0)
        return found

    def relative(self, rows: int) -> float:
        """Return the cost of a step in plain steps, t(rows) / t(1)."""
        return self.seconds(rows) / self.measured[1]


@dataclass(frozen=True)
class Cost:
    """The step costs of one model on one machine, by ascending context, and how they were measured.

    `change_s`: extra seconds of a step after one with a different number of rows, None if not measured. `plan`: the
    requested sizes. `description`: the model in llama.cpp's words. `devices`: their names. `chain_only`: why the model
    takes no trees; then nothing is measured. `measured_at`: seconds since 1970. `is_fixed`: this cost is assumed,
    however long steps take.
    """

    by_context: tuple[StepCost, ...]
    change_s: float | None = None
    plan: MeasurePlan = MeasurePlan()
    description: str = ""
    devices: str = ""
    chain_only: str = ""
    measured_at: float = 0.0
    is_fixed: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether steps can be planned with this cost: large enough ones were measured."""
        return bool(self.by_context) and self.at(0).max_rows >= LEAST_MEASURED

    def at(self, context: int) -> StepCost:
        """Return the step cost after `context` tokens: linear between two measured contexts, else the nearest."""
        place = bisect_left(self.by_context, context, key=lambda each: each.context)
        if place in (0, len(self.by_context)):
            return self.by_context[min(place, len(self.by_context) - 1)]
        below, above = self.by_context[place - 1 : place + 1]
        share = (context - below.context) / (above.context - below.context)
        both = {size: (below.measured[size], above.measured[size]) for size in below.measured if size in above.measured}
        return StepCost(context, {size: near + share * (far - near) for size, (near, far) in both.items()})


class StepCostModel:
    """Costs of steps in steps of one row, whose seconds are `single_s`.

    relative[b]: cost of a step of b rows, up to `max_rows`. slopes[b]: least cost of a further row after b, on average
    up to any larger size. `change`: extra cost of a step after one with a different number of rows, since llama.cpp
    then builds a new graph (llm_graph_result's `can_reuse`). `needs_test`: no step with drafts has tested the measured
    costs yet. `max_trial_rows`: rows of the largest step to be tried, twice the rows of the largest step with a known
    cost. `last`: rows of the last step.
    """

    def __init__(self, max_rows: int, cost: Cost | None = None) -> None:
        self._max_rows = max_rows
        self._measured = cost if cost and cost.is_usable else None
        self._seen: dict[int, deque[float]] = {}
        # By rows: the number of the last step that had so many.
        self._seen_at: dict[int, int] = {}
        self._step = self._since_plain = 0
        self.needs_test = self._measured is not None
        self.last = 1
        known_change = cost.change_s if cost and self._measured else None
        self._changes = deque([CHANGE_S if known_change is None else known_change], maxlen=8)
        self.single_s, self._context = 0.0, 0
        self._expect()

    def set_context(self, tokens: int) -> None:
        """Look up the measured cost after `tokens` tokens."""
        if abs(tokens - self._context) >= CONTEXT_STEP:
            self._context = tokens
            self._expect()

    @property
    def needs_plain_step(self) -> bool:
        """Whether a step without drafts has to be timed before others are compared with it."""
        return self._since_plain >= PATIENCE or not self.single_s

    def record(self, rows: int, seconds: float, *, is_plain: bool) -> float:
        """Record a step's time and return its cost in steps of one row; `is_plain`: it had no drafts."""
        is_change, self.last = rows != self.last, rows
        self._since_plain = 0 if is_plain else self._since_plain + 1
        self._step += 1
        if rows > self._max_rows:
            return 1.0
        self._seen_at[rows] = self._step
        seen = self._seen.get(rows) or deque[float](maxlen=RECENT)
        if is_plain and is_change and seen:
            self._record_return(rows, seconds)
            return self.relative[rows]
        expected = self.relative[rows] * self.single_s
        change = min(self.change * self.single_s, seconds / 2) if is_change else 0.0
        own, before = seconds - change, median_low(seen or [0.0])
        seen.append(own if seen or not expected else min(own, FIRST_JUMP * expected))
        # Ctrl-C may come at any line: no size is without a time.
        self._seen[rows] = seen
        booked = min(own, JUMP * expected) if before else own
        if self.needs_test and not is_plain:
            ratio = own / (float(self._expected[rows]) * self.single_s)
            # A first step of a size may be slow by itself, on a GPU above all.
            self.needs_test = not before and ratio > WRONG
            if not (self.needs_test or 1 / WRONG <= ratio <= WRONG):
                self._measured = None
                self._expect()
        if len(seen) <= MEASURED_WEIGHT or abs(median_low(seen) - before) > NOTICEABLE * before:
            self._follow()
        return (booked + change) / self.single_s if self.single_s else 1.0

    def _record_return(self, rows: int, seconds: float) -> None:
        """Record a plain step after a step of other rows: the cost of the change, or a new time of plain steps."""
        before = median_low(self._seen[rows])
        if before / JUMP <= seconds <= (JUMP + self.change) * before:
            self._changes.append(max(seconds - before, 0.0))
            self._weigh_change()
        else:
            self._seen[rows] = deque([seconds], maxlen=RECENT)
            self._follow()

    def costs_for(self, least: int, beside: int = 0) -> tuple[list[float], list[float]]:
        """Return the cost of a step by its rows, and the least cost of a further row, in steps of `least` rows.

        `beside`: rows of prompts, which are decoded in any case and not counted. If there are none, a step with other
        rows than the last step costs `change` more, and twice as much after a plain step.
        """
        base, costs, slopes = self.relative[least + beside], self.relative, self.slopes
        if base != 1:
            costs = [max(cost, base) / base for cost in costs[beside:]]
            slopes = [slope / base for slope in slopes[beside:]]
        last, change = self.last, self.change / base
        if change < LEAST_CHANGE or beside:
            return costs, slopes
        more = change if last != least else 2 * change
        costs = [cost + more if rows > least and rows != last else cost for rows, cost in enumerate(costs)]
        if least < last < len(costs):
            up = [(costs[last] - costs[rows]) / (last - rows) for rows in range(last)]
            slopes = [*map(min, slopes, up), *slopes[last:]]
        return costs, slopes

    def _expect(self) -> None:
        """Set the expected cost of each size before its first step here."""
        rows = np.arange(self._max_rows + 1)
        self._known_rows, self._expected = 1, 1 + (rows - 1) * UNKNOWN_ROW
        if self._measured:
            known = self._measured.at(self._context)
            self._known_rows = known.max_rows
            relative = known.curve(np.maximum(rows, 1)) / known.measured[1]
            self._expected = np.maximum(relative, 1 + (rows - 1) * MIN_COST)
        self._follow()

    def _follow(self) -> None:
        """Let sizes without times of their own follow the nearest one that has some."""
        for rows in [rows for rows, step in self._seen_at.items() if self._step - step > MEMORY]:
            del self._seen_at[rows]
            self._seen.pop(rows, None)
        cost = self._expected.copy()
        if self._seen:
            least = min(self._seen)
            self.single_s = median_low(self._seen[least]) / (1.0 if least == 1 else float(self._expected[least]))
            prior, shares = MEASURED_WEIGHT if self._measured else 0, dict[int, float]()
            for rows, seen in self._seen.items():
                if rows > 1:
                    share = max((median_low(seen) / self.single_s - 1) / (self._expected[rows] - 1), MIN_COST)
                    shares[rows] = float((prior + share * len(seen)) / (prior + len(seen)))
            if shares:
                sizes = np.arange(2, self._max_rows + 1)
                distance = np.abs(np.log(sizes)[:, None] - np.log(list(shares)))
                nearest = np.array(list(shares.values()))[distance.argmin(axis=1)]
                factor = nearest ** np.exp(-distance.min(axis=1))
                if not self._measured:
                    # Large steps are tried if small ones cost less than expected.
                    factor = np.minimum(factor, nearest)
                cost[2:] = 1 + (cost[2:] - 1) * factor
        self._weigh_change()
        self.max_trial_rows = max(2 * max(self._known_rows, *self._seen, 1), FIRST_ROWS)
        self.relative: list[float] = cost.tolist()
        sizes = np.arange(len(cost))
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = (cost - cost[:, None]) / (sizes - sizes[:, None])
        slopes[sizes[:, None] >= sizes] = np.inf
        self.slopes: list[float] = slopes.min(axis=1).tolist()

    def _weigh_change(self) -> None:
        self.change = min(median(self._changes) / self.single_s, MAX_CHANGE) if self.single_s else 0.0

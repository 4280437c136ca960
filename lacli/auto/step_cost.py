"""The cost t(b) of a step of b rows: measured once, and then corrected by the times of the steps taken."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, median_low

import numpy as np
import numpy.typing as npt

ROWS = (*range(1, 21), 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)
"""Rows of the measured steps. All up to 20: with kernels for four rows, 13 cost more than 16 (0.5B Q4_0, AVX-512)."""

CONTEXTS = (64, 2048)
"""Tokens in the cache before a measured step: a short and a long sequence."""

UNKNOWN_ROW = 0.35
"""The assumed cost of each further row in plain steps, if nothing was measured. The first steps correct it."""

FIRST_ROWS = 3
"""The most rows of the first steps if nothing was measured: a rejected draft costs one or two plain steps."""

LEAST_MEASURED = 8
"""A measurement whose largest step has fewer rows is not used: costs are learned as if nothing were measured."""

MEASURED_WEIGHT = 4
"""A size's measured cost weighs as much as this many steps of the size."""

RECENT, MEMORY, PATIENCE = 9, 512, 48
"""RECENT: a size's time is the median of this many latest steps. MEMORY: a size's times are forgotten after this many
steps of other sizes, so it is tried again. PATIENCE: after this many steps with drafts a plain step is timed."""

CHANGE_S, MAX_CHANGE, LEAST_CHANGE = 2e-4, 2.0, 0.02
"""The extra cost of a step whose rows differ from the last step's. CHANGE_S: assumed seconds (0.2 ms on a 7M model).
MAX_CHANGE: the most plain steps (1.2 on an H200 with a 0.5B). LEAST_CHANGE: fewer are ignored (CPUs: up to 0.02)."""

MIN_COST = 1e-3
"""The least cost of a further row in plain steps. It is above 0, since later times correct it by a factor."""

JUMP, FIRST_JUMP, NOTICEABLE = 1.5, 2.0, 0.05
"""JUMP: a step's time counts up to this multiple of the expected time; the rest is outside delay. FIRST_JUMP: the same
for the first step of a size. NOTICEABLE: a larger relative change of a size's time corrects the other sizes too."""

WRONG = 2.0
"""If a step shows that a measured time is wrong by more than this factor, the measurement is dropped."""

CONTEXT_STEP = 256
"""If the cache has this many tokens more or less, the measured cost is looked up again."""


@dataclass(frozen=True)
class MeasurePlan:
    """The steps to measure in about `seconds` seconds: by their rows, from 1 on, and by the tokens in the cache."""

    contexts: tuple[int, ...] = CONTEXTS
    rows: tuple[int, ...] = ROWS
    seconds: float = 20.0

    def covers(self, other: MeasurePlan) -> bool:
        """Return whether this plan has all contexts and rows of `other`, and at least as many seconds."""
        has_all = {*self.contexts} >= {*other.contexts} and {*self.rows} >= {*other.rows}
        return has_all and self.seconds >= other.seconds


@dataclass(frozen=True)
class StepCost:
    """The times of steps after `context` tokens. `measured`: a step's seconds by its rows, ascending from 1 row."""

    context: int
    measured: Mapping[int, float]

    @property
    def max_rows(self) -> int:
        return max(self.measured)

    @property
    def is_plausible(self) -> bool:
        """Whether each measured step of n rows costs at least half a plain step and at most 2n plain steps."""
        return all(0.5 <= self.relative(rows) <= 2 * rows for rows in self.measured)

    def seconds(self, rows: int) -> float:
        """Return the seconds of a step of `rows` rows whose logits are all read."""
        return float(self.curve(np.array([rows]))[0])

    def curve(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the seconds of a step for each number of rows in `rows`.

        Between measured sizes this is linear. Beyond the largest size it continues the slope from half of that size to
        that size, since the last two sizes differ mostly by noise.
        """
        sizes, seconds = [*self.measured], [*self.measured.values()]
        half = max((size for size in sizes if 2 * size <= sizes[-1]), default=0)
        slope = max((seconds[-1] - self.measured[half]) / (sizes[-1] - half), 0.0) if half else 0.0
        found: npt.NDArray[np.float64] = np.interp(rows, sizes, seconds) + slope * np.maximum(rows - sizes[-1], 0)
        return found

    def relative(self, rows: int) -> float:
        """Return the cost of a step of `rows` rows in plain steps: t(rows) / t(1)."""
        return self.seconds(rows) / self.measured[1]


@dataclass(frozen=True)
class Cost:
    """The step costs of one model on one machine, and how they were measured.

    `by_context`: by ascending context. `change_s`: extra seconds of a step after a step with a different number of
    rows, None if not measured. `plan`: what was to be measured. `description`: the model in llama.cpp's words.
    `devices`: their names. `chain_only`: why the model takes no trees of drafts, "" if it takes them; with a reason,
    nothing is measured. `measured_at`: seconds since 1970. `is_fixed`: the costs are assumed, not measured.
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
        """Whether the measurement is large enough for mode auto: a step of LEAST_MEASURED or more rows."""
        return bool(self.by_context) and self.at(0).max_rows >= LEAST_MEASURED

    def at(self, context: int) -> StepCost:
        """Return the step cost after `context` tokens: linear between measured contexts, else the nearest one."""
        place = bisect_left(self.by_context, context, key=lambda each: each.context)
        if place in (0, len(self.by_context)):
            return self.by_context[min(place, len(self.by_context) - 1)]
        below, above = self.by_context[place - 1 : place + 1]
        share = (context - below.context) / (above.context - below.context)
        both = {size: (below.measured[size], above.measured[size]) for size in below.measured if size in above.measured}
        return StepCost(context, {size: near + share * (far - near) for size, (near, far) in both.items()})


class StepCostModel:
    """The costs of steps by their rows, learned from steps. The unit is a step of one row, of `single_s` seconds.

    `relative[b]`: the cost of a step of b rows, for b up to `max_rows`. `slopes[b]`: the least cost per further row,
    the smallest (relative[c] - relative[b]) / (c - b) of all c > b. `change`: the extra cost of a step after a step
    with a different number of rows, for which llama.cpp builds a new graph (llm_graph_result's `can_reuse`).
    `needs_test`: whether no step with drafts has tested the measured costs yet. `max_trial_rows`: the most rows of the
    next step, twice the rows of the largest step with a known cost. `last_rows`: rows of the last step.
    """

    def __init__(self, max_rows: int, cost: Cost | None = None) -> None:
        self._max_rows = max_rows
        self._measured = cost if cost and cost.is_usable else None
        self._seen: dict[int, deque[float]] = {}
        self._seen_at: dict[int, int] = {}  # by rows: the number of the last step that had so many
        self._step = self._since_plain = 0
        self.needs_test = self._measured is not None
        self.last_rows = 1
        known_change = cost.change_s if cost and self._measured else None
        self._changes = deque([CHANGE_S if known_change is None else known_change], maxlen=8)
        self.single_s, self._context = 0.0, 0
        self._expect()

    def set_context(self, tokens: int) -> None:
        """Use the cost that was measured after about `tokens` tokens. Changes below CONTEXT_STEP are ignored."""
        if abs(tokens - self._context) >= CONTEXT_STEP:
            self._context = tokens
            self._expect()

    @property
    def needs_plain_step(self) -> bool:
        """Whether the next step must be plain: no step was timed yet, or none of the last PATIENCE steps was plain."""
        return self._since_plain >= PATIENCE or not self.single_s

    def record(self, rows: int, seconds: float, *, is_plain: bool) -> float:
        """Record the seconds of a step of `rows` rows. Return its cost in steps of one row, without outside delays.

        `is_plain`: whether it had no drafts. More rows than `max_rows` are not recorded, and the result is 1.0.
        """
        is_change, self.last_rows = rows != self.last_rows, rows
        self._since_plain = 0 if is_plain else self._since_plain + 1
        self._step += 1
        if rows > self._max_rows:
            return 1.0
        self._seen_at[rows] = self._step
        seen = self._seen.get(rows) or deque[float](maxlen=RECENT)
        if is_plain and is_change and seen:
            self._record_plain_after_change(rows, seconds)
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
            self._update()
        return (booked + change) / self.single_s if self.single_s else 1.0

    def _record_plain_after_change(self, rows: int, seconds: float) -> None:
        before = median_low(self._seen[rows])
        # Near the known time of plain steps, the difference is the cost of the change; otherwise the time is new.
        if before / JUMP <= seconds <= (JUMP + self.change) * before:
            self._changes.append(max(seconds - before, 0.0))
            self._weigh_change()
        else:
            self._seen[rows] = deque([seconds], maxlen=RECENT)
            self._update()

    def costs_for(self, plain_rows: int, prompt_rows: int = 0) -> tuple[list[float], list[float]]:
        """Return two lists by the rows of a step: the step's cost, and the least cost per further row, as `slopes`.

        `plain_rows`: rows of a step without drafts, whose cost is the unit. `prompt_rows`: rows of prompts in the step,
        which the indices do not count. Without prompt rows, a step with drafts and not `last_rows` rows costs `change`
        more, or twice `change` after a plain step.
        """
        base, costs, slopes = self.relative[plain_rows + prompt_rows], self.relative, self.slopes
        if base != 1:
            costs = [max(cost, base) / base for cost in costs[prompt_rows:]]
            slopes = [slope / base for slope in slopes[prompt_rows:]]
        last, change = self.last_rows, self.change / base
        if change < LEAST_CHANGE or prompt_rows:
            return costs, slopes
        more = change if last != plain_rows else 2 * change
        costs = [cost + more if rows > plain_rows and rows != last else cost for rows, cost in enumerate(costs)]
        if plain_rows < last < len(costs):
            up = [(costs[last] - costs[rows]) / (last - rows) for rows in range(last)]
            slopes = [*map(min, slopes, up), *slopes[last:]]
        return costs, slopes

    def _expect(self) -> None:
        """Set the cost of each size before its first step: the measured cost, else UNKNOWN_ROW for each further row."""
        rows = np.arange(self._max_rows + 1)
        self._known_rows, self._expected = 1, 1 + (rows - 1) * UNKNOWN_ROW
        if self._measured:
            known = self._measured.at(self._context)
            self._known_rows = known.max_rows
            relative = known.curve(np.maximum(rows, 1)) / known.measured[1]
            self._expected = np.maximum(relative, 1 + (rows - 1) * MIN_COST)
        self._update()

    def _update(self) -> None:
        """Compute `relative` and `slopes` from recorded times. Sizes without times follow the nearest size."""
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

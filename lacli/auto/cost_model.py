"""What a step of b rows costs here and now: t(b) as measured before, corrected by the steps themselves."""

from __future__ import annotations

from collections import deque
from statistics import median, median_low

import numpy as np

from lacli.auto.step_cost import Cost

UNKNOWN_ROW = 0.35
"""Plain steps assumed for a further row where nothing is known of the machine; the first steps correct it."""

FIRST_ROWS = 3
"""Rows of the first steps where nothing is known of the machine: a wrong draft costs a plain step or two."""

LEAST_MEASURED = 8
"""Rows that the largest measured step must have, else the cost is learned as if nothing were measured.

Kernels that take rows by four let two rows cost 1.92 plain steps and four 1.76 (3B Q4_0, an EPYC core): by the first
two alone no draft would ever pay.
"""

MEASURED_WEIGHT = 4
"""Steps that an earlier measurement of a size counts as."""

RECENT = 9
"""Latest steps of a size whose median is its time: one that met a busy moment says nothing."""

MEMORY = 512
"""Steps after which the time of a size is forgotten: one that looked too dear once would never be tried again."""

PATIENCE = 48
"""Steps with drafts after which a step without is timed again."""

CHANGE_S, MAX_CHANGE = 2e-4, 2.0
"""Seconds that a change of rows costs at first (llama.cpp builds another graph: 0.2 ms on the 7M model), and the most
plain steps it may cost."""

LEAST_CHANGE = 0.02
"""Plain steps that a change of rows must cost to be planned with: 1.2 on an H200 (0.5B), 0.02 and less on CPUs."""

MIN_COST = 1e-3
"""Plain steps that a further row costs at least, so that later times can still change its share."""

JUMP, FIRST_JUMP = 1.5, 2.0
"""Slow-down beyond which something else has held a step up, and the same of the first step of a size."""

NOTICEABLE = 0.05
"""Relative change of a size's time from which the others follow it."""

CONTEXT_STEP = 256
"""Tokens of growth after which the measured cost is looked up anew."""


class StepCostModel:
    """Costs of steps in steps of one row, whose seconds are `single_s`.

    relative[b]: cost of a step of b rows, up to `max_rows`. slopes[b]: least cost of a further row from there on, on
    average up to any larger size. `change`: what a step costs more behind one of another number of rows, since
    llama.cpp builds its graph anew then (llm_graph_result's `can_reuse`). `max_trial_rows`: of the largest step to be
    tried, twice those of the largest one whose cost is known. `last`: rows of the last step.
    """

    relative: list[float]
    slopes: list[float]
    change: float
    max_trial_rows: int

    def __init__(self, max_rows: int, cost: Cost | None = None) -> None:
        self._max_rows = max_rows
        self._measured = cost if cost and cost.staircases and cost.at(0).max_rows >= LEAST_MEASURED else None
        self._seen: dict[int, deque[float]] = {}
        # By rows: the number of the step that last had so many.
        self._seen_at: dict[int, int] = {}
        self._step = self._since_plain = 0
        self.last = 1
        known_change = cost.change_s if cost and self._measured else None
        self._changes = deque([CHANGE_S if known_change is None else known_change], maxlen=8)
        self.single_s = 0.0
        self._context = 0
        self._expect()

    def set_context(self, tokens: int) -> None:
        """Look up the measured cost behind `tokens` tokens."""
        if abs(tokens - self._context) >= CONTEXT_STEP:
            self._context = tokens
            self._expect()

    @property
    def needs_plain_step(self) -> bool:
        """Whether a step without drafts has to be timed before others are compared with it."""
        return self._since_plain >= PATIENCE or not self.single_s

    def record(self, rows: int, seconds: float, *, is_plain: bool) -> float:
        """Record the time of a step and return its cost in steps of one row; `is_plain`: it had no drafts."""
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
        change = self.change * self.single_s if is_change else 0.0
        own, before = max(seconds - change, 0.0), median_low(seen or [0.0])
        seen.append(own if seen or not expected else min(own, FIRST_JUMP * expected))
        # Ctrl-C may come at any line: no size without a time is left.
        self._seen[rows] = seen
        booked = min(own, JUMP * expected) if before else own
        if len(seen) <= MEASURED_WEIGHT or abs(median_low(seen) - before) > NOTICEABLE * before:
            self._follow()
        return (booked + change) / self.single_s if self.single_s else 1.0

    def _record_return(self, rows: int, seconds: float) -> None:
        """Record a plain step behind one of other rows: what the change costs, or that plain steps have changed."""
        before = median_low(self._seen[rows])
        if seconds * JUMP < before or seconds > (JUMP + self.change) * before:
            self._seen[rows] = deque([seconds], maxlen=RECENT)
            self._follow()
            return
        self._changes.append(max(seconds - before, 0.0))
        self._price_change()

    def next_step(self, least: int, beside: int = 0) -> tuple[list[float], list[float]]:
        """Return costs and slopes by drafted and input rows, in steps of `least` rows.

        `beside`: further rows, which are decoded anyway. Without them a step of other rows than the last one costs a
        change more, and leaving plain steps the way back too.
        """
        base, costs, slopes = self.relative[least + beside], self.relative, self.slopes
        if base != 1:
            costs, slopes = (
                [max(cost, base) / base for cost in costs[beside:]],
                [slope / base for slope in slopes[beside:]],
            )
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
        """Set what each size is expected to cost before its first step here."""
        rows = np.arange(self._max_rows + 1)
        self._known_rows = 1
        if self._measured:
            known = self._measured.at(self._context)
            self._known_rows = known.max_rows
            cost = np.array([1.0, *(known.relative(size) for size in range(1, self._max_rows + 1))])
            self._expected = np.maximum(cost, 1 + (rows - 1) * MIN_COST)
        else:
            self._expected = 1 + (rows - 1) * UNKNOWN_ROW
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
            prior = MEASURED_WEIGHT if self._measured else 0
            shares = {1: 1.0}
            for rows, seen in self._seen.items():
                if rows > 1:
                    share = max((median_low(seen) / self.single_s - 1) / (self._expected[rows] - 1), MIN_COST)
                    shares[rows] = float((prior + share * len(seen)) / (prior + len(seen)))
            sizes = np.arange(2, self._max_rows + 1)
            del shares[1]
            if shares:
                distance = np.abs(np.log(sizes)[:, None] - np.log(list(shares)))
                nearest = np.array(list(shares.values()))[distance.argmin(axis=1)]
                factor = nearest ** np.exp(-distance.min(axis=1))
                if not self._measured:
                    # Large steps are tried where small ones cost less than expected.
                    factor = np.minimum(factor, nearest)
                cost[2:] = 1 + (cost[2:] - 1) * factor
        self._price_change()
        self.max_trial_rows = max(2 * max(self._known_rows, *self._seen, 1), FIRST_ROWS)
        self.relative = cost.tolist()
        sizes = np.arange(len(cost))
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = (cost - cost[:, None]) / (sizes - sizes[:, None])
        slopes[sizes[:, None] >= sizes] = np.inf
        self.slopes = slopes.min(axis=1).tolist()

    def _price_change(self) -> None:
        self.change = min(median(self._changes) / self.single_s, MAX_CHANGE) if self.single_s else 0.0

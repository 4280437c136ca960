"""What a step of b rows costs, t(b), as measured: by size and context of one model on one machine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from lacli.settings import DecodeSettings
from lacli.stats import MIN_CORE_SHARE

NEARLY_FREE = 1.1
"""Cost in plain steps up to which a step is called nearly free."""

REACH = 2
"""Multiple of the largest measured size up to which a cost is extrapolated."""

ROUGH = 0.25
"""Median spread of the times from which the machine was too busy to measure."""


@dataclass(frozen=True)
class Point:
    """The time of a step of `rows` rows: medians of `repeats` steps.

    `every`: seconds when all rows' logits are read. `first`: seconds when only the first row's are. `spread`: distance
    of the quartiles of `every` as a part of it. `changed`: seconds of the same step as `every` behind one of another
    number of rows, 0 where that was not measured.
    """

    rows: int
    every: float
    first: float
    spread: float = 0.0
    repeats: int = 1
    changed: float = 0.0


@dataclass(frozen=True)
class StepCost:
    """t(b) behind `context` tokens, as points with ascending rows, the first one of a single row."""

    context: int
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        assert self.points and self.points[0].rows == 1, "everything is relative to a single row"
        assert all(below.rows < above.rows for below, above in pairwise(self.points))

    @property
    def max_rows(self) -> int:
        """Rows of the largest measured step."""
        return self.points[-1].rows

    @property
    def single(self) -> float:
        """Seconds of a plain step, t(1)."""
        return self.points[0].every

    def seconds(self, rows: int, outputs: int | None = None) -> float:
        """Return the seconds of a step of `rows` rows whose first `outputs` have their logits read (None: all).

        Interpolates linearly, and extrapolates by the slope of the larger half of the sizes.
        """
        assert rows >= 1 and (outputs is None or 1 <= outputs <= rows)
        every = self._interpolated(rows, lambda point: point.every)
        if outputs is None or outputs == rows:
            return every
        first = self._interpolated(rows, lambda point: point.first)
        return first + (every - first) * (outputs - 1) / (rows - 1)

    def relative(self, rows: int, outputs: int | None = None) -> float:
        """Return the cost of a step in plain steps, t(rows) / t(1)."""
        return self.seconds(rows, outputs) / self.single

    def break_even(self, settings: DecodeSettings) -> float | None:
        """Return the tokens a step at which full steps of `settings` are as fast as plain decoding.

        None if these steps are larger than any whose cost is known.
        """
        return self.known(settings.max_rows, settings.max_outputs)

    def known(self, rows: int, outputs: int) -> float | None:
        """Return what a step costs in plain steps if the logits of at most `outputs` rows are read.

        None if it is more than REACH times as large as any measured one.
        """
        known = rows <= (REACH * self.max_rows if self.max_rows > 1 else 1)
        return self.relative(rows, min(outputs, rows)) if known else None

    @property
    def row(self) -> float:
        """Mean cost of a further row in plain steps, up to the largest measured step."""
        return (self.relative(self.max_rows) - 1) / (self.max_rows - 1) if self.max_rows > 1 else 0.0

    @property
    def nearly_free_rows(self) -> int:
        """Rows of the largest measured step that costs hardly more than a plain one."""
        return max(point.rows for point in self.points if point.every <= NEARLY_FREE * self.single)

    def _interpolated(self, rows: int, seconds: Callable[[Point], float]) -> float:
        above = bisect_left(self.points, rows, key=lambda point: point.rows)
        if above == len(self.points):
            end, slope = self.points[-1], self._last_slope(seconds)
        else:
            end = self.points[above]
            slope = _slope(self.points[above - 1], end, seconds) if end.rows > rows else 0.0
        return seconds(end) + slope * (rows - end.rows)

    def _last_slope(self, seconds: Callable[[Point], float]) -> float:
        """Return the seconds a row over the larger half: the last two sizes differ by little but noise."""
        end = self.points[-1]
        lower = [point for point in self.points if 2 * point.rows <= end.rows]
        return max(_slope(lower[-1], end, seconds), 0.0) if lower else 0.0


def _slope(start: Point, end: Point, seconds: Callable[[Point], float]) -> float:
    return (seconds(end) - seconds(start)) / (end.rows - start.rows)


@dataclass(frozen=True)
class Cost:
    """The step costs of one model on one machine, by ascending context, and how they were measured.

    `description`: the model in llama.cpp's words. `devices`: what computed. `chain_only`: why the model takes no trees,
    and without staircases only single rows. `notes`: what was left out. `measured_at`: seconds since 1970. `budget`:
    seconds that the measurement was given. `stopped`: Ctrl-C ended it early, so it is not kept. `core_share`: part of
    the time in which the threads had a core, 1 where a GPU computes.
    """

    staircases: tuple[StepCost, ...]
    description: str = ""
    devices: str = ""
    chain_only: str = ""
    notes: tuple[str, ...] = ()
    measured_at: float = 0.0
    budget: float = 0.0
    stopped: bool = False
    core_share: float = 1.0

    @property
    def rough(self) -> bool:
        """True if the threads waited for cores, or at least half of the times vary too much to say anything."""
        if self.core_share < MIN_CORE_SHARE:
            return True
        spreads = [point.spread for step_cost in self.staircases for point in step_cost.points]
        return bool(spreads) and median(spreads) >= ROUGH

    @property
    def change_s(self) -> float | None:
        """Seconds that a step costs more behind one of another number of rows, 0 within the noise; None if unknown."""
        points = [point for step_cost in self.staircases for point in step_cost.points if point.changed]
        if not points:
            return None
        change = median(point.changed - point.every for point in points)
        return change if change > median(point.spread * point.every for point in points) else 0.0

    def at(self, context: int) -> StepCost:
        """Return the step cost behind `context` tokens: linear between two measured contexts, else the nearest."""
        assert self.staircases, "ask whether there are any first"
        place = bisect_left(self.staircases, context, key=lambda step_cost: step_cost.context)
        if place == len(self.staircases):
            return self.staircases[-1]
        above = self.staircases[place]
        if place == 0 or above.context == context:
            return above
        below = self.staircases[place - 1]
        return _between(below, above, (context - below.context) / (above.context - below.context))

    def among(self, replicas: int) -> Cost:
        """Return the cost when `replicas` copies of the model on equal devices share the rows below the input."""
        shared = [
            replace(each, points=tuple(replace(point, rows=1 + replicas * (point.rows - 1)) for point in each.points))
            for each in self.staircases
        ]
        return replace(self, staircases=tuple(shared))


def _between(below: StepCost, above: StepCost, share: float) -> StepCost:
    """Return the step cost at `share` of the way from one to the other, at the sizes that both have."""
    points = {point.rows: point for point in below.points}
    pairs = [(points[point.rows], point) for point in above.points if point.rows in points]
    return StepCost(
        round(below.context + share * (above.context - below.context)),
        tuple(
            Point(
                rows=near.rows,
                every=near.every + share * (far.every - near.every),
                first=near.first + share * (far.first - near.first),
                spread=max(near.spread, far.spread),
                repeats=min(near.repeats, far.repeats),
                changed=near.changed + share * (far.changed - near.changed),
            )
            for near, far in pairs
        ),
    )

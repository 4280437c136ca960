"""The t(b) staircase: what a step of b rows costs, as records, and what can be read off them.

Numbers only. `cost/` measures it, keeps it and says what a W, N and G would gain; `auto/` mends it while running.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from lacli.settings import DecodeSettings

NEARLY_FREE = 1.1
"""A step that costs so many single-row steps at most is called nearly as cheap as one."""

REACH = 2
"""Times the largest size measured: beyond it nothing is said about a step."""

ROUGH = 0.25
"""A spread of the times from which on the machine was too busy to measure."""


@dataclass(frozen=True)
class Point:
    """The time of a step of so many rows, in seconds: medians of `repeats` steps.

    every: with the choices of all rows read. first: with the first row's only. spread: the distance of the quartiles
    of `every` as a part of it.
    """

    rows: int
    every: float
    first: float
    spread: float = 0.0
    repeats: int = 1


@dataclass(frozen=True)
class Staircase:
    """t(b) behind `context` tokens. points: by rows, the first one of a single row."""

    context: int
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        assert self.points and self.points[0].rows == 1, "everything is relative to a single row"
        assert all(below.rows < above.rows for below, above in pairwise(self.points))

    @property
    def most_rows(self) -> int:
        """The largest step that was measured."""
        return self.points[-1].rows

    @property
    def single(self) -> float:
        """Seconds of a plain step, t(1)."""
        return self.points[0].every

    def seconds(self, rows: int, outputs: int | None = None) -> float:
        """Seconds of a step of so many rows, `outputs` of which have their choices read (None: all).

        Straight lines between the measured sizes, and beyond the largest one the slope of the upper half of them.
        """
        assert rows >= 1 and (outputs is None or 1 <= outputs <= rows)
        every = self._on_line(rows, lambda point: point.every)
        if outputs is None or outputs == rows:
            return every
        first = self._on_line(rows, lambda point: point.first)
        return first + (every - first) * (outputs - 1) / (rows - 1)

    def relative(self, rows: int, outputs: int | None = None) -> float:
        """t(rows) / t(1): how many plain steps such a step costs."""
        return self.seconds(rows, outputs) / self.single

    def reaches(self, rows: int) -> bool:
        """Whether what was measured says anything about so many rows; a single row says nothing about more."""
        return rows <= (REACH * self.most_rows if self.most_rows > 1 else 1)

    def break_even(self, settings: DecodeSettings) -> float | None:
        """S that settings must bring to be as fast as plain decoding, where each step is as large as it can be.

        None where such a step is out of reach.
        """
        rows = settings.most_rows
        return self.relative(rows, min(settings.most_outputs, rows)) if self.reaches(rows) else None

    @property
    def row(self) -> float:
        """What a further row costs on average, in plain steps, up to the largest step that was measured."""
        return (self.relative(self.most_rows) - 1) / (self.most_rows - 1) if self.most_rows > 1 else 0.0

    @property
    def nearly_free_rows(self) -> int:
        """The largest measured step that costs hardly more than a plain one."""
        return max(point.rows for point in self.points if point.every <= NEARLY_FREE * self.single)

    @property
    def ceiling(self) -> tuple[int, float]:
        """Rows, and the speed-up where all of them come true: the most that any guesser could reach, b / t(b)."""
        best = max(self.points, key=lambda point: point.rows / point.every)
        return best.rows, best.rows / self.relative(best.rows)

    def _on_line(self, rows: int, seconds: Callable[[Point], float]) -> float:
        above = bisect_left(self.points, rows, key=lambda point: point.rows)
        if above == len(self.points):
            end, slope = self.points[-1], self._last_slope(seconds)
        else:
            end = self.points[above]
            slope = _slope(self.points[above - 1], end, seconds) if end.rows > rows else 0.0
        return seconds(end) + slope * (rows - end.rows)

    def _last_slope(self, seconds: Callable[[Point], float]) -> float:
        """Seconds a row at the end; over the upper half, because the last two sizes differ by little but noise."""
        end = self.points[-1]
        lower = [point for point in self.points if 2 * point.rows <= end.rows]
        return max(_slope(lower[-1], end, seconds), 0.0) if lower else 0.0


def _slope(start: Point, end: Point, seconds: Callable[[Point], float]) -> float:
    return (seconds(end) - seconds(start)) / (end.rows - start.rows)


@dataclass(frozen=True)
class Cost:
    """The staircases of one model on one machine, by context, and how they came about.

    description: the model in llama.cpp's words. devices: what computed. chain_only: why the model takes no trees, and
    without staircases single rows only. notes: what was left out. measured_at: seconds since 1970. budget: seconds
    that the measurement was given.
    """

    staircases: tuple[Staircase, ...]
    description: str = ""
    devices: str = ""
    chain_only: str = ""
    notes: tuple[str, ...] = ()
    measured_at: float = 0.0
    budget: float = 0.0

    @property
    def rough(self) -> bool:
        """Whether at least half of the times vary so much that they say little."""
        spreads = [point.spread for staircase in self.staircases for point in staircase.points]
        return bool(spreads) and median(spreads) >= ROUGH

    def at(self, context: int) -> Staircase:
        """The staircase behind so many tokens: in a straight line between two measured ones, outside the nearest."""
        assert self.staircases, "ask whether there are any first"
        place = bisect_left(self.staircases, context, key=lambda stairs: stairs.context)
        if place == len(self.staircases):
            return self.staircases[-1]
        above = self.staircases[place]
        if place == 0 or above.context == context:
            return above
        below = self.staircases[place - 1]
        return _between(below, above, (context - below.context) / (above.context - below.context))

    def among(self, replicas: int) -> Cost:
        """The same where so many copies of the model share the rows below a step's input, each on a device alike."""
        return replace(self, staircases=tuple(_among(stairs, replicas) for stairs in self.staircases))


def _among(stairs: Staircase, replicas: int) -> Staircase:
    points = (replace(point, rows=1 + replicas * (point.rows - 1)) for point in stairs.points)
    return replace(stairs, points=tuple(points))


def _between(below: Staircase, above: Staircase, share: float) -> Staircase:
    """The staircase so far on the way from one to the other, at the sizes that both have."""
    points = {point.rows: point for point in below.points}
    pairs = [(points[point.rows], point) for point in above.points if point.rows in points]
    return Staircase(
        round(below.context + share * (above.context - below.context)),
        tuple(
            Point(
                rows=near.rows,
                every=near.every + share * (far.every - near.every),
                first=near.first + share * (far.first - near.first),
                spread=max(near.spread, far.spread),
                repeats=min(near.repeats, far.repeats),
            )
            for near, far in pairs
        ),
    )

"""Simulate a machine with other step costs: a real model on a clock that only decoding steps move.

Modes read this clock and decide as they would on that machine. `benchmarks.replay` compares modes on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import exp
from random import Random
from time import perf_counter, thread_time
from unittest.mock import patch

import numpy as np

from lacli.auto.step_cost import ROWS, Cost, StepCost
from lacli.batch import Batch, Ints
from lacli.check.judge import BatchRecorder
from lacli.context import Context, Floats
from lacli.errors import UsageError

PLAIN_S = 0.01
"""Seconds of a step of one row."""

NOISE_SEED = 2402

SHAPES = {
    "gpu": "1:1,64:1.3",
    "q4_0": "1:1,2:1.9,4:2.7,8:4.9,16:7.1,32:14,64:27",
    "f16": "1:1,2:2.0,4:2.5,8:3.7,16:5.9,32:10,64:19",
}
"""Step costs by rows, in steps of one row. gpu: 64 rows are nearly free. Others: a 0.5B model, two AVX-512 cores."""


class Stairs:
    """Relative costs of steps by rows: straight lines between points, and the last slope after the last point.

    `change`: the extra cost of a step after a step with a different number of rows, in plain steps.
    """

    def __init__(self, points: Sequence[tuple[float, float]], change: float = 0.0) -> None:
        self.rows, self.costs = zip(*points, strict=True)
        self.change = change

    @classmethod
    def named(cls, text: str) -> Stairs:
        """Return the stairs of a name in SHAPES, or of points such as 1:1,8:2.5. Raises UsageError otherwise."""
        try:
            points = [tuple(map(float, point.split(":"))) for point in SHAPES.get(text, text).split(",")]
            return cls([(rows, cost) for rows, cost in points])
        except ValueError:
            raise UsageError(f"{text!r} is no staircase", f"one of {', '.join(SHAPES)}, or 1:1,8:2.5") from None

    def __call__(self, rows: int) -> float:
        if rows <= self.rows[-1] or len(self.rows) == 1:
            return float(np.interp(rows, self.rows, self.costs))
        slope = (self.costs[-1] - self.costs[-2]) / (self.rows[-1] - self.rows[-2])
        return float(self.costs[-1] + slope * (rows - self.rows[-1]))

    def cost(self, plain_s: float = PLAIN_S, sizes: Sequence[int] = ROWS) -> Cost:
        """Return step costs for mode auto, as if each of `sizes` had been measured."""
        return Cost((StepCost(64, {rows: plain_s * self(rows) for rows in sizes}),), plain_s * self.change)


@contextmanager
def clock_of(now: Callable[[], float]) -> Iterator[None]:
    """Replace perf_counter in every module of lacli by `now`, which returns seconds."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("lacli.") and getattr(module, "perf_counter", None) is perf_counter:
                stack.enter_context(patch.object(module, "perf_counter", now))
        yield


class SimulatedContext(BatchRecorder):
    """A context with a clock that each step moves by its cost in `stairs`, and nothing else moves.

    spent_s: real processor seconds of its calls. changes: steps after a step with a different number of rows.
    """

    def __init__(self, engine: Context, stairs: Stairs, noise: float = 0.0, plain_s: float = PLAIN_S) -> None:
        """`noise`: the standard deviation of the logarithm of a step's time. `plain_s`: seconds of a plain step."""
        super().__init__(engine)
        self._stairs, self._plain_s = stairs, plain_s
        self._noise, self._last = noise, 0
        self._random = Random(NOISE_SEED)
        self._steps_s = 0.0
        self.spent_s = 0.0
        self.changes = 0

    @property
    def now(self) -> float:
        """The clock, in seconds."""
        return self._steps_s

    def decode(self, batch: Batch) -> bool:
        with self._spending():
            fits = self.context.decode(batch)
        change = self._stairs.change if len(batch) != self._last else 0.0
        self.changes += len(batch) != self._last
        self._last = len(batch)
        self._steps_s += self._plain_s * (self._stairs(len(batch)) + change) * exp(self._random.gauss(0, self._noise))
        return fits

    def greedy(self) -> Ints:
        with self._spending():
            return self.context.greedy()

    def row_logits(self, row: int) -> Floats:
        with self._spending():
            return self.context.row_logits(row)

    def clock(self) -> AbstractContextManager[None]:
        """Replace perf_counter in every module of lacli by this clock."""
        return clock_of(lambda: self.now)

    @contextmanager
    def _spending(self) -> Iterator[None]:
        begin = thread_time()
        yield
        self.spent_s += thread_time() - begin

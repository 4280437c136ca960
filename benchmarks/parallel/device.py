"""Devices that compute nothing and take as long as a staircase says, each by the clock of its own thread.

Who decodes what on them is lacli's own affair (`lacli/replicas/`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from lacli.batch import Batch, Ints
from lacli.engine import Floats, Successors

ROOM = 1 << 20
"""Cells; nothing that is simulated fills them."""

BATCH_ROWS = 1 << 12
SEQUENCES = 256

Travel = Callable[[int, int], float]
"""Plain steps that a part spends on the way to another machine and back, by its rows and outputs."""


class Clock(threading.local):
    """Plain steps that a thread has spent so far."""

    now = 0.0

    def read(self) -> float:
        return self.now


class Device:
    """An Engine whose batches move its thread's clock. took: plain steps since it was last set to 0."""

    cells = ROOM
    batch_rows = prefill_rows = mixed_rows = trained_context = BATCH_ROWS
    sequences = SEQUENCES
    vocabulary = 1
    can_lend = True
    can_shift = False
    saver = None

    def __init__(self, clock: Clock, stairs: Callable[[int], float], travel: Travel | None) -> None:
        """travel: to a device that is not here."""
        self._clock = clock
        self._stairs = stairs
        self._travel = travel
        self._outputs = 0
        self.took = 0.0

    def decode(self, batch: Batch) -> bool:
        rows, self._outputs = len(batch), batch.wanted
        spent = self._stairs(rows) + (self._travel(rows, self._outputs) if self._travel else 0.0)
        self._clock.now += spent
        self.took += spent
        return True

    def greedy(self) -> Ints:
        return np.zeros(self._outputs, np.int32)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """It has no cells."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return True

    def clear(self) -> None:
        """It has no cells."""

    def is_end(self, token: int) -> bool:
        return False

    def logits(self) -> Floats:
        raise NotImplementedError

    def row_logits(self, row: int) -> Floats:
        raise NotImplementedError

    def successors(self, count: int) -> Successors:
        raise NotImplementedError

    def shift(self, sequence: int, start: int, end: int, by: int) -> None:
        raise NotImplementedError

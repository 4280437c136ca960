"""A toy context that reads cells in blocks of four, as ik_llama.cpp's attention does in larger blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lacli.batch import Batch
from lacli.ik.pin import Pin
from tests.fakes.context import FakeContext

BLOCK = 4


@dataclass
class BlockContext(FakeContext):
    """A context with neighbouring cells for a batch's rows. It reads cells up to the block of the last occupied end.

    `is_pinned`: the end of a block is kept occupied, as in `lacli.ik.pin`. `moves`: how often cells were moved.
    """

    is_pinned: bool = True
    moves: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pin = Pin(self.ids, BLOCK)
        self._head = self._rows_now = 0
        self._reach: int | None = None

    def decode(self, batch: Batch) -> bool:
        self._rows_now = len(batch)
        if len(self._cells) + len(batch) <= self.cells and self._find() is None:
            self.moves += 1
            super().remove(self._pin.id, -1, -1)
            self._pin.forget()
            for slot, cell in enumerate(sorted(self._cells, key=lambda each: each.slot)):
                cell.slot = slot
            self._head = 0
        self._reach = 0
        fits = super().decode(batch)
        self._reach = None
        if fits and self.is_pinned:
            ids, positions = np.full(self.cells, -1), np.zeros(self.cells, int)
            for cell in self._cells:
                ids[cell.slot], positions[cell.slot] = min(cell.owners), cell.position
            self._pin.place(ids, positions, self.copy, self.remove)
        return fits

    def remove(self, sequence: int, start: int, end: int) -> bool:
        ids = range(self.ids) if sequence < 0 else (sequence,)
        return all([super(BlockContext, self).remove(each, start, end) for each in ids])

    def clear(self) -> None:
        super().clear()
        self._pin.forget()
        self._head = 0

    def _find(self) -> int | None:
        """Return the first of neighbouring free cells for all rows, or None; search from the last batch's end on."""
        taken = {cell.slot for cell in self._cells}
        if self._head > len(taken) + 2 * self._rows_now:
            self._head = 0
        starts = [*range(self._head, self.cells), *range(self._head)]
        fits = (start for start in starts if start + self._rows_now <= self.cells)
        return next((start for start in fits if taken.isdisjoint(range(start, start + self._rows_now))), None)

    def _free_slots(self) -> Iterator[int]:
        start = self._find()
        assert start is not None, "cells were moved together"
        self._head = start + self._rows_now
        taken = {cell.slot for cell in self._cells} | {*range(start, self._head)}
        highest = max((slot for slot in taken if slot % BLOCK == BLOCK - 1), default=-1)
        self._reach = highest + 1 + BLOCK
        return iter(range(start, self._head))

    def _check_sequence(self, sequence: int) -> None:
        if sequence != self._pin.id:
            super()._check_sequence(sequence)

    def _visible(self, sequence: int, position: int) -> list[tuple[int, int]]:
        found = (cell for cell in self._cells if self._reach is None or cell.slot < self._reach)
        return sorted(
            (cell.position, cell.token) for cell in found if sequence in cell.owners and cell.position <= position
        )

"""The pin: one cell that is kept occupied, so that ik_llama.cpp's attention reaches all cells of several sequences.

Attention reads cells up to a bound that `llama_kv_cache_cell_max` finds: it looks at the last cell of each block of 32,
from the end of the cache down, and at one block after the first occupied one. So every cell is read if the highest
occupied end of a block lies at most one block below the highest cell. New rows come right after the highest cell, or
below it, so no batch jumps over the end of a block; but sequences that end or take drafts back may free such a cell.
The pin is an id of its own that owns this cell too. Measured with 4 sequences: docs/internals/measured.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lacli.batch import Ints

BLOCK = 32
"""Cells of a block without flash attention."""


class Pin:
    """Owns the highest occupied end of a block. `id`: the pin's sequence id, above those of all sequences."""

    def __init__(self, id: int, block: int = BLOCK) -> None:
        self.id, self._block, self._cell = id, block, -1

    def forget(self) -> None:
        """Own no cell: the cache was cleared, or its cells have moved."""
        self._cell = -1

    def place(
        self,
        ids: Ints,
        positions: Ints,
        copy: Callable[[int, int, int, int], object],
        remove: Callable[[int, int, int], object],
    ) -> None:
        """Follow the cells after a decode, before any of them is removed.

        `ids`, `positions`: (cells,), the lowest sequence id and the position of each cell, id -1 for a free one.
        `copy`, `remove`: as a Context has them.
        """
        owned = np.flatnonzero((ids >= 0) & (ids != self.id))
        ends = owned[owned % self._block == self._block - 1]
        top, end = (int(each[-1]) if len(each) else -1 for each in (owned, ends))
        if end == self._cell or top - end > self._block:
            return
        remove(self.id, -1, -1)
        if end >= 0:
            position = int(positions[end])
            copy(int(ids[end]), self.id, position, position + 1)
        self._cell = end

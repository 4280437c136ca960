"""The pin: one occupied cell, so that ik_llama.cpp's attention reaches all cells of several sequences.

Attention reads cells up to a bound from `llama_kv_cache_cell_max`. This function goes down from the end of the cache,
looking only at the last cell of each block of 32. If this cell is occupied, it checks each cell of the block above, and
ends. So every cell is read if the highest occupied last cell of a block lies at most one block below the highest
occupied cell. New rows come right after this cell or below it, so no batch skips a last cell. But an ended sequence or
a rejected draft may free a last cell. So the pin, an extra sequence id, owns it too (docs/internals/measured.md).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lacli.batch import Ints

BLOCK = 32
"""Cells of a block without flash attention."""


class Pin:
    """The pin: a sequence id that keeps one cell occupied. `id`: higher than other ids. `block`: a block's size."""

    def __init__(self, id: int, block: int = BLOCK) -> None:
        self.id, self._block, self._cell = id, block, -1

    def forget(self) -> None:
        """Record that the pin owns no cell, after the cache was cleared or its cells were moved."""
        self._cell = -1

    def place(
        self,
        ids: Ints,
        positions: Ints,
        copy: Callable[[int, int, int, int], object],
        remove: Callable[[int, int, int], object],
    ) -> None:
        """Move the pin to the highest occupied last cell of a block, after a decode and before cells are removed.

        `ids`, `positions`: (cells,), the lowest sequence id (-1: a free cell) and the position of each cell. `copy`,
        `remove`: the Context's methods of these names.
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

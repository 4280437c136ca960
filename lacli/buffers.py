"""The memory behind llama_batch: arrays made once, written through numpy at every step.

Addresses and numbers; `batch.py` says what a batch means and `llama.py` hands the addresses to the library.
"""

from __future__ import annotations

import numpy as np

from lacli.batch import Batch


class BatchBuffers:
    """Room for `rows` rows and as many sequence ids as a batch has brought so far.

    ids: the sequence ids of all rows, one row after another; pointers[k] is the address of row k's first one.
    """

    def __init__(self, rows: int) -> None:
        self.tokens = np.zeros(rows, np.int32)
        self.positions = np.zeros(rows, np.int32)
        self.counts = np.zeros(rows, np.int32)
        self.outputs = np.zeros(rows, np.int8)
        self.pointers = np.zeros(rows, np.uintp)
        self._ids = np.zeros(rows, np.int32)

    def fill(self, batch: Batch) -> None:
        """Copy a batch of at most `rows` rows in; the addresses stay the same but for those of the ids."""
        rows, ids = len(batch), len(batch.sequence_ids)
        if ids > len(self._ids):
            self._ids = np.zeros(2 * ids, np.int32)
        self.tokens[:rows] = batch.tokens
        self.positions[:rows] = batch.positions
        self.counts[:rows] = batch.sequence_counts
        self.outputs[:rows] = batch.outputs
        self._ids[:ids] = batch.sequence_ids
        starts = np.cumsum(batch.sequence_counts) - batch.sequence_counts
        self.pointers[:rows] = self._ids.ctypes.data + starts * self._ids.itemsize

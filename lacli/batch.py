"""A batch of one llama_decode call as plain arrays: tokens, positions, sequence ids, and which logits are wanted.

`tree.py` says which tokens go in, `llamacpp/context.py` hands the arrays to the library.

One step of lookahead with W = 5, N = 4, G = 2 before paths are merged. I is the input, C a candidate's token, a digit
the window row. Positions are relative to the input. `=` marks the rows whose choice is read: the input, all candidate
tokens, and each window column's last row. `*` marks a row's ids:
```text
    row          0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20
    part         I  C  C  C  C  C  C  1  2  0  1  2  0  1  2  0  1  2  0  1  2
    position     0  1  2  3  1  2  3  1  2  1  2  3  2  3  4  3  4  5  4  5  6
    choice       =  =  =  =  =  =  =     =        =        =        =        =
    id 0         *
    id 1         *                    *  *
    id 2         *                          *  *  *
    id 3         *                          *        *  *  *
    id 4         *                          *        *        *  *  *
    id 5         *                          *        *        *        *  *  *
    id 6         *  *  *  *
    id 7         *           *  *  *
```
Every path begins at the input, so the input has all ids; row 0's c-th token belongs to columns c and later. Paths that
begin alike share rows: two candidates, or a candidate and the window.
Mirrors the batch of llama.cpp's examples/lookahead, which sends every candidate unshared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lacli.tree import ROOT, Tree

Ints = npt.NDArray[np.signedinteger]


class BatchPart(NamedTuple):
    """The rows of one sequence in a step.

    `tree`: the input and the drafts, None for a prompt chunk. `past`: the number of the sequence's tokens in the cache.
    `uncached`: the tokens after these and before the input. `first_id`: the slot's first sequence id, added to each id
    of the tree. `scored`: whether the logits after each of the `uncached` tokens are wanted too.
    """

    tree: Tree | None
    past: int
    uncached: Sequence[int] = ()
    first_id: int = 0
    scored: bool = False


class BatchRow(NamedTuple):
    """A token, its position, the sequence ids that own its cell, and whether its logits are wanted."""

    token: int
    position: int
    ids: list[int]
    output: bool


class Batch:
    """The rows of one llama_decode call, in arrays made once and written for each. `set_` methods return the batch.

    `tokens`, `positions`, `sequence_counts`: (capacity,) int32. `outputs`: (capacity,) int8, 1 for wanted logits.
    `sequence_ids`: the ids of all rows one after another, int32. `sequence_pointers`: (capacity,), the address of each
    row's first id. `rows`: the number of rows in use. `wanted`: the number of rows with wanted logits.
    """

    def __init__(self, capacity: int) -> None:
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self.sequence_counts = np.zeros(capacity, np.int32)
        self.sequence_pointers = np.zeros(capacity, np.uintp)
        self.outputs = np.zeros(capacity, np.int8)
        self.rows = 0
        self.wanted = 0
        self._single: int | None = None
        self._make_room(capacity)

    def __len__(self) -> int:
        return self.rows

    def set_tree(self, tree: Tree, past: int) -> Batch:
        """Write the rows of one sequence's step: node k of the tree becomes row k, at position `past` + its depth."""
        return self.set_parts([BatchPart(tree, past)])

    def set_parts(self, parts: Sequence[BatchPart]) -> Batch:
        """Write the rows of a step of one or more sequences, one part after another."""
        tree, past, uncached, first_id, _ = parts[0]
        repeats = self._single == first_id and len(parts) == 1 and not uncached
        if repeats and tree is not None and len(tree.tokens) == 1 == len(tree.ids[ROOT]):
            # Plain decoding repeats this shape at every step, and Python's time counts there.
            self.tokens[0], self.positions[0] = tree.tokens[0], past
            return self
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[Sequence[int]] = []
        outputs: list[bool] = []
        for tree, past, uncached, first_id, scored in parts:
            input_position = past + len(uncached)
            tokens += uncached
            positions += range(past, input_position)
            outputs += [scored] * len(uncached)
            ids = [[0]] if tree is None else tree.ids
            if first_id:
                ids = [[first_id + sequence for sequence in owners] for owners in ids]
            sequences += [ids[ROOT]] * len(uncached)
            if tree is not None:
                tokens += tree.tokens
                positions += [input_position + depth for depth in tree.depths]
                sequences += ids
                outputs += tree.verified
        return self.set_rows(tokens, positions, sequences, outputs)

    def set_rows(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        outputs: Sequence[bool],
    ) -> Batch:
        """Write these rows in the given order, which is also the order of their cells, and return the batch.

        `sequences`: the ids of each row. `outputs`: for each row, whether its logits are wanted.
        """
        # Sums over a few dozen rows are faster in lists; numpy is for the one copy into llama.cpp's memory.
        rows = self.rows = len(tokens)
        counts = [len(ids) for ids in sequences]
        ids = list(chain.from_iterable(sequences))
        if len(ids) > len(self.sequence_ids):
            self._make_room(2 * len(ids))
        sizes = (self._id_size * count for count in counts[:-1])
        self.tokens[:rows] = tokens
        self.positions[:rows] = positions
        self.sequence_counts[:rows] = counts
        self.sequence_ids[: len(ids)] = ids
        self.sequence_pointers[:rows] = list(accumulate(sizes, initial=self._ids_address))
        self.outputs[:rows] = outputs
        self.wanted = sum(outputs)
        self._single = ids[0] if rows == len(ids) == self.wanted == 1 else None
        return self

    def read(self) -> list[BatchRow]:
        rows, ids = self.rows, iter(self.sequence_ids.tolist())
        owners = [[next(ids) for _ in range(count)] for count in self.sequence_counts[:rows].tolist()]
        tokens, positions = self.tokens[:rows].tolist(), self.positions[:rows].tolist()
        return [*map(BatchRow, tokens, positions, owners, self.outputs[:rows].astype(bool).tolist())]

    def _make_room(self, ids: int) -> None:
        self.sequence_ids = np.zeros(ids, np.int32)
        self._ids_address = self.sequence_ids.ctypes.data
        self._id_size = self.sequence_ids.itemsize


def from_tokens(tokens: Sequence[int], past: int, sequence: int = 0) -> Batch:
    """Make a batch of prompt tokens of the id `sequence`, the first at the position `past`, without wanted logits."""
    return Batch(len(tokens)).set_parts([BatchPart(None, past, tokens, sequence)])

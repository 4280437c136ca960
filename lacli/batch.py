"""A batch of one llama_decode call as plain arrays: tokens, positions, sequence ids and which rows give logits.

Only the arrays are built here; `tree.py` decides which tokens go in and `llama.py` hands them to the library.

One step of lookahead with W = 5, N = 4, G = 2 before anything is merged (positions relative to the input's;
`=` the rows whose choice is read: the input, every candidate token, and each window column's last row):

    row          0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20
    part         I  C  C  C  C  C  C  0  1  2  0  1  2  0  1  2  0  1  2  1  2     window: row number
    position     0  1  2  3  1  2  3  .  1  2  1  2  3  2  3  4  3  4  5  4 ..
    choice       =  =  =  =  =  =  =        =        =        =        =
    sequence 0   I
    sequences 1..5   window column c: the input, c tokens of row 0, then rows 1 and 2 of column c
    sequences 6, 7   candidates: the input, then their three tokens

Every path begins at the input, so the input belongs to all sequences; row 0's c-th token belongs to columns c and
later. Where two paths begin alike (a candidate with another one, or with the window) they share rows.
Mirrors the batch of llama.cpp's examples/lookahead, which sends every candidate unshared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from lacli.tree import Tree

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Rows of one llama_decode call.

    tokens, positions, sequence_counts: (rows,) int32. sequence_ids: the rows' ids one after another,
    (sum of sequence_counts,) int32. outputs: (rows,) int8, 1 where logits are wanted.
    """

    tokens: Ints
    positions: Ints
    sequence_counts: Ints
    sequence_ids: Ints
    outputs: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.tokens)


def from_tree(tree: Tree, past: int) -> Batch:
    """The rows of a step: node k of the tree is row k, at position past + its depth."""
    return Batch(
        tokens=np.array(tree.tokens, np.int32),
        positions=np.array(tree.depths, np.int32) + past,
        sequence_counts=np.fromiter(map(len, tree.sequences), np.int32, len(tree)),
        sequence_ids=np.fromiter(chain.from_iterable(tree.sequences), np.int32),
        outputs=np.array(tree.verified, np.int8),
    )


def from_tokens(tokens: Sequence[int], past: int) -> Batch:
    """The rows of a piece of prompt: sequence 0, no logits wanted."""
    count = len(tokens)
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.arange(past, past + count, dtype=np.int32),
        sequence_counts=np.ones(count, np.int32),
        sequence_ids=np.zeros(count, np.int32),
        outputs=np.zeros(count, np.int8),
    )

"""The guesses of one step as a tree: paths from the input, merged where they begin alike.

Token ids and sequence ids only. Where a node stands in the cache and in a batch is `batch.py`'s affair.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

ROOT = 0


class Origin(Enum):
    """Where an accepted token was guessed."""

    MODEL = "model"
    POOL = "pool"
    WINDOW = "window"
    CHAIN = "chain"


class Tree:
    """A tree of guesses below the input token, which is node 0.

    Each path belongs to one sequence id. A node lists the ids of all paths through it, so all of its ids see the
    same tokens before it, which is what llama.cpp's mask needs. With the paths (1, 2) in sequence 1 and
    (1, 3) in sequence 2 the tree holds four nodes:

        input {0,1,2} ── 1 {1,2} ─┬─ 2 {1}
                                  └─ 3 {2}
    """

    def __init__(self, root: int, sequences: Iterable[int] = (0,)) -> None:
        self.tokens = [root]
        self.depths = [0]
        self.origins = [Origin.MODEL]
        self.sequences = [list(sequences)]
        self.verified = [True]
        self._children: list[dict[int, int]] = [{}]

    def __len__(self) -> int:
        return len(self.tokens)

    def add(
        self, path: Iterable[int], sequence: int | None, origin: Origin, *, verify: bool = True, start: int = ROOT
    ) -> int:
        """Merge a path that begins below node `start` and return the node it ends at.

        sequence: the path's own id, or None when it runs in the root's. verify: whether the model's choice after
        every node of the path is wanted, so that the walk may go down it.
        """
        node = start
        for token in path:
            children = self._children[node]
            below = children.get(token)
            if below is None:
                below = self._append(token, self.depths[node] + 1, origin)
                children[token] = below
                self.sequences.append([] if sequence is not None else self.sequences[node])
                self.verified.append(verify)
            elif verify:
                self.verified[below] = True
            if sequence is not None:
                self.sequences[below].append(sequence)
            node = below
        return node

    def missing(self, path: Iterable[int]) -> int:
        """How many nodes `add` would append for a path from the root."""
        node: int | None = ROOT
        missing = 0
        for token in path:
            node = None if node is None else self._children[node].get(token)
            missing += node is None
        return missing

    def child(self, node: int, token: int) -> int | None:
        """The node reached from `node` by `token`, if the model's choice after it is known."""
        below = self._children[node].get(token)
        return below if below is not None and self.verified[below] else None

    def _append(self, token: int, depth: int, origin: Origin) -> int:
        self.tokens.append(token)
        self.depths.append(depth)
        self.origins.append(origin)
        self._children.append({})
        return len(self.tokens) - 1

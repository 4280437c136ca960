"""The drafts of one step as a tree: paths from the input, merged while they are equal.

It has token ids and sequence ids only: `engine/cells.py` and `batch.py` place its nodes in the cache and in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

ROOT = 0


class Origin(Enum):
    """The source of a token of a step: MODEL for the model's own choice, others for drafts."""

    MODEL = "model"
    POOL = "pool"
    WINDOW = "window"
    CHAIN = "chain"
    SUFFIX = "suffix"


class Tree:
    """A tree of drafts below the input token, which is node 0.

    Lists by node: `tokens`, `parents`, `depths`, `origins`, `ids`, and `verified`, whether the model's choice after the
    node is read. Each path has one id; 0 is the sequence's own. A node has the ids of all paths through it. So all of
    its ids see the same tokens before it, as llama.cpp's mask needs. With the paths (1, 2) of id 1 and (1, 3) of id 2
    the tree has four nodes:

        input {0,1,2} ── 1 {1,2} ─┬─ 2 {1}
                                  └─ 3 {2}

    `add_path` adds paths whose ids are known. `add_node` adds nodes without ids; call `assign_ids` once after them.
    """

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [ROOT]
        self.depths = [0]
        self.origins = [Origin.MODEL]
        self.ids = [[0]]
        self.verified = [True]
        self._children: list[dict[int, int]] = [{}]

    def __len__(self) -> int:
        return len(self.tokens)

    def add_path(self, path: Sequence[int], sequence: int, origin: Origin, *, verify: bool = True) -> int:
        """Add a path of tokens below the input for the id `sequence`; return its last node. Equal nodes are shared.

        `verify`: read the model's choice after every node of the path, so that its tokens can be accepted.
        """
        node = ROOT
        children, ids = self._children, self.ids
        if sequence:
            ids[ROOT].append(sequence)
        for token in path:
            below = children[node].get(token)
            if below is None:
                below = children[node][token] = len(children)
                self._append(node, token, origin, verify=verify)
            elif verify:
                self.verified[below] = True
            ids[below].append(sequence)
            node = below
        return node

    def add_node(self, parent: int, token: int, origin: Origin) -> int:
        """Append a node without ids below the node `parent`, and return its number."""
        node = self._children[parent][token] = len(self.tokens)
        self._append(parent, token, origin, verify=True)
        return node

    def assign_ids(self, first: int) -> None:
        """Give each leaf and all nodes above it one id: `first`, then the next number. 0 is for a single leaf only."""
        for node in range(1, len(self.tokens)):
            if not self._children[node]:
                if first:
                    self.ids[ROOT].append(first)
                below = node
                while below:
                    self.ids[below].append(first)
                    below = self.parents[below]
                first += 1

    def pad(self) -> None:
        """Append a node below the input that is decoded and read but never accepted."""
        self._append(ROOT, self.tokens[ROOT], Origin.MODEL, verify=True)
        self.ids[-1].append(0)

    def _append(self, parent: int, token: int, origin: Origin, *, verify: bool) -> None:
        self._children.append({})
        self.parents.append(parent)
        self.ids.append([])
        self.tokens.append(token)
        self.depths.append(self.depths[parent] + 1)
        self.origins.append(origin)
        self.verified.append(verify)

    def missing(self, path: Sequence[int]) -> int:
        """Return the number of nodes that `add_path` would append for a path of tokens."""
        node = ROOT
        for depth, token in enumerate(path):
            below = self._children[node].get(token)
            if below is None:
                return len(path) - depth
            node = below
        return 0

    def child(self, node: int, token: int) -> int | None:
        """Return the child of `node` with this token; None if absent, or if the choice after the child is not read."""
        below = self._children[node].get(token)
        return below if below is not None and self.verified[below] else None

    def guesses(self, node: int) -> list[int]:
        """Return the tokens for which `child` finds a child of `node`, in the order of their drafts."""
        return [token for token, below in self._children[node].items() if self.verified[below]]

    def reachable(self) -> tuple[Origin, ...]:
        """Return the origins of drafted tokens that can be accepted: they and all nodes above them are `verified`."""
        if len(self.tokens) == 1:
            return ()
        found = [ROOT]
        for node in found:
            found += [below for below in self._children[node].values() if self.verified[below]]
        return tuple(self.origins[node] for node in found[1:])

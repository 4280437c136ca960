"""Deals the branches of a step out to several replicas, so that all have done at the same time.

A branch is a sequence id: a window column or a candidate. What branches share (the input, row 0 of the window, the
beginning of candidates) goes to every replica that has one of them, as in Figure 3 of the paper. Trees and times only;
who decodes is `replica.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from lacli.tree import ROOT, Tree

CLOSE = 0.01
"""How near to the best time, as a part of it, a deal is good enough."""

TERM = 16
"""Steps over which it counts what a replica has to decode before it can take whole ones."""


class Hand(NamedTuple):
    """What a replica can take: t(b) = fixed + row b seconds, and at most `most` rows of a batch.

    behind: accepted tokens that it lacks and has to decode in front of its part.
    """

    fixed: float
    row: float
    behind: int
    most: int

    def seconds(self, rows: int) -> float:
        """How long it takes for the input, so many rows below it, and what it lacks; no time is enough for too many."""
        rows += 1 + self.behind
        return self.fixed + self.row * rows if rows <= self.most else inf

    def seconds_from_now_on(self, rows: int) -> float:
        """The same of each step, if it takes this one and the next ones: what it lacks it decodes only once."""
        once = self.row * self.behind
        return self.seconds(rows) - once + once / TERM

    def rows_within(self, seconds: float) -> int:
        """Rows below the input that it can decode in so long, at least 0."""
        rows = (seconds - self.fixed) / self.row if self.row > 0 else inf if seconds >= self.fixed else 0
        return max(int(min(rows + CLOSE, self.most)) - 1 - self.behind, 0)


class Part:
    """The branches of a tree that one replica decodes, as `Batch` and `Cache` take them.

    nodes: which of the tree's each row is, in the tree's order.
    """

    def __init__(self, tree: Tree, branches: Sequence[int], paths: dict[int, list[int]]) -> None:
        owners: dict[int, list[int]] = {ROOT: [0]}
        for branch in branches:
            if branch:
                owners[ROOT].append(branch)
            for node in paths[branch]:
                owners.setdefault(node, []).append(branch)
        self.nodes = sorted(owners)
        self.tokens = [tree.tokens[node] for node in self.nodes]
        self.depths = [tree.depths[node] for node in self.nodes]
        self.verified = [tree.verified[node] for node in self.nodes]
        self.sequences = [owners[node] for node in self.nodes]


def paths_of(tree: Tree) -> dict[int, list[int]]:
    """The nodes of each branch from the top down, the input not among them; a chain of the text's own is branch 0."""
    paths: dict[int, list[int]] = {}
    for node, branches in enumerate(tree.sequences[1:], start=1):
        for branch in branches:
            paths.setdefault(branch, []).append(node)
    return paths


def deal(paths: dict[int, list[int]], hands: Sequence[Hand]) -> list[list[int]]:
    """The branches of each hand, of which some get none. paths: the nodes of each branch.

    Neighbours stay together, because they share the most; the time of the slowest is as short as it can be so.
    """
    branches = sorted(paths, key=paths.__getitem__)
    in_order = [paths[branch] for branch in branches]
    alone = [len(path) for path in in_order]
    together = [0]
    seen: set[int] = set()
    for path in in_order:
        seen.update(path)
        together.append(len(seen))
    # Each could take all that the others leave, so the time of the fastest alone is enough.
    enough = min(hand.seconds(len(seen)) for hand in hands)
    assert enough < inf, "the caller sees to it that one replica can take the whole step"
    best, least = _fill(alone, together, hands, enough), 0.0
    assert best is not None, "what one can do all can do"
    while enough - least > CLOSE * enough:
        middle = (least + enough) / 2
        found = _fill(alone, together, hands, middle)
        if found is None:
            least = middle
        else:
            best, enough = found, middle
    ends = [0, *best]
    return [branches[begin:end] for begin, end in pairwise(ends)]


def _fill(alone: Sequence[int], together: Sequence[int], hands: Sequence[Hand], seconds: float) -> list[int] | None:
    """How many branches have been dealt after each hand when all stop in time; None where some are left.

    alone: rows of each branch by itself. together: rows of so many branches from the first on. What one shares with
    any before it, it shares with its neighbour.
    """
    dealt, ends = 0, []
    for hand in hands:
        if dealt < len(alone):
            room = hand.rows_within(seconds) - alone[dealt] + together[dealt + 1]
            dealt = max(dealt, bisect_right(together, room) - 1)
        ends.append(dealt)
    return ends if dealt == len(alone) else None

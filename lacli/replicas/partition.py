"""Partitions the branches of a step among replicas so that the slowest one finishes as early as possible.

A branch is a sequence id: a window column or a candidate. What branches share (the input, row 0 of the window, the
beginning of candidates) goes to every replica with one of those branches, as in Figure 3 of the paper.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from lacli.tree import ROOT, Tree

CLOSE = 0.01
"""Relative distance from the best time at which the search ends; the times of equal steps vary by more."""

CATCH_UP_STEPS = 16
"""Steps over which the cost of catching up is spread for a replica that would take whole steps from now on."""


class Load(NamedTuple):
    """The speed and capacity of a replica: t(b) = fixed + row b seconds, with at most `max_rows` rows in a batch.

    `behind`: accepted tokens that the replica lacks, decoded in front of its part.
    """

    fixed: float
    row: float
    behind: int
    max_rows: int

    def seconds(self, rows: int) -> float:
        """Seconds for the input, `rows` rows below it and the `behind` tokens; inf if they exceed `max_rows`."""
        rows += 1 + self.behind
        return self.fixed + self.row * rows if rows <= self.max_rows else inf

    def seconds_from_now_on(self, rows: int) -> float:
        """Seconds of a step of `rows` rows, with the cost of catching up spread over `CATCH_UP_STEPS` steps."""
        once = self.row * self.behind
        return self.seconds(rows) - once + once / CATCH_UP_STEPS

    def rows_within(self, seconds: float) -> int:
        """Rows below the input that the replica can decode in `seconds`; 0 if none."""
        rows = (seconds - self.fixed) / self.row if self.row > 0 else inf if seconds >= self.fixed else 0
        return max(int(min(rows + CLOSE, self.max_rows)) - 1 - self.behind, 0)


class Part:
    """The branches of a tree that one replica decodes, as `Batch` and `Cache` take them.

    `nodes`: the tree's node of each row, in the tree's order.
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
    """The nodes of each branch from the top down, without the input; a linear draft is branch 0."""
    paths: dict[int, list[int]] = {}
    for node, branches in enumerate(tree.sequences[1:], start=1):
        for branch in branches:
            paths.setdefault(branch, []).append(node)
    return paths


def partition(paths: dict[int, list[int]], loads: Sequence[Load]) -> list[list[int]]:
    """The branches of each replica; a replica may get none. `paths`: the nodes of each branch.

    Neighbouring branches stay together because they share the most rows. Under that rule the slowest replica's time is
    minimal, to a relative `CLOSE`.
    """
    branches = sorted(paths, key=paths.__getitem__)
    in_order = [paths[branch] for branch in branches]
    alone = [len(path) for path in in_order]
    together = [0]
    seen: set[int] = set()
    for path in in_order:
        seen.update(path)
        together.append(len(seen))
    # An upper bound: the fastest replica takes the whole step.
    enough = min(load.seconds(len(seen)) for load in loads)
    assert enough < inf, "one replica can take the whole step"
    best, least = _fill(alone, together, loads, enough), 0.0
    assert best is not None, "all replicas together need no longer than the fastest alone"
    while enough - least > CLOSE * enough:
        middle = (least + enough) / 2
        found = _fill(alone, together, loads, middle)
        if found is None:
            least = middle
        else:
            best, enough = found, middle
    ends = [0, *best]
    return [branches[begin:end] for begin, end in pairwise(ends)]


def _fill(alone: Sequence[int], together: Sequence[int], loads: Sequence[Load], seconds: float) -> list[int] | None:
    """The end of each replica's branches if all take at most `seconds`; None if branches are left over.

    `alone`: rows of each branch by itself. `together`: rows of the first n branches. All rows that a branch shares with
    earlier branches it shares with its neighbour.
    """
    given, ends = 0, []
    for load in loads:
        if given < len(alone):
            room = load.rows_within(seconds) - alone[given] + together[given + 1]
            given = max(given, bisect_right(together, room) - 1)
        ends.append(given)
    return ends if given == len(alone) else None

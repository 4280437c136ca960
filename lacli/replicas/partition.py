"""Deals the branches of a step evenly among replicas.

A branch is a sequence id: a window column or a candidate. What branches share (the input, row 0 of the window, the
beginning of candidates) goes to every replica with one of those branches, as in Figure 3 of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lacli.tree import ROOT, Tree


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


def dealt(tree: Tree, count: int) -> list[Part]:
    """At most `count` parts of a tree with as many branches each; neighbours, which share most rows, stay together."""
    paths = paths_of(tree)
    branches = sorted(paths, key=paths.__getitem__)
    bounds = [round(len(branches) * place / count) for place in range(count + 1)]
    return [Part(tree, branches[begin:end], paths) for begin, end in pairwise(bounds) if begin < end]

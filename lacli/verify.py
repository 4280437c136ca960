"""Verification: how far the model agrees with a tree of guesses.

The one accept function of all modes. How a token is chosen (the largest logit, a sampler) is the caller's:
sampling plugs in as another `choose`, and nothing else here changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lacli.tree import ROOT, Tree

Choose = Callable[[int], int]
"""The token that follows node `n`; called once for each accepted node, in the order of the text."""


@dataclass(frozen=True)
class Path:
    """The accepted way down a tree.

    nodes: the accepted guesses. tokens: what the model chose, one more than there are nodes: the last one is the
    bonus token, which is not in the tree and becomes the next input.
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]


def walk(tree: Tree, choose: Choose) -> Path:
    """Go down from the input while a child equals the choice (Algorithm 3 of the paper; Algorithm 4's place too)."""
    nodes: list[int] = []
    tokens = [choose(ROOT)]
    node = tree.child(ROOT, tokens[-1])
    while node is not None:
        nodes.append(node)
        tokens.append(choose(node))
        node = tree.child(node, tokens[-1])
    return Path(tuple(nodes), tuple(tokens))

"""Verification: how far the model agrees with a tree of guesses.

The one accept function of all modes. How a token is chosen (the largest logit, a sampler) is the caller's:
sampling plugs in as another `choose`, and nothing else here changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lacli.stats import Finish
from lacli.tree import ROOT, Tree

Choose = Callable[[int], int]
"""The token that follows node `n`; called once for each accepted node, in the order of the text."""

Ends = Callable[[int, int], Finish | None]
"""Why the text ends with a token, the n-th of this step counted from 1, or None; asked before the next choice."""


class Path(NamedTuple):
    """The accepted way down a tree.

    nodes: the accepted guesses. tokens: what the model chose, one more than there are nodes: the last one is the
    model's own and becomes the next input. finish: why nothing comes after it, or None.
    """

    nodes: list[int]
    tokens: list[int]
    finish: Finish | None


def walk(tree: Tree, choose: Choose, ends: Ends) -> Path:
    """Go down from the input while a child equals the choice (Algorithm 3 of the paper; Algorithm 4's place too)."""
    nodes: list[int] = []
    tokens = [choose(ROOT)]
    finish = ends(tokens[0], 1)
    node = tree.child(ROOT, tokens[0])
    while node is not None and finish is None:
        nodes.append(node)
        tokens.append(choose(node))
        finish = ends(tokens[-1], len(tokens))
        node = tree.child(node, tokens[-1])
    return Path(nodes, tokens, finish)

"""The trees of a timed answer, noted while it is made and taken again when it is judged.

A mode that goes by the clock takes other steps the next time, and where they part from plain's text depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence

from lacli.decode import Decoder
from lacli.modes import Mode
from lacli.tree import Tree


class Noting(Decoder):
    """A decoder for one answer that notes the tree of each step, which takes no time."""

    def _learn_anew(self) -> None:
        self.trees: list[Tree] = []
        super()._learn_anew()

    def _decode(self) -> Tree | None:
        tree = super()._decode()
        if tree:
            self.trees.append(tree)
        return tree


class Again(Mode):
    """Guesses what was guessed before, step by step."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._trees = iter(trees)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        tree = next(self._trees, None)
        # Where the same steps give another text, the rest of it was not guessed before.
        return tree if tree and tree.tokens[0] == text[-1] and len(tree) <= room else Tree(text[-1])

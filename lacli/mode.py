"""What a mode is: it grows one tree of guesses a step and observes what became of it.

The interface only. The modes are in `modes.py` and `auto/`, the loop that asks them is `decode.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

from lacli.engine import Successors
from lacli.stats import Plan
from lacli.tree import Tree


class Outcome(NamedTuple):
    """A verified step.

    choices: the most probable token after each output node. nodes: the accepted guesses. rows: of the batch. seconds:
    what it took so far. successors: the most probable tokens after each output node, of at most so many. clock: says
    the time by which `seconds` were counted.
    """

    choices: Mapping[int, int]
    nodes: Sequence[int]
    rows: int
    seconds: float
    successors: Callable[[int], Successors]
    clock: Callable[[], float] = perf_counter

    @property
    def accepted(self) -> int:
        """How many tokens the step brought, the model's own among them."""
        return 1 + len(self.nodes)


class Mode:
    """Guesses for one text after another, of which each may go on from the one before.

    plan: what the last tree was expected to bring, where the mode expects anything.
    """

    plan: Plan | None = None

    def begin(self, text: Sequence[int]) -> None:
        """A generation begins behind a prompt; what is known of its beginning is known still."""

    def prefilled(self, rows: int, seconds: float) -> None:
        """So many rows of the prompt were decoded, in so long."""

    def truncate(self, text: Sequence[int], length: int) -> None:
        """The text, still whole here, is cut back to its first `length` tokens."""

    def grow(self, text: Sequence[int], room: int) -> Tree:
        """A tree below the text's last token with at most `room` (1 or more) nodes.

        Calling it again with less room, when the cache had too little, gives a smaller tree of the same step.
        """
        raise NotImplementedError

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        """Take in a verified step, whose tokens are in the text already."""

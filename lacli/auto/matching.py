"""What sources that follow a text have in common: how sure a match is by its length, and what follows it as a chain.

How a match is found is theirs (`suffix.py`, `kept.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from lacli.auto.belief import Belief
from lacli.auto.source import Source

KINDS = (0, 0, 0, 1, 2, 3, 3, 4, 4, *[5] * 4, *[6] * 4, *[7] * 8, *[8] * 15, 9)
"""The kind of a match by its length, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, 25-39; the last one is all longer ones."""

LAST = len(KINDS) - 1
LENGTHS = 1 << 16
"""A guess's place is that of its token, times this, plus the length of its match."""

NONE = (0, 0)
"""No match."""


def kind(length: int) -> int:
    """The kind of a match of so many tokens."""
    return KINDS[length] if length < LAST else KINDS[LAST]


class Matching(Source):
    """Guesses what came behind the longest match of the text's end.

    belief: how often that is right, by the kind of the match.
    """

    def __init__(self, belief: Belief) -> None:
        self.belief = belief
        # By length of the text: where its longest match goes on, and how long it is.
        self._matches: list[tuple[int, int]] = [NONE]

    @property
    def match(self) -> tuple[int, int]:
        """Where the longest match goes on, and its length; a length of 0: there is none."""
        return self._matches[-1]

    def begin(self, text: Sequence[int]) -> None:
        self._take(text, scored=False)

    def extend(self, text: Sequence[int]) -> None:
        self._take(text, scored=True)

    def chance(self, length: int) -> float:
        """The probability of the token after a match of so many tokens."""
        return self.belief.probability[kind(length)]

    def chain(self, length: int) -> list[int]:
        """The tokens that follow the match: so many of them, or fewer where its text ends."""
        raise NotImplementedError

    def ahead(self, most: int) -> int:
        """How many tokens follow the match, up to `most`."""
        return most

    def _take(self, text: Sequence[int], *, scored: bool) -> None:
        """Follow the text's tokens that are new. scored: learn from them how sure matches are."""
        raise NotImplementedError

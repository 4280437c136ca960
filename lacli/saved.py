"""What texts that have ended leave in memory, outside of the cache, for prompts that begin like them.

In the cache their cells would make every step longer: attention walks all cells, and skips those of others one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lacli.engine import Saved
from lacli.modes import common_prefix


class SavedText(NamedTuple):
    """A text that has ended. `tokens`: those that are saved, as `cells`."""

    tokens: Sequence[int]
    cells: Saved


class SavedTexts:
    """The texts that have ended last, `most` tokens at most, oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._texts: list[SavedText] = []

    def keep(self, saved: SavedText) -> None:
        """Keep a text in the place of those that it goes on from."""
        self._texts = [text for text in self._texts if common_prefix(text.tokens, saved.tokens) < len(text.tokens)]
        self._texts.append(saved)
        while sum(len(text.tokens) for text in self._texts) > self._most:
            self._texts.pop(0)

    def longest(self, tokens: Sequence[int]) -> tuple[SavedText | None, int]:
        """The text that has the most of the beginning of `tokens` in common, and the number of those tokens."""
        found, shared = None, 0
        for text in self._texts:
            if (same := common_prefix(text.tokens, tokens)) > shared:
                found, shared = text, same
        return found, shared

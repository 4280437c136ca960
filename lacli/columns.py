"""The window's part in a step: its columns as branches of the tree, and the n-grams that they find for the pool.

What the window holds is `window.py`, what the pool does with n-grams `pool.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from lacli.pool import NgramPool
from lacli.settings import DecodeSettings, window_rows
from lacli.tree import ROOT, Origin, Tree
from lacli.window import Window

WINDOW_SEED = 2402
"""The window's first guesses come from a generator of their own, so the user's seed never meets them."""


class Columns:
    """A window in the sequences 1 .. W; it has as many columns as it was opened or narrowed to."""

    def __init__(
        self, settings: DecodeSettings, pool: NgramPool, vocabulary: int, is_end: Callable[[int], bool]
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._vocabulary = vocabulary
        self._is_end = is_end
        self._ends: list[int] = []

    def open(self, text: Sequence[int], width: int) -> None:
        """Begin with so many new columns behind a text."""
        self._text = list(text)
        self._random = Random(WINDOW_SEED)
        wanted = width + self._settings.ngram - 3
        guesses = self._pool.chain(text[-1], wanted) if self._settings.window_init == "pool" else ()
        self._window = Window(width, self._settings.ngram, self._draw, guesses)
        self._ends = []

    @property
    def rows(self) -> int:
        """Rows that the columns add to a step, before prefixes are shared."""
        return window_rows(self._window.width, self._settings.ngram)

    def narrow(self, most: int) -> None:
        """Drop columns until there are at most so many rows."""
        while self.rows > most:
            self._window.narrow(self._window.width - 1)

    def add(self, tree: Tree) -> None:
        """Put the columns into a step; only the choice after each one's end is read."""
        self._ends = []
        for column, path in enumerate(self._window.paths(), start=1):
            end = tree.add(path, column, Origin.WINDOW, verify=False)
            tree.verified[end] = True
            self._ends.append(end)

    def take(self, tree: Tree, choices: Mapping[int, int], accepted: int) -> None:
        """Harvest the n-grams of a decoded step into the pool, and slide."""
        window = self._window
        results = [choices[end] for end in self._ends]
        for key, continuation in window.ngrams(tree.tokens[ROOT], results):
            self._pool.insert(key, continuation)
        # An end token would make all guesses after it guesses about another text.
        window.slide([None if self._is_end(token) else token for token in results])
        if self._settings.window_shift == "refill":
            window.shift(accepted - 1)

    def _draw(self) -> int:
        if self._settings.window_init == "random":
            return self._random.randrange(self._vocabulary)
        return self._random.choice(self._text)

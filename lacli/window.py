"""The lookahead window (2D Jacobi) and its place in the tree of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random

from lacli.pool import NgramPool
from lacli.settings import DecodeSettings, window_rows
from lacli.tree import ROOT, Origin, Tree

Draw = Callable[[], int]
"""A token to guess where nothing better is known."""


class Window:
    """Rows of guesses; row r, column c guesses the token at the input's position + r + c.

    Row 0, column 0 is the input itself. Oldest row first: the paper's w^(i-N+2) .. w^i (Algorithm 2, section 3.1).
    """

    def __init__(self, width: int, ngram: int, draw: Draw, guesses: Sequence[int] = ()) -> None:
        """`guesses`: tokens that may follow the input, taken by position; `draw` fills in beyond them."""
        self._draw = draw
        known = [0, *guesses]
        self.rows = [
            [known[row + column] if 0 < row + column < len(known) else draw() for column in range(width)]
            for row in range(ngram - 1)
        ]
        # By column: how many rows from the last one up are the model's choices.
        self._computed = [0] * width

    @property
    def width(self) -> int:
        return len(self.rows[0])

    def narrow(self, width: int) -> None:
        """Keep only the first `width` columns."""
        for row in (*self.rows, self._computed):
            del row[width:]

    def paths(self) -> Iterator[list[int]]:
        """For each column the tokens from the input (not counted) to the column's last row.

        Column c: c tokens of row 0, then column c of rows 1 .. N-2. The model's choice after the path is the
        column's new guess.
        """
        first, *later = self.rows
        for column in range(self.width):
            yield first[1 : column + 1] + [row[column] for row in later]

    def ngrams(self, token: int, results: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The n-grams of this step: (first token, the N-1 after it), of columns with no guess left behind the first.

        `token`: the step's input.
        """
        first_row, *later = self.rows
        begins = [token, *first_row[1:]] if first_row else []
        for computed, begin, *following in zip(self._computed, begins, *later, results, strict=True):
            if computed >= len(later):
                yield begin, tuple(following)

    def slide(self, results: Sequence[int | None]) -> None:
        """Rows move up by one and the results become the last row: once a step, whatever was accepted.

        A guess takes the place of a result that is None.
        """
        self.rows = [*self.rows[1:], [self._draw() if token is None else token for token in results]]
        pairs = zip(self._computed, results, strict=True)
        self._computed = [0 if token is None else computed + 1 for computed, token in pairs]

    def shift(self, columns: int) -> None:
        """Drop the leading columns that accepted tokens have overtaken and refill at the end (Algorithm 2, line 25)."""
        dropped = min(columns, self.width)
        for row in self.rows:
            row[:] = row[dropped:] + [self._draw() for _ in range(dropped)]
        self._computed = self._computed[dropped:] + [0] * dropped


WINDOW_SEED = 2402
"""The window's first guesses come from a generator of their own, so the user's seed never meets them."""


class WindowBranch:
    """A window's branches of a step, in the sequences 1 .. W; as many columns as it was opened or narrowed to."""

    def __init__(
        self, settings: DecodeSettings, pool: NgramPool, vocabulary: int, is_end: Callable[[int], bool]
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._vocabulary = vocabulary
        self._is_end = is_end
        self._ends: list[int] = []

    def open(self, tokens: Sequence[int], width: int) -> None:
        """Begin with `width` new columns behind a text."""
        random, init = Random(WINDOW_SEED), self._settings.window_init
        draw = partial(random.randrange, self._vocabulary) if init == "random" else partial(random.choice, [*tokens])
        guesses = self._pool.draft(tokens[-1], width + self._settings.ngram - 3) if init == "pool" else ()
        self._window = Window(width, self._settings.ngram, draw, guesses)
        self._ends = []

    @property
    def rows(self) -> int:
        """Rows that the columns add to a step, before prefixes are shared."""
        return window_rows(self._window.width, self._settings.ngram)

    def narrow(self, max_rows: int) -> None:
        """Drop columns until there are at most `max_rows` rows."""
        while self.rows > max_rows:
            self._window.narrow(self._window.width - 1)

    def add(self, tree: Tree) -> None:
        """Put the columns into a step; only the choice after each one's end is read."""
        self._ends = []
        for column, path in enumerate(self._window.paths(), start=1):
            end = tree.add_path(path, column, Origin.WINDOW, verify=False)
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

"""The lookahead window (2D Jacobi) and its place in the tree of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

from lacli.settings import window_rows
from lacli.tree import Origin, Tree

WINDOW_SEED = 2402
"""The seed of the window's first guesses, independent of the user's seed."""


class Window:
    """N-1 rows of W guesses each; row r, column c guesses the token at the input's position + r + c.

    Row 0, column 0 is the input itself. Oldest row first: the paper's w^(i-N+2) .. w^i (Algorithm 2, section 3.1). In a
    step's tree the columns have the ids 1 .. W.
    """

    def __init__(self, width: int, ngram: int, tokens: Sequence[int], guesses: Sequence[int] = ()) -> None:
        """`width`: W. `ngram`: N. `guesses`: of tokens after the input, in order; the rest are drawn from `tokens`."""
        self._random, self._tokens = Random(WINDOW_SEED), tokens
        known = [0, *guesses]
        self.rows = [
            [known[row + column] if 0 < row + column < len(known) else self._draw() for column in range(width)]
            for row in range(ngram - 1)
        ]
        self._computed = [0] * width  # by column: how many rows from the last one up are the model's choices
        self._ends: list[int] = []

    @property
    def width(self) -> int:
        return len(self.rows[0])

    def narrow(self, max_rows: int) -> None:
        """Drop columns until the window adds at most `max_rows` rows to a step."""
        while window_rows(self.width, len(self.rows) + 1) > max_rows:
            for row in (*self.rows, self._computed):
                row.pop()

    def paths(self) -> Iterator[list[int]]:
        """Yield for each column the tokens after the input down to the column's last row.

        Column c: c tokens of row 0, then column c of rows 1 .. N-2. The model's choice after these is the new guess.
        """
        first, *later = self.rows
        for column in range(self.width):
            yield first[1 : column + 1] + [row[column] for row in later]

    def add_to(self, tree: Tree) -> None:
        """Add each column's path to the tree of a step. The model's choice is read only after the end of the path."""
        self._ends = []
        for column, path in enumerate(self.paths(), start=1):
            end = tree.add_path(path, column, Origin.WINDOW, verify=False)
            tree.verified[end] = True
            self._ends.append(end)

    def results(self, choices: Mapping[int, int]) -> list[int]:
        """Return the new guess of each column. `choices`: the model's choice after each node of the step's tree."""
        return [choices[end] for end in self._ends]

    def ngrams(self, token: int, results: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield n-grams, as (first token, N-1 tokens after it), of columns whose guesses are all the model's choices.

        `token`: the input of the step. `results`: the new guess of each column.
        """
        first_row, *later = self.rows
        begins = [token, *first_row[1:]] if first_row else []
        for computed, begin, *following in zip(self._computed, begins, *later, results, strict=True):
            if computed >= len(later):
                yield begin, tuple(following)

    def slide(self, results: Sequence[int], is_end: Callable[[int], bool]) -> None:
        """Drop the first row and append `results` as the last row: once a step, whatever was accepted.

        A random token replaces an end token, since guesses after an end would belong to another text.
        """
        ended = [is_end(token) for token in results]
        self.rows = [
            *self.rows[1:],
            [self._draw() if end else token for token, end in zip(results, ended, strict=True)],
        ]
        self._computed = [0 if end else computed + 1 for computed, end in zip(self._computed, ended, strict=True)]

    def _draw(self) -> int:
        return self._random.choice(self._tokens)

"""The lookahead window: N-1 rows of W guesses that Jacobi iteration improves by one row a step.

Token ids only. The window proposes paths and takes back the model's choices after them; it knows neither the
cache nor the pool, and what it guesses never decides what is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

Draw = Callable[[], int]
"""A token to guess where nothing better is known."""


class Window:
    """Rows of guesses; row r, column c guesses the token at the input's position + r + c.

    Row 0, column 0 is the input itself. Oldest row first: the paper's w^(i-N+2) .. w^i (Algorithm 2, section 3.1).
    """

    def __init__(self, width: int, ngram: int, draw: Draw, guesses: Sequence[int] = ()) -> None:
        """guesses: tokens that may follow the input, taken by position; `draw` fills in beyond them."""
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

        token: the step's input.
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

"""Charts as text, drawn with block and braille characters, or with ASCII's where a stream takes no others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

BRAILLE = 0x2800

DOT = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a braille cell's four rows of two dots (Unicode's order)."""

UPPER = 0x1B
"""The bits of the upper half of a braille cell; the lower half has the others."""

IN_ASCII = str.maketrans(
    {chr(BRAILLE + dots): " '.:"[bool(dots & UPPER) + 2 * bool(dots & ~UPPER)] for dots in range(256)}
    | dict(zip("█■·…±", "##.~~", strict=True))
)
"""A character of ASCII for each that charts and tables draw with."""

COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python itself sets LC_CTYPE to where the locale is C or POSIX (PEP 538)."""


def drawable(text: str, encoding: str) -> str:
    """Return `text` with drawings in ASCII where `encoding` lacks a character of it, or the locale is C or POSIX.

    Python writes UTF-8 in these locales too, so their names decide; without a name the stream is taken at its word.
    """
    said = os.environ.get("LC_CTYPE", "")
    locale = os.environ.get("LC_ALL") or ("" if said in COERCED else said) or os.environ.get("LANG")
    with suppress(UnicodeEncodeError):
        if locale not in ("C", "POSIX"):
            text.encode(encoding)
            return text
    return text.translate(IN_ASCII)


class Canvas:
    """`width` x `height` cells of a terminal with 2 x 4 dots each; dot (0, 0) is the upper left one."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._dots = [[0] * width for _ in range(height)]

    def dot(self, x: int, y: int) -> None:
        """Set one dot; nothing happens outside the canvas."""
        if 0 <= x < 2 * self.width and 0 <= y < 4 * self.height:
            self._dots[y // 4][x // 2] |= DOT[y % 4][x % 2]

    def lines(self) -> list[str]:
        """The cells as text, a string a row."""
        return ["".join(chr(BRAILLE + dots) if dots else " " for dots in cells) for cells in self._dots]


def histogram(counts: Sequence[int], *, width: int = 24) -> str:
    """Counts of steps by the tokens they yielded, a line for each that is not 0; counts[k] is for k+1.

    `width`: of the longest bar.
    """
    most = max(counts, default=0) or 1
    digits = len(str(most))
    return "\n".join(
        f"{length:2} tokens  {count:{digits}} steps  {'█' * round(count / most * width)}".rstrip()
        for length, count in enumerate(counts, start=1)
        if count
    )

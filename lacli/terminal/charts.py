"""Charts as text, drawn with block and braille characters, or with ASCII's where a stream takes no others."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import cycle, pairwise

MARKERS = "●○▲△■□◆◇"
"""The points of a chart's first, second, .. line."""

BRAILLE = 0x2800

DOT = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a braille cell's four rows of two dots (Unicode's order)."""

UPPER = 0x1B
"""The bits of the upper half of a braille cell; the lower half has the others."""

IN_ASCII = str.maketrans(
    {chr(BRAILLE + dots): " '.:"[bool(dots & UPPER) + 2 * bool(dots & ~UPPER)] for dots in range(256)}
    | dict(zip("█│─┤└┬·…±" + MARKERS, "#|-+++.~~" + "*oA^#+%@", strict=True))
)
"""A character of ASCII for each that charts and tables draw with."""

COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python itself sets LC_CTYPE to where the locale is C or POSIX (PEP 538)."""

Points = Sequence[tuple[float, float]]


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
        self._signs: dict[tuple[int, int], str] = {}

    def dot(self, x: int, y: int) -> None:
        """Set one dot; nothing happens outside the canvas."""
        if 0 <= x < 2 * self.width and 0 <= y < 4 * self.height:
            self._dots[y // 4][x // 2] |= DOT[y % 4][x % 2]

    def line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Set the dots from `start` to `end`, both included."""
        (left, top), (right, bottom) = start, end
        steps = max(abs(right - left), abs(bottom - top), 1)
        for step in range(steps + 1):
            self.dot(left + round(step * (right - left) / steps), top + round(step * (bottom - top) / steps))

    def column(self, share: float) -> int:
        """The column of dots at a `share` of the width, from 0 to 1."""
        return round(share * (2 * self.width - 1))

    def row(self, share: float) -> int:
        """The row of dots at a `share` of the height from the bottom, from 0 to 1."""
        return round((1 - share) * (4 * self.height - 1))

    def sign(self, x: int, y: int, character: str) -> None:
        """Put a character over the cell of a dot."""
        self._signs[y // 4, x // 2] = character

    def lines(self) -> list[str]:
        """The cells as text, a string a row."""
        return [
            "".join(
                self._signs.get((row, column)) or (chr(BRAILLE + dots) if dots else " ")
                for column, dots in enumerate(cells)
            )
            for row, cells in enumerate(self._dots)
        ]


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


def curve(
    series: Mapping[str, Points],
    *,
    width: int = 80,
    height: int = 20,
    x_label: str,
    y_label: str,
) -> str:
    """Lines through (x, y) points above 0, with axes in powers of two, a marker at each point and a legend.

    `width`, `height`: columns and lines of the whole chart, at least 20 and 9. The y axis includes 1.
    """
    lines = {name: sorted(points) for name, points in series.items()}
    across = _axis([x for points in lines.values() for x, _ in points])
    up = _axis([1.0, *(y for points in lines.values() for _, y in points)])
    margin = max(len(_number(tick)) for tick in up) + 2
    canvas = Canvas(max(width - margin - 1, 10), max(height - 5, 4))
    _draw(canvas, list(lines.values()), across, up)
    named = [f"{marker} {name}" for marker, name in zip(cycle(MARKERS), lines, strict=False)]
    legend = "   ".join(named)
    legend = legend if len(legend) <= width else "\n".join(named)
    framed = _framed(canvas, across, up, margin)
    caption = " " * (margin + 1) + x_label.center(canvas.width).rstrip()
    return "\n".join([y_label, *framed, caption, legend])


def _axis(values: Sequence[float]) -> list[float]:
    """The ticks of an axis for all `values`: powers of two."""
    first, last = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    return [2.0**power for power in range(first, max(last, first + 1) + 1)]


def _share(value: float, ticks: Sequence[float]) -> float:
    """The position of a value along an axis, from 0 to 1."""
    return math.log2(value / ticks[0]) / math.log2(ticks[-1] / ticks[0])


def _draw(canvas: Canvas, lines: Sequence[Points], across: Sequence[float], up: Sequence[float]) -> None:
    for marker, points in zip(cycle(MARKERS), lines, strict=False):
        places = [(canvas.column(_share(x, across)), canvas.row(_share(y, up))) for x, y in points]
        for start, end in pairwise(places):
            canvas.line(start, end)
        for x, y in places:
            canvas.sign(x, y, marker)


def _framed(canvas: Canvas, across: Sequence[float], up: Sequence[float], margin: int) -> list[str]:
    """The canvas with an axis and its numbers at the left and below; `margin`: columns left of the y axis."""
    names = {canvas.row(_share(tick, up)) // 4: _number(tick) for tick in up}
    lines = [
        f"{names.get(row, ''):>{margin - 1}} {'┤' if row in names else '│'}{cells}".rstrip()
        for row, cells in enumerate(canvas.lines())
    ]
    ticks = {canvas.column(_share(tick, across)) // 2: _number(tick) for tick in across}
    rule = "".join("┬" if column in ticks else "─" for column in range(canvas.width))
    numbers = " " * margin
    for column, name in sorted(ticks.items()):
        begin = margin + 1 + column - len(name) // 2
        if begin > len(numbers.rstrip()):
            numbers = numbers.ljust(begin) + name
    return [*lines, f"{' ' * margin}└{rule}", numbers]


def _number(value: float) -> str:
    return f"{value:.6g}"

"""Tables in Markdown whose columns line up, so that they read well in a terminal too.

Text in, text out.
"""

from __future__ import annotations

from collections.abc import Sequence

from lacli.amounts import printable


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table; its first `left` columns are aligned to the left, numbers to the right."""
    cells = [[_escaped(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    rule = [f"{'-' * (width + 1)}{'-' if column < left else ':'}" for column, width in enumerate(widths)]
    lines = [_line(row, widths, left) for row in cells]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])


def _line(row: Sequence[str], widths: Sequence[int], left: int) -> str:
    padded = [
        cell.ljust(width) if column < left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _escaped(cell: str) -> str:
    """No bar ends the cell, and no control character of a name reaches the terminal."""
    return printable(cell.replace("|", "\\|"))

"""Tables whose columns line up, as `lacli list` and `show` print them; tables in Markdown are `tables.py`."""

from __future__ import annotations

from collections.abc import Sequence

from lacli.text.format import printable

GAP = "  "


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lines whose columns line up; `right`: the columns that end alike. Names from files come out printable."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        GAP.join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]

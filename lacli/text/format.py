"""Words for sizes, counts and ages; similar names; text that is safe on a terminal; tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from io import StringIO
from typing import Literal

SIGNS = {
    **{code: 0x2400 + code for code in range(0x20)},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}
"""Replacements, by code point, for characters that would control a terminal: control pictures, and U+FFFD."""

SIGNS_IN_LINES: dict[int, int | None] = {**SIGNS, **{ord(kept): ord(kept) for kept in "\n\t"}, ord("\r"): None}


def suggest(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three of `known`: the names similar to `name`, best first, then names that begin with `name`."""
    by_folded, folded = {each.casefold(): each for each in known}, name.casefold()
    close = get_close_matches(folded, by_folded, cutoff=0.65)
    begun = [each for each in by_folded if len(folded) > 2 and each.startswith(folded)]
    return [by_folded[each] for each in dict.fromkeys([*close, *begun])][:3]


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint with the `known` names that are similar to `name`, or `otherwise` if there are none."""
    names = suggest(name, known)
    return f"did you mean {' or '.join(names)}?" if names else otherwise


def size_in_words(size: int) -> str:
    """Return a size in bytes as words: 4.7 GB, 320 MB, 12 kB."""
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 100 * unit else f"{size / unit:.0f} {name}"
    return f"{-(-size // 1000)} kB"


def age_in_words(seconds: float) -> str:
    """Return an age as words: just now, 3 days ago."""
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit:
            return f"{counted(int(seconds // unit), name)} ago"
    return "just now"


def count_in_words(number: int) -> str:
    """Return a model's number of parameters as words: 630M, 7.6B."""
    millions = number / 1e6
    if millions < 10:
        return f"{millions:.1f}M"
    return f"{millions:.0f}M" if millions < 1000 else f"{millions / 1000:.1f}B"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 question, 2 questions."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def listed(names: Sequence[str]) -> str:
    """Join one or more names by commas, with `and` before the last."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def shortened(text: str, most: int = 80) -> str:
    """Return a text for a message, cut to `most` characters and "...": a user may pass a whole prompt as MODEL."""
    return text if len(text) <= most else text[:most] + "..."


def printable(text: str, *, lines: bool = False) -> str:
    """Return `text` with a visible sign for each character that would control a terminal.

    `lines`: keep line breaks and tabs, and drop carriage returns. Otherwise the text becomes one line.
    """
    return text.translate(SIGNS_IN_LINES if lines else SIGNS)


def align_columns(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    width: int = 0,
    *,
    folds: bool = False,
) -> list[str]:
    """Return the lines of a table with aligned, printable columns.

    `right`: indices of the columns to align to the right. `width`: characters of a line, to which the last column is
    wrapped; 0: no wrapping. `folds`: wrap all columns.
    """
    # These imports take 30 ms, which commands without a table need not spend.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for place, title in enumerate(header):
        wraps = bool(width) and (folds or place == len(header) - 1)
        side: Literal["left", "right"] = "right" if place in right else "left"
        table.add_column(Text(printable(title)), justify=side, no_wrap=not wraps, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    shown = StringIO()
    Console(file=shown, width=width or 10_000, color_system=None, legacy_windows=False).print(table)
    return [line.rstrip() for line in shown.getvalue().split("\n") if line.strip()]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table in Markdown. The first `left` columns are aligned to the left, the others to the right."""
    first, *others = [[printable(cell).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(first, *others, strict=True)]
    rule = [f"{'-' * (width + 1)}{'-' if place < left else ':'}" for place, width in enumerate(widths)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return " | ".join(f"{cell:{'<' if place < left else '>'}{width}}" for place, (cell, width) in enumerate(cells))

    return "\n".join([f"| {line(first)} |", f"|{'|'.join(rule)}|", *(f"| {line(row)} |" for row in others)])

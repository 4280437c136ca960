"""Words for sizes, counts and ages, near spellings, and tables as plain columns or in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from io import StringIO


def nearest(name: str, known: Iterable[str], most: int = 3, least: float = 0.65) -> list[str]:
    """The known names that resemble this one, the most similar first; upper and lower case are the same.

    least: how similar, where 1 is the same.
    """
    by_folded: dict[str, str] = {}
    for each in known:
        by_folded.setdefault(each.casefold(), each)
    return [by_folded[found] for found in get_close_matches(name.casefold(), by_folded, n=most, cutoff=least)]


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint that offers the nearest names; `otherwise` where nothing is near."""
    return offered(nearest(name, known)) or otherwise


def offered(names: Sequence[str]) -> str:
    """The question whether one of these was meant; "" for none."""
    return f"did you mean {' or '.join(names)}?" if names else ""


MINUTE, HOUR, DAY = 60, 3600, 86400

AGES = ((MINUTE, 1, "second"), (HOUR, MINUTE, "minute"), (DAY, HOUR, "hour"), (14 * DAY, DAY, "day"))

LATER = ((60 * DAY, 7 * DAY, "week"), (730 * DAY, 30 * DAY, "month"))

YEAR = 365 * DAY

SIGNS = {
    **{code: 0x2400 + code for code in range(0x20)},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}
"""What is shown for a character that would steer a terminal, by their code points.

C0 and DEL have Unicode's control pictures; C1, the characters that turn the direction of text, and halves of
surrogate pairs have the replacement character.
"""

SIGNS_IN_LINES = {code: sign for code, sign in SIGNS.items() if chr(code) not in "\n\t"}


def size_in_words(size: int) -> str:
    """Bytes on a disk: 4.7 GB, 320 MB, 12 kB."""
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 100 * unit else f"{size / unit:.0f} {name}"
    return f"{-(-size // 1000)} kB"


def memory_in_words(mebibytes: float) -> str:
    """Memory: 5.4 GiB, 338 MiB, 0.4 MiB."""
    if mebibytes >= 1024:
        return f"{mebibytes / 1024:.1f} GiB"
    return f"{mebibytes:.0f} MiB" if mebibytes >= 10 else f"{mebibytes:.1f} MiB"


def age_in_words(seconds: float) -> str:
    """How long ago: 3 days ago, just now."""
    if seconds < MINUTE:
        return "just now"
    for most, unit, name in (*AGES, *LATER):
        if seconds < most:
            return f"{counted(int(seconds // unit), name)} ago"
    return f"{counted(int(seconds // YEAR), 'year')} ago"


def tokens_in_words(tokens: int) -> str:
    """A context: 2048, 32k, 128k; - where none is known."""
    if not tokens:
        return "-"
    return f"{tokens // 1024}k" if tokens >= 10240 and tokens % 1024 == 0 else str(tokens)


def count_in_words(number: int) -> str:
    """Parameters: 630M, 7.6B."""
    millions = number / 1e6
    if millions < 10:
        return f"{millions:.1f}M"
    return f"{millions:.0f}M" if millions < 1000 else f"{millions / 1000:.1f}B"


def printable(text: str, *, lines: bool = False) -> str:
    """Return `text` of a model, a file or a hub with a sign for each character that would steer a terminal.

    lines: line breaks and tabs stay, and a Windows line break becomes a plain one; else the text is one line.
    """
    return text.replace("\r\n", "\n").translate(SIGNS_IN_LINES) if lines else text.translate(SIGNS)


def counted(count: int, noun: str) -> str:
    """1 question, 2 questions."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = (), width: int = 0
) -> list[str]:
    """The lines of a table whose columns line up; names from files come out printable.

    `right`: the columns that are aligned to the right. `width`: columns of the terminal, which the last column is
    wrapped to fit; 0: one line a row.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for place, title in enumerate(header):
        last = place == len(header) - 1
        table.add_column(title, justify="right" if place in right else "left", no_wrap=not (last and width))
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    widest = sum(max(map(len, column)) for column in zip(header, *rows, strict=True))
    shown = StringIO()
    # Characters of two columns can take twice their number.
    room = width or 2 * widest + 2 * len(header)
    Console(file=shown, width=room, force_terminal=False, color_system=None, emoji=False).print(table)
    return [line.rstrip() for line in shown.getvalue().removesuffix("\n").split("\n")]


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

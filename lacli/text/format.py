"""Words for sizes, counts and ages; similar names; text that is safe on a terminal; tables, also in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from io import StringIO
from math import inf

MINUTE, HOUR, DAY = 60, 3600, 86400

AGES = (
    (HOUR, MINUTE, "minute"),
    (DAY, HOUR, "hour"),
    (14 * DAY, DAY, "day"),
    (60 * DAY, 7 * DAY, "week"),
    (730 * DAY, 30 * DAY, "month"),
    (inf, 365 * DAY, "year"),
)
"""Units of an age: below how many seconds each is used, its own seconds and its name."""

SIGNS = {
    **{code: 0x2400 + code for code in range(0x20)},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}
"""Replacements for characters that would control a terminal, by code point.

C0 and DEL become Unicode's control pictures; C1, characters that change the direction of text, and halves of surrogate
pairs become the replacement character.
"""

SIGNS_IN_LINES = {code: sign for code, sign in SIGNS.items() if chr(code) not in "\n\t"}


WIDEST = 10_000
"""Columns of a table in Markdown, which is not wrapped."""


LEAST_BEGUN = 3
"""Characters, a dash or a slash among them, from which the beginning of a name suggests it."""


def suggest(name: str, known: Iterable[str], most: int = 3, least: float = 0.65) -> list[str]:
    """The `known` names that resemble `name`, the most similar first, and those that it begins, whatever their case.

    `most`: names at most. `least`: similarity from 0 to 1, as difflib computes it.
    """
    by_folded: dict[str, str] = {}
    for each in known:
        by_folded.setdefault(each.casefold(), each)
    folded = name.casefold()
    found = dict.fromkeys(get_close_matches(folded, by_folded, n=most, cutoff=least))
    if len(folded) >= LEAST_BEGUN:
        found |= dict.fromkeys(each for each in by_folded if each.startswith(folded))
    return [by_folded[each] for each in found][:most]


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint that suggests similar names; `otherwise` if there are none."""
    return offered(suggest(name, known)) or otherwise


def offered(names: Sequence[str]) -> str:
    """The question whether one of `names` was meant; empty without names."""
    return f"did you mean {' or '.join(names)}?" if names else ""


def size_in_words(size: int) -> str:
    """Bytes on a disk: 4.7 GB, 320 MB, 12 kB."""
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 100 * unit else f"{size / unit:.0f} {name}"
    return f"{-(-size // 1000)} kB"


def age_in_words(seconds: float) -> str:
    """An age: just now, 3 days ago."""
    unit, name = next((unit, name) for below, unit, name in AGES if seconds < below)
    return "just now" if seconds < MINUTE else f"{counted(int(seconds // unit), name)} ago"


def tokens_in_words(tokens: int) -> str:
    """A context's size: 2,048, 32k, 128k; - if it is unknown."""
    if not tokens:
        return "-"
    return f"{tokens // 1024}k" if tokens >= 10240 and tokens % 1024 == 0 else f"{tokens:,}"


def count_in_words(number: int) -> str:
    """Parameters: 630M, 7.6B."""
    millions = number / 1e6
    if millions < 10:
        return f"{millions:.1f}M"
    return f"{millions:.0f}M" if millions < 1000 else f"{millions / 1000:.1f}B"


def counted(count: int, noun: str) -> str:
    """1 question, 2 questions."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def listed(names: Sequence[str], word: str = "and") -> str:
    """The names with commas between them, and `word` before the last."""
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def no_effect(names: Sequence[str]) -> str:
    """Say that options have no effect: "-W has no effect", "-W and -N have no effect"."""
    return f"{listed(names)} {'have' if names[1:] else 'has'} no effect"


def printable(text: str, *, lines: bool = False) -> str:
    """Return `text` of a model, a file or a hub with a sign for each character that would control a terminal.

    `lines`: keep line breaks and tabs, and make Windows line breaks plain ones; without it the text becomes one line.
    """
    return text.replace("\r\n", "\n").translate(SIGNS_IN_LINES) if lines else text.translate(SIGNS)


def columns(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    width: int = 0,
    *,
    folds: bool = False,
) -> list[str]:
    """The lines of a table whose columns line up; names from files come out printable.

    `right`: the columns that are aligned to the right. `width`: columns of the terminal, which the last column is
    wrapped to fit; 0: one line a row. `folds`: wrap all columns.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for place, title in enumerate(header):
        last = place == len(header) - 1
        wraps = width > 0 and (last or folds)
        table.add_column(title, justify="right" if place in right else "left", no_wrap=not wraps, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    widest = sum(max(map(len, column)) for column in zip(header, *rows, strict=True))
    shown = StringIO()
    # Characters of two columns can take twice their number.
    room = width or 2 * widest + 2 * len(header)
    Console(file=shown, width=room, force_terminal=False, color_system=None, emoji=False).print(table)
    return [line.rstrip() for line in shown.getvalue().removesuffix("\n").split("\n")]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown; its first `left` columns are aligned to the left, the others to the right."""
    # They take 30 ms, which commands without a table need not wait for.
    from rich.box import MARKDOWN
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    header, *rows = [[printable(cell.replace("|", "\\|")) for cell in row] for row in (header, *rows)]
    table = Table(box=MARKDOWN)
    for column, name in enumerate(map(Text, header)):
        table.add_column(name, justify="left" if column < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    text = StringIO()
    Console(file=text, width=WIDEST, color_system=None, legacy_windows=False).print(table)
    first, rule, *others = text.getvalue().strip().splitlines()
    # rich's rule does not tell Markdown which columns are aligned to the right.
    parts = [f"{part[:-1]}:" if column >= left else part for column, part in enumerate(rule.strip("|").split("|"))]
    return "\n".join([first, f"|{'|'.join(parts)}|", *others])

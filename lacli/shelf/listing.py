"""`lacli list` as a whole: what is on this disk and what the aliases mean, as two tables or as JSON.

What is there is found by `cached.py`; terminals are `ui.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

from lacli.hub.aliases import Alias, read_aliases
from lacli.hub.cache import cache_folder
from lacli.shelf.cached import (
    Stored,
    Unfinished,
    aliased,
    stored_models,
    unfinished_downloads,
)
from lacli.shelf.columns import GAP, table
from lacli.terminal.screen import Screen, wrapped
from lacli.text.format import (
    age_in_words,
    printable,
    size_in_words,
    tokens_in_words,
)

BUNDLED = "(bundled)"
INDENT = "    "
HEADER = ("MODEL", "SIZE", "TYPE", "CONTEXT", "LAST USED")
ALIAS_HEADER = ("ALIAS", "", "WHAT IT IS", "MODEL")
HERE, OWN = "*", "+"
NARROW = 70
"""Columns below which tables break."""


@dataclass(frozen=True)
class Shelf:
    """What is listed. own: the user's list of aliases."""

    stored: Sequence[Stored]
    unfinished: Sequence[Unfinished]
    aliases: Mapping[str, Alias]
    cache: Path
    own: Path


def list_shelf(own: Path, screen: Screen, *, width: int, as_json: bool = False) -> None:
    """Print the models on this disk and the aliases. own: the user's list of aliases, which need not exist.

    width: columns of the terminal, 0 for none: every model is one line then.
    """
    aliases = read_aliases(own, screen.note)
    shelf = Shelf(stored_models(aliases), unfinished_downloads(), aliases, cache_folder(), own)
    screen.line(json.dumps(shelf_json(shelf), ensure_ascii=False) if as_json else shelf_text(shelf, width, time()))


def shelf_text(shelf: Shelf, width: int, now: float) -> str:
    """The aliases, what the signs mean, and then what is on this disk, since a terminal shows the end.

    width: columns, 0 for any number of them. now: seconds since 1970.
    """
    return "\n\n".join([_alias_table(shelf, width), _legend(shelf, width), _disk_table(shelf, width, now)])


def shelf_json(shelf: Shelf) -> dict[str, Any]:
    """One object: `models` on this disk, `unfinished` downloads, `aliases`. size: bytes; last_used: UTC."""
    return {
        "cache": str(shelf.cache),
        "models": [_stored_json(model) for model in shelf.stored],
        "unfinished": [
            {"repository": each.repository, "path": str(each.path), "size": each.size, "last_used": _utc(each.used)}
            for each in shelf.unfinished
        ],
        "aliases": [_alias_json(alias, bool(aliased(shelf.stored, alias))) for alias in shelf.aliases.values()],
    }


def _stored_json(model: Stored) -> dict[str, Any]:
    header = model.header
    return {
        "name": model.name or None,
        "path": str(model.path),
        "repository": model.repository or None,
        "file": model.file or None,
        "size": model.size,
        "older_commits": model.older,
        "type": header.file_type if header else None,
        "architecture": header.architecture if header else None,
        "parameters": header.parameters if header else None,
        "context": header.context if header else None,
        "last_used": _utc(model.used),
        "problem": model.problem or None,
    }


def _alias_json(alias: Alias, on_disk: bool) -> dict[str, Any]:
    return {
        "name": alias.name,
        "model": _target(alias),
        "words": alias.words,
        "own": alias.own,
        "on_disk": on_disk,
    }


def _disk_table(shelf: Shelf, width: int, now: float) -> str:
    rows = [_row(model, now) for model in shelf.stored]
    rows += [
        (f"{each.repository}, unfinished download", size_in_words(each.size), "", "", age_in_words(now - each.used))
        for each in shelf.unfinished
    ]
    notes = [*map(_note, shelf.stored), *("" for _ in shelf.unfinished)]
    if _is_narrow(width):
        return "\n".join(_below(row, note, width) for row, note in zip(rows, notes, strict=True))
    lines = _beside_names(
        [row[0] for row in (HEADER, *rows)], table([row[1:] for row in (HEADER, *rows)], (0, 2)), width
    )
    shown = [lines[0]]
    for line, note in zip(lines[1:], notes, strict=True):
        shown += [line, *([_indented(note, width)] if note else [])]
    return "\n".join(shown)


def _note(model: Stored) -> str:
    """What is said below a model."""
    older = f"{size_in_words(model.older)} more are of other commits" if model.older else ""
    return "; ".join(filter(None, [model.problem, older]))


def _below(row: Sequence[str], note: str, width: int) -> str:
    """A model's name and, below it, what is told of it."""
    name, size, kind, context, age = row
    facts = ", ".join(
        filter(None, [size, kind.strip("-"), context.strip("-") and f"context {context}", age.strip("-")])
    )
    return "\n".join([printable(name), *(_indented(printable(line), width) for line in (facts, note) if line)])


def _is_narrow(width: int) -> bool:
    return 0 < width < NARROW


def _indented(text: str, width: int) -> str:
    return wrapped(INDENT + text, width) if width else INDENT + text


def _beside_names(names: Sequence[str], facts: Sequence[str], width: int) -> list[str]:
    """Lines of names and what is told of them; a name that leaves too little room has a line of its own."""
    names = [printable(name) for name in names]
    longest = max(map(len, names))
    room = min(longest, max(width - max(map(len, facts)) - len(GAP), len(INDENT))) if width else longest
    return [
        f"{name:{room}}{GAP}{fact}" if len(name) <= room else f"{name}\n{'':{room}}{GAP}{fact}"
        for name, fact in zip(names, facts, strict=True)
    ]


def _row(model: Stored, now: float) -> tuple[str, ...]:
    header = model.header
    return (
        model.name or f"{model.path.name} {BUNDLED}",
        size_in_words(model.size),
        header.file_type if header else "-",
        tokens_in_words(header.context if header else 0),
        age_in_words(max(now - model.used, 0.0)) if model.used else "-",
    )


def _alias_table(shelf: Shelf, width: int) -> str:
    """A line an alias; what it stands for only where there is room for it."""
    rows = [_alias_row(alias, bool(aliased(shelf.stored, alias))) for alias in shelf.aliases.values()]
    if _is_narrow(width):
        return "\n".join(
            f"{f'{name} {signs}'.strip()}\n{_indented(printable(words), width)}" for name, signs, words, _ in rows
        )
    lines = table([ALIAS_HEADER, *rows])
    if not width or max(map(len, lines)) <= width:
        return "\n".join(lines)
    short = table([ALIAS_HEADER[:3], *(row[:3] for row in rows)])
    begin = short[0].index(ALIAS_HEADER[2])
    return "\n".join(_hanging(line, begin, width) for line in short)


def _hanging(line: str, begin: int, width: int) -> str:
    """A line whose last column, which begins there, stays one when it is wrapped."""
    if len(line) <= width:
        return line
    words = wrapped(line[begin:], max(width - begin, 1)).split("\n")
    return "\n".join([line[:begin] + words[0], *(" " * begin + more for more in words[1:])])


def _alias_row(alias: Alias, on_disk: bool) -> tuple[str, ...]:
    signs = (HERE if on_disk else "") + (OWN if alias.own else "")
    return (alias.name, signs, alias.words or _target(alias), _target(alias))


def _legend(shelf: Shelf, width: int) -> str:
    lines = [f"{HERE} on this disk"]
    if any(alias.own for alias in shelf.aliases.values()):
        lines.insert(1, f"{OWN} of your own, from {shelf.own}")
    else:
        lines.append(f"names of your own: {shelf.own}")
    if width:
        lines.append("lacli list --json names the repositories of all")
    lines.append("lacli show MODEL tells more of one, lacli pull MODEL fetches one, lacli rm MODEL removes one")
    return "\n".join(wrapped(line, width) if width else line for line in lines)


def _target(alias: Alias) -> str:
    return f"{alias.repository}:{alias.quant}" if alias.quant else alias.repository


def _utc(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None

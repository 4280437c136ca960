"""What can stand where the cursor is in a slash command: names of commands, settings, modes and files.

Text in, offers out; `terminal.py` shows them. Ordinary text gets none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lacli.chat.commands import Argument

ESCAPED_SPACE = "\\ "


@dataclass(frozen=True)
class Vocabulary:
    """The words that can be completed.

    commands: names with their slash and what follows them. keys: the settings of a "key" command. values: what a
    setting can be, where those are few. modes: those of a "mode" command.
    """

    commands: Mapping[str, Argument] = field(default_factory=dict)
    keys: Sequence[str] = ()
    values: Callable[[str], Sequence[str]] = lambda key: ()
    modes: Sequence[str] = ()


@dataclass(frozen=True)
class Offer:
    """Text for the place of the last `replaces` characters before the cursor; shown: its short form in a list."""

    text: str
    replaces: int
    shown: str


def offers(text: str, vocabulary: Vocabulary) -> Iterator[Offer]:
    """What the text before the cursor can go on with."""
    if not is_command(text, vocabulary):
        return
    name, space, rest = text.partition(" ")
    if not space:
        yield from _beginning_with(name, vocabulary.commands)
        return
    typed = rest.lstrip()
    match vocabulary.commands[name]:
        case "file":
            yield from _files(typed)
        case "key":
            key, gap, value = typed.partition(" ")
            words = vocabulary.values(key) if gap else vocabulary.keys
            yield from _beginning_with(value.lstrip() if gap else key, words)
        case "mode":
            yield from _beginning_with(typed, vocabulary.modes)
        case "switch":
            yield from _beginning_with(typed, ("on", "off"))
        case "none" | "text":
            pass


def is_command(text: str, vocabulary: Vocabulary) -> bool:
    """Whether the text is a command of this vocabulary or may become one; a path such as /usr/bin is not."""
    if not text.startswith("/") or "\n" in text:
        return False
    name, space, _ = text.partition(" ")
    return name in vocabulary.commands if space else any(known.startswith(name) for known in vocabulary.commands)


def _beginning_with(typed: str, words: Iterable[str]) -> Iterator[Offer]:
    # A word that is complete needs no list that offers it again.
    yield from (Offer(word, len(typed), word) for word in words if word.startswith(typed) and word != typed)


def _files(typed: str) -> Iterator[Offer]:
    """Files whose path begins so, directories with a slash; hidden ones once their dot is typed.

    Spaces get a backslash, unless the path is quoted; behind one that has none, the file's name is over.
    """
    quoted = typed.startswith(('"', "'"))
    path = typed[1:] if quoted else typed.replace(ESCAPED_SPACE, " ")
    if not quoted and " " in typed.replace(ESCAPED_SPACE, ""):
        return
    folder, name = os.path.split(path)
    replaces = len(name) if quoted else len(_escaped(name))
    for entry, is_folder in _listed(os.path.expanduser(folder) or "."):
        hidden = entry.startswith(".") and not name.startswith(".")
        if entry.startswith(name) and not hidden and (is_folder or entry != name):
            word = f"{entry}/" if is_folder else entry
            yield Offer(word if quoted else _escaped(word), replaces, word)


def _escaped(name: str) -> str:
    return name.replace(" ", ESCAPED_SPACE)


def _listed(folder: str) -> list[tuple[str, bool]]:
    """Names in a folder and whether each is a folder; none of what cannot be listed or typed."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.is_dir()) for entry in entries if entry.name.isprintable())
    except (OSError, ValueError):
        return []

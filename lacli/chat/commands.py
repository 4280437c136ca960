"""The slash commands of a chat: their names, what stands behind them, their help, and how a line becomes one.

What they do is `actions.py`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal

from lacli.chat.keys import set_name
from lacli.chat.values import unquoted
from lacli.errors import UsageError
from lacli.text.format import did_you_mean

Argument = Literal["none", "file", "key", "mode", "switch", "text"]

NARROW, LEFT = 50, 24
"""Columns of a terminal under which a command stands above its words, and columns of the commands elsewhere."""


@dataclass(frozen=True)
class Entry:
    """One command. names: its own first; usage: what follows the name; needed: whether that must be there."""

    names: tuple[str, ...]
    argument: Argument
    help: str
    usage: str = ""
    needed: bool = False

    @property
    def shown(self) -> str:
        """The names and the usage, as help shows them."""
        return f"{', '.join(self.names)} {self.usage}".rstrip()


@dataclass(frozen=True)
class Command:
    """A command that was typed: its own name without the slash, and what stands behind it."""

    name: str
    argument: str = ""


COMMANDS = (
    Entry(("/help", "/?"), "none", "show the commands"),
    Entry(("/exit", "/bye", "/quit", "/q"), "none", "end the chat; Ctrl-D does too"),
    Entry(("/clear",), "none", "forget all questions and answers"),
    Entry(("/regen",), "none", "answer the last question anew"),
    Entry(("/undo",), "none", "take the last question back, to change it"),
    Entry(("/system",), "text", 'show the system prompt, or set it; "" clears it', "[TEXT]"),
    Entry(("/set",), "key", "show or change settings; 'default' is lacli's own value", "[KEY [VALUE]]"),
    Entry(("/show",), "none", "show the model, its mode and the context used"),
    Entry(("/mode",), "mode", "show how tokens are guessed, or change it", "[MODE]"),
    Entry(("/stats",), "none", "show what the answers cost: tokens/s, S, steps"),
    Entry(("/read",), "file", "put a file before the next question, or ask it now", "FILE [QUESTION]", needed=True),
    Entry(("/save",), "file", "write the chat to a file", "FILE", needed=True),
    Entry(("/load",), "file", "go on with a chat from a file, or from a log", "FILE", needed=True),
    Entry(("/copy",), "none", "copy the last answer to the clipboard"),
    Entry(("/compact",), "none", "drop the oldest questions and answers"),
    Entry(("/color",), "switch", "colour what was accepted in parallel", "on|off", needed=True),
    Entry(("/status",), "switch", "show or hide the line of numbers", "on|off", needed=True),
)
"""In the order in which help shows them."""

_BY_NAME = {name: entry for entry in COMMANDS for name in entry.names}

LAST_WORDS = 'Several lines: a line """ before and after. A space before / sends it as text.'

PLAIN_WORDS = {
    **dict.fromkeys(("exit", "quit", "bye", "q", ":q", "exit()", "quit()"), "to leave: /exit"),
    **dict.fromkeys(("help", "?"), "/help lists the commands"),
}
"""Messages that other programs take for commands, and what to say to them."""


def parse(line: str) -> Command | None:
    """The command of a line, or None where it is a message (`message_of` gives its text).

    Raises UsageError for an unknown command and for an argument that it does not take.
    """
    if not line.startswith("/") or line.startswith("//"):
        return None
    first, *others = line.split(maxsplit=1)
    entry = _BY_NAME.get(first.lower())
    argument = others[0].strip() if others else ""
    if entry is None:
        raise UsageError(f"unknown command {first}", _hint(first, argument))
    if argument and entry.argument == "none":
        raise UsageError(f"{entry.names[0]} stands alone", "begin with a space to send the line as text")
    if not argument and entry.needed:
        raise UsageError(f"{entry.names[0]} needs more", f"write {entry.names[0]} {entry.usage}")
    return Command(entry.names[0][1:], argument)


def message_of(line: str) -> str:
    """A message's text: a space that only kept a slash from being a command is none of it."""
    return line.lstrip() if line.lstrip().startswith("/") else line


def meant_by(message: str) -> str:
    """A sentence for a message that was probably meant as a command, which is sent all the same; "" for others."""
    return PLAIN_WORDS.get(message.strip().lower(), "")


def names() -> tuple[str, ...]:
    """All names with their slash, for completion."""
    return tuple(_BY_NAME)


def argument_of(name: str) -> Argument:
    """What follows a command of this name, for completion; none follows an unknown one."""
    entry = _BY_NAME.get(name.lower())
    return entry.argument if entry else "none"


def help_text(width: int = 80) -> str:
    """The commands with a line or more for each, at most `width` columns wide."""
    width = max(width, 10)
    lines: list[str] = []
    for entry in COMMANDS:
        if width < NARROW:
            lines += wrap(entry.shown, width, subsequent_indent="  ")
            lines += wrap(entry.help, width, initial_indent="  ", subsequent_indent="  ")
            continue
        words = wrap(entry.help, width - LEFT)
        lines += [f"{entry.shown if not row else '':{LEFT}}{text}" for row, text in enumerate(words)]
    return "\n".join([*lines, *wrap(LAST_WORDS, width)])


def switched(argument: str, name: str) -> bool:
    """Whether on or off was asked for."""
    if argument.lower() not in ("on", "off"):
        raise UsageError(f"/{name} is on or off, not {argument!r}", f"write /{name} on")
    return argument.lower() == "on"


def file_and_rest(argument: str) -> tuple[str, str]:
    """A file's name and the text behind it: all of it where such a file exists, else its first word.

    The name may be quoted, or have backslashes before its spaces.
    """
    if os.path.isfile(os.path.expanduser(argument)):
        return argument, ""
    found = re.match(r"""("[^"]*"|'[^']*'|(?:\\.|\S)+)\s*""", argument, re.DOTALL)
    assert found, "the argument is not empty"
    return file_name(found[1]), argument[found.end() :]


def file_name(argument: str) -> str:
    """A name without quotes around it and backslashes before its spaces."""
    inner = unquoted(argument)
    return inner if inner != argument else argument.replace("\\ ", " ")


def _hint(first: str, argument: str) -> str:
    if "/" in first[1:]:
        return "begin with a space to send it as text"
    if first == "/":
        return "/help lists the commands"
    name, _, value = first[1:].partition("=")
    if setting := set_name(name):
        return " ".join(f"write /set {setting} {value} {argument}".split())
    return did_you_mean(first, _BY_NAME, "/help lists them; begin with a space to send it as text")

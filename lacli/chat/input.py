"""What a user types: messages of one line or several, slash commands with their help, and the source of lines.

A message is one line, or several lines between triple quotes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, TextIO

from lacli.errors import LacliError, UsageError, reason_of
from lacli.settings import Switch
from lacli.terminal.screen import console
from lacli.text.files import decode, is_terminal
from lacli.text.format import did_you_mean

PROMPT = "> "
CONTINUATION = ". "
"""Before every further line of a message."""

QUOTES = '"""'
Argument = Literal["none", "file", "key", "text"]

HELP_COLUMN = 24


@dataclass(frozen=True)
class Entry:
    """One command. `names`: its own first; `usage`: what follows the name; `needed`: whether that must be there."""

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
    """A command that was typed, and what stands behind it."""

    entry: Entry
    argument: str = ""

    @property
    def name(self) -> str:
        """The command's own name, without the slash."""
        return self.entry.names[0][1:]


COMMANDS = (
    Entry(("/help", "/?"), "none", "show the commands"),
    Entry(("/exit", "/bye", "/quit", "/q"), "none", "end the chat; so do 'exit' and Ctrl-D"),
    Entry(("/clear",), "none", "forget all questions and answers"),
    Entry(("/regen",), "none", "answer the last question anew"),
    Entry(("/undo",), "none", "take the last question back, to change it"),
    Entry(("/system",), "text", 'show the system prompt, or set it; "" clears it', "[TEXT]"),
    Entry(("/set",), "key", "show or change settings; 'default' is lacli's own value", "[KEY [VALUE]]"),
    Entry(("/show",), "none", "show the model, its mode and the context used"),
    Entry(("/stats",), "none", "show what the answers cost: tokens/s, S, steps"),
    Entry(("/read",), "file", "put a file before the next question, or ask it now", "FILE [QUESTION]", needed=True),
    Entry(("/save",), "file", "write the chat to a file, or once more to the last one", "[FILE]"),
    Entry(("/load",), "file", "go on with a chat from a file", "FILE", needed=True),
)
"""In the order in which help shows them."""

BY_NAME = {name: entry for entry in COMMANDS for name in entry.names}

LAST_WORDS = 'Several lines: """ before and after. A space before a command makes it text.'

PLAIN_WORDS = {**dict.fromkeys(("exit", "quit", "bye"), "/exit"), "help": "/help"}
"""Lines that other programs take for commands, and the command of each."""


def parse(line: str) -> Command | None:
    """The command of a line, or None where it is a message (`message_of` gives its text).

    Raises UsageError for an unknown command and for an argument that it does not take.
    """
    if not line.startswith("/") or line.startswith("//"):
        return None
    first, *others = line.split(maxsplit=1)
    entry = BY_NAME.get(first.lower())
    argument = others[0].strip() if others else ""
    if entry is None:
        otherwise = "/help lists the commands; begin with a space to send the line as text"
        raise UsageError(f"unknown command {first}", did_you_mean(first, BY_NAME, otherwise))
    if argument and entry.argument == "none":
        raise UsageError(f"{first} stands alone", "begin with a space to send the line as text")
    if not argument and entry.needed:
        raise UsageError(f"{entry.names[0]} needs a file", f"write {entry.names[0]} {entry.usage}")
    return Command(entry, argument)


def message_of(line: str) -> str:
    """A message's text: a space that only kept a slash from being a command is none of it."""
    return line.lstrip() if line.lstrip().startswith("/") else line


def help_text() -> str:
    """The commands, a line each."""
    return "\n".join([*(f"{each.shown:{HELP_COLUMN}}{each.help}" for each in COMMANDS), LAST_WORDS])


class Lines(Protocol):
    """What the chat reads from."""

    def read(self) -> str:
        """One whole message or command, never blank.

        One that was quoted never begins with a slash: it is no command. Raises EOFError at the end, KeyboardInterrupt
        after Ctrl-C, and LacliError for a line that cannot be read; the next call goes on after it.
        """
        ...

    def edit(self, text: str) -> None:
        """Offer this text as the beginning of the next line, if lines are edited."""
        ...


@dataclass(frozen=True)
class Editing:
    """What editing needs besides the streams.

    `warn`: receives a sentence. `history`: the file of earlier lines, None for none. `status`: the line below the
    prompt for a width in columns.
    """

    warn: Callable[[str], None]
    history: Path | None = None
    status: Callable[[int], str] = lambda width: ""
    color: Switch = "auto"


def can_edit(color: Switch) -> bool:
    """True if lines can be edited: they are typed on a terminal, and stdout is one that can be drawn on."""
    return is_terminal(sys.stdin) and is_terminal(sys.stdout) and not console(sys.stdout, color).is_dumb_terminal


def open_lines(editing: Editing) -> Lines:
    """The reader that fits the process's streams: edited lines on a good terminal, else lines as they come.

    Raises LacliError when standard input is closed.
    """
    if sys.stdin is None:
        raise LacliError("standard input is closed", "start the chat on a terminal, or give it lines through a pipe")
    if not can_edit(editing.color):
        # stdout may be a file that is to hold the answers alone.
        prompts = sys.stderr if is_terminal(sys.stdin) and is_terminal(sys.stderr) else None
        return PipedLines(sys.stdin.buffer, prompts)
    # It takes 0.2 s, which a pipe need not wait for.
    from lacli.chat.terminal import TerminalLines

    return TerminalLines(editing)


def is_open(text: str) -> bool:
    """True if triple quotes at the text's beginning still wait for those that close them.

    Those close the first line, or end a later one; docstrings inside go in pairs.
    """
    if not text.startswith(QUOTES) or text.split("\n")[0].count(QUOTES) % 2 == 0:
        return False
    return text.count(QUOTES) % 2 == 1 or not text.rstrip().endswith(QUOTES)


def without_quotes(text: str) -> str:
    """The message that was typed: the text between triple quotes, or the text itself.

    A quoted message that begins with a slash keeps a line break before it, so that it is not taken for a command.
    """
    ended = text.rstrip()
    # Quotes that close on the first of several lines belong to what was pasted: a file that begins with a docstring.
    pasted = "\n" in ended and ended.split("\n")[0].count(QUOTES) % 2 == 0
    if not text.startswith(QUOTES) or pasted or not ended.endswith(QUOTES) or is_open(text):
        return text.strip("\n")
    message = ended[len(QUOTES) : -len(QUOTES)].removeprefix("\n").rstrip()
    return f"\n{message}" if message.startswith("/") else message


class PipedLines:
    """Lines as they come, from a pipe or from a terminal that cannot be drawn on.

    `prompts`: where a short prompt goes; None: nowhere, and no control codes either.
    """

    def __init__(self, stream: BinaryIO, prompts: TextIO | None = None) -> None:
        self._stream: BinaryIO | None = stream
        self._prompts = prompts
        self._number = 0

    def read(self) -> str:
        """The next message or command; see `Lines`."""
        try:
            while not (message := without_quotes(self._message())).strip():
                pass
            return message
        except (EOFError, KeyboardInterrupt):
            self._show("\n")
            raise

    def edit(self, text: str) -> None:
        """Do nothing: lines that come ready cannot be edited."""

    def _message(self) -> str:
        """Lines up to the one that ends a message; one that is not UTF-8 takes its whole message with it."""
        lines, first = [self._line(PROMPT)], self._number
        while is_open(b"\n".join(lines).decode(errors="replace")):
            try:
                lines.append(self._line(CONTINUATION))
            except EOFError:
                what = f"line {first} opens a message that never ends"
                raise LacliError(what, f"end it with {QUOTES}; those inside go in pairs") from None
        return decode(b"\n".join(lines), f"the message in line {first} of standard input")

    def _line(self, prompt: str) -> bytes:
        """The next line without its end."""
        self._show(prompt)
        try:
            raw = self._stream.readline() if self._stream else b""
        except OSError as error:
            # It would fail again and again.
            self._stream = None
            raise LacliError(f"cannot read standard input: {reason_of(error)}", "give lines through a pipe") from error
        if not raw:
            raise EOFError
        self._number += 1
        return raw.removeprefix(b"\xef\xbb\xbf" if self._number == 1 else b"").rstrip(b"\r\n")

    def _show(self, text: str) -> None:
        if self._prompts:
            self._prompts.write(text)
            self._prompts.flush()

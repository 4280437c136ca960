"""The source of a chat's lines: a terminal or a pipe. A message is one line, or several between triple quotes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from lacli.errors import LacliError
from lacli.settings import Switch
from lacli.terminal.screen import console
from lacli.text.files import decode, is_terminal

QUOTES = '"""'


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


def open_lines(status: Callable[[int], str], history: Path | None, color: Switch) -> Lines:
    """The reader that fits the process's streams: edited lines on a good terminal, else lines as they come.

    `status`: the line below the prompt for a width in columns. `history`: the file of earlier lines, None for none.
    Raises LacliError when standard input is closed.
    """
    if sys.stdin is None:
        raise LacliError("standard input is closed", "start the chat on a terminal, or give it lines through a pipe")
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout) or console(sys.stdout, color).is_dumb_terminal:
        return PipedLines(sys.stdin.buffer)
    # It takes 0.2 s, which a pipe need not wait for.
    from lacli.chat.terminal import TerminalLines

    return TerminalLines(status, history, color)


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
    """Lines as they come, from a pipe or from a terminal that cannot be drawn on."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._number = 0

    def read(self) -> str:
        """The next message or command; see `Lines`."""
        while not (message := without_quotes(self._message())).strip():
            pass
        return message

    def edit(self, text: str) -> None:
        """Do nothing: lines that come ready cannot be edited."""

    def _message(self) -> str:
        """Lines up to the one that ends a message; one that is not UTF-8 takes its whole message with it."""
        lines, first = [self._line()], self._number
        while is_open(b"\n".join(lines).decode(errors="replace")):
            try:
                lines.append(self._line())
            except EOFError:
                what = f"line {first} opens a message that never ends"
                raise LacliError(what, f"end it with {QUOTES}; those inside go in pairs") from None
        return decode(b"\n".join(lines), f"the message in line {first} of standard input")

    def _line(self) -> bytes:
        """The next line without its end."""
        try:
            raw = self._stream.readline()
        except OSError as error:
            raise EOFError from error
        if not raw:
            raise EOFError
        self._number += 1
        return raw.removeprefix(b"\xef\xbb\xbf" if self._number == 1 else b"").rstrip(b"\r\n")

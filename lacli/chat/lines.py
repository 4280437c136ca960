"""Where a chat's lines come from: the protocol of a reader, and the lines of a pipe.

A message is one line, several lines between triple quotes, or lines that end with a backslash. What it means is
decided elsewhere, editing on a terminal is `terminal.py`, and which reader fits the streams `reader.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO

from lacli.chat.completion import Vocabulary
from lacli.errors import LacliError
from lacli.settings import Switch
from lacli.text.files import MAX_TEXT
from lacli.text.format import size_in_words
from lacli.text.question import decode

PROMPT = "> "
CONTINUATION = ". "
"""Before every further line of a message."""

QUOTES = '"""'
CONTINUED = "\\"
"""At a line's end: the message goes on (llama.cpp's way)."""


class Lines(Protocol):
    """What the chat reads from."""

    def read(self) -> str:
        """One whole message or command, never blank.

        A message of several lines stands between lines of triple quotes (`Quotes`). One that was quoted never begins
        with a slash: it is no command. Raises EOFError at the end, KeyboardInterrupt after Ctrl-C, and LacliError for
        a line that cannot be read or for an editor that fails; the next call goes on after it.
        """
        ...

    def edit(self, text: str) -> None:
        """Offer this text as the beginning of the next line, where lines are edited."""
        ...


@dataclass(frozen=True)
class Editing:
    """What an editing reader needs besides the streams.

    history: the file of earlier lines, None for none. status: the line below the prompt for a width in columns, None
    to hide it. editor: the command line of the user's editor, "" for one that is found. warn: receives a sentence.
    """

    vocabulary: Vocabulary
    warn: Callable[[str], None]
    history: Path | None = None
    status: Callable[[int], str | None] = lambda width: None
    editor: str = ""
    color: Switch = "auto"


class Quotes:
    """Triple quotes around a message, line by line: whether they are open.

    Opened by a message that begins with them. Closed at the end of that line, or by a later line of nothing else, not
    indented either. Between the two, pairs of them are text (a docstring), and so is a line that closes such a pair.
    """

    def __init__(self, first: str) -> None:
        rest = first.removeprefix(QUOTES).rstrip()
        # An odd number closes them where they stand: code that begins with a docstring.
        self.open = first.startswith(QUOTES) and not rest.endswith(QUOTES) and rest.count(QUOTES) % 2 == 0
        self._in_pair = False

    def add(self, line: str) -> None:
        """The next line of the message, while they are open."""
        self.open = self._in_pair or line.rstrip() != QUOTES
        self._in_pair ^= line.count(QUOTES) % 2 == 1


def is_open(text: str) -> bool:
    """Whether triple quotes at the text's beginning still wait for those that close them."""
    return text.startswith(QUOTES) and _closed_at(text.split("\n")) is None


def without_quotes(text: str) -> str:
    """The message that was typed: the text between triple quotes, or the text itself.

    A quoted message that begins with a slash keeps a line break before it, so that it is not taken for a command.
    """
    first, *others = lines = text.rstrip().split("\n")
    # Quotes that close before the end belong to what was pasted: a file that begins with a docstring.
    if not text.startswith(QUOTES) or _closed_at(lines) != len(others):
        return text.strip("\n")
    if not others:
        quoted = first.removeprefix(QUOTES)
        return _no_command(quoted.removesuffix(QUOTES)) if quoted.endswith(QUOTES) else first
    beside = first.removeprefix(QUOTES)
    return _no_command("\n".join([beside, *others[:-1]] if beside.strip() else others[:-1]))


def _closed_at(lines: list[str]) -> int | None:
    """The line at which triple quotes in front of the first one close."""
    quotes = Quotes(lines[0])
    for index, line in enumerate(lines):
        if index:
            quotes.add(line)
        if not quotes.open:
            return index
    return None


def _no_command(message: str) -> str:
    return f"\n{message}" if message.startswith("/") else message


class PipedLines:
    """Lines as they come, from a pipe or from a terminal that cannot be drawn on.

    prompts: where a short prompt goes; None: nowhere, and no control codes either.
    """

    def __init__(self, stream: BinaryIO, prompts: TextIO | None = None) -> None:
        self._stream: BinaryIO | None = stream
        self._prompts = prompts
        self._number = 0
        self._room = MAX_TEXT

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
        """Nothing: lines that come ready cannot be edited."""

    def _message(self) -> str:
        """Lines up to the one that ends a message; one that is not UTF-8 takes its whole message with it."""
        self._room = MAX_TEXT
        numbered = [(self._line(PROMPT), self._number)]
        lines = [_lenient(numbered[0][0])]
        quoted, quotes = lines[0].startswith(QUOTES), Quotes(lines[0])
        while quotes.open if quoted else lines[-1].endswith(CONTINUED):
            try:
                numbered.append((self._line(CONTINUATION), self._number))
            except EOFError:
                if not quoted:
                    break
                what = f"line {numbered[0][1]} opens a message that never ends"
                raise LacliError(what, f"end it with a line of {QUOTES} alone; those inside go in pairs") from None
            lines.append(_lenient(numbered[-1][0]))
            quotes.add(lines[-1])
        for raw, number in numbered:
            decode(raw, f"line {number} of standard input")
        text = "\n".join(lines)
        return text if quoted else text.removesuffix(CONTINUED).replace(f"{CONTINUED}\n", "\n")

    def _line(self, prompt: str) -> bytes:
        """The next line without its end."""
        self._show(prompt)
        try:
            raw = self._stream.readline(self._room + 1) if self._stream else b""
        except OSError as error:
            # It would fail again and again.
            self._stream = None
            raise LacliError(f"cannot read standard input: {error.strerror}", "give lines through a pipe") from error
        if not raw:
            raise EOFError
        self._room -= len(raw)
        if self._room < 0:
            self._stream = None
            size = size_in_words(MAX_TEXT)
            raise LacliError(f"a message of standard input is larger than {size}", "the chat ends with it")
        self._number += 1
        return raw.removeprefix(b"\xef\xbb\xbf" if self._number == 1 else b"").rstrip(b"\r\n")

    def _show(self, text: str) -> None:
        if self._prompts:
            self._prompts.write(text)
            self._prompts.flush()


def _lenient(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")

"""Where a chat's lines come from: the protocol of a reader, and the lines of a pipe.

A message is one line, several lines between triple quotes, or lines that end with a backslash. What a line means is
decided elsewhere, editing on a terminal is `terminal.py`, and which reader fits the streams `reader.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO

from lacli.chat.completion import Vocabulary
from lacli.errors import LacliError
from lacli.question import decode
from lacli.settings import Switch

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

        A message that was quoted never begins with a slash: it is no command. Raises EOFError at the end,
        KeyboardInterrupt after Ctrl-C, and LacliError for a line that cannot be read; the next call goes on after it.
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


def is_open(text: str) -> bool:
    """Whether triple quotes at the text's beginning still wait for those at the end of a line."""
    return text.startswith(QUOTES) and not text.removeprefix(QUOTES).rstrip().endswith(QUOTES)


def without_quotes(text: str) -> str:
    """The message that was typed: the text between triple quotes, or the text itself.

    A quoted message that begins with a slash keeps a line break before it, so that it is not taken for a command.
    """
    if not text.startswith(QUOTES) or is_open(text):
        return text.strip("\n")
    inside = text.removeprefix(QUOTES).rstrip().removesuffix(QUOTES).removeprefix("\n").removesuffix("\n")
    return f"\n{inside}" if inside.startswith("/") else inside


class PipedLines:
    """Lines as they come, from a pipe or from a terminal that cannot be drawn on.

    prompts: where a short prompt goes; None: nowhere, and no control codes either.
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
        """Nothing: lines that come ready cannot be edited."""

    def _message(self) -> str:
        """Lines up to the one that ends a message; one that is not UTF-8 takes its whole message with it."""
        first = self._line(PROMPT)
        numbered = [(self._number, first)]
        text = _lenient(first)
        quoted = text.startswith(QUOTES)
        while is_open(text) if quoted else text.endswith(CONTINUED):
            text = text if quoted else text.removesuffix(CONTINUED)
            try:
                raw = self._line(CONTINUATION)
            except EOFError:
                if not quoted:
                    break
                what = f"line {numbered[0][0]} opens a message that never ends"
                raise LacliError(what, f"end its last line with {QUOTES}") from None
            numbered.append((self._number, raw))
            text += "\n" + _lenient(raw)
        for number, raw in numbered:
            decode(raw, f"line {number} of standard input")
        return text

    def _line(self, prompt: str) -> bytes:
        """The next line without its end."""
        self._show(prompt)
        try:
            raw = self._stream.readline() if self._stream else b""
        except OSError as error:
            # It would fail again and again.
            self._stream = None
            raise LacliError(f"cannot read standard input: {error.strerror}", "give lines through a pipe") from error
        if not raw:
            raise EOFError
        self._number += 1
        return raw.removeprefix(b"\xef\xbb\xbf" if self._number == 1 else b"").rstrip(b"\r\n")

    def _show(self, text: str) -> None:
        if self._prompts:
            self._prompts.write(text)
            self._prompts.flush()


def _lenient(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")

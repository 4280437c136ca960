"""The terminal: the answer on stdout as it comes, everything else on stderr, colours only where they are wanted.

Nothing else writes to stdout. Model text goes out raw; rich would read markup in it and wrap it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import StringIO, TextIOWrapper
from typing import TextIO

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from lacli.errors import LacliError
from lacli.settings import Switch
from lacli.text import Piece

GUESSED = Style(color="bright_cyan")
"""Tokens accepted in parallel."""


class Screen:
    """stdout for the answer and stderr for words about it.

    quiet: no notes. show_accepted: mark guessed text where stdout has colours (auto: on a terminal that wants them).
    """

    def __init__(self, *, color: Switch = "auto", quiet: bool = False, show_accepted: bool = False) -> None:
        self.quiet = quiet
        self._out: TextIO | None = sys.stdout
        if isinstance(sys.stdout, TextIOWrapper):
            # A terminal that knows no emoji must not end the answer.
            sys.stdout.reconfigure(errors="replace")
        self._errors = console(sys.stderr, color)
        self._mark = show_accepted and console(sys.stdout, color).color_system is not None
        self._last = "\n"

    def write(self, pieces: Iterable[Piece]) -> None:
        """Print answer text now. Raises LacliError when stdout cannot take it, BrokenPipeError when nobody reads."""
        for piece in pieces:
            text = piece.text
            if piece.guessed and self._mark:
                text = GUESSED.render(text, color_system=ColorSystem.STANDARD)
            self._last = piece.text[-1:]
            self._put(text)

    def end_line(self) -> None:
        """End the answer's last line, where it has not ended itself."""
        if self._last != "\n":
            self._last = "\n"
            self._put("\n")

    def line(self, text: str) -> None:
        """A whole line on stdout (JSON)."""
        self._put(text + "\n")

    def note(self, sentence: str) -> None:
        """A sentence on stderr, unless quiet."""
        if not self.quiet:
            self._errors.print(f"lacli: {sentence}", style="dim", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def progress(self, total: int, words: str) -> Iterator[Callable[[], None]]:
        """A bar on stderr while it is a terminal, unless quiet; call what is yielded when one of `total` is done."""
        if self.quiet or not self._errors.is_terminal:
            yield lambda: None
            return
        # It takes 20 ms, which commands without a bar need not wait for.
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._errors, transient=True) as bar:
            task = bar.add_task(words, total=total)
            yield lambda: bar.advance(task)

    def report(self, text: str) -> None:
        """Asked-for numbers on stderr, quiet or not."""
        self._errors.print(text, markup=False, highlight=False, soft_wrap=True)

    def error(self, error: LacliError) -> None:
        """One line: what happened and what to do; names and reasons in it may come from a damaged file."""
        line = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(error))
        self._errors.print(f"lacli: {line}", style="red", markup=False, highlight=False, soft_wrap=True)

    def _put(self, text: str) -> None:
        if self._out is None:
            raise LacliError("cannot write the answer: standard output is closed", "check where stdout goes")
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:
            abandon_stdout()
            reason = getattr(error, "strerror", None) or error
            raise LacliError(f"cannot write the answer: {reason}", "check where stdout goes") from error


def console(file: TextIO | None, color: Switch) -> Console:
    """A rich console on a stream (None: closed); auto heeds NO_COLOR, FORCE_COLOR and TERM=dumb.

    Without colours there are no other escape codes either, where rich would still write bold and dim.
    """
    file = StringIO() if file is None else file
    if color == "on":
        return Console(file=file, force_terminal=True, color_system="standard", no_color=False)
    plain = Console(file=file, color_system=None)
    return plain if color == "off" or plain.no_color else Console(file=file)


def abandon_stdout() -> None:
    """Let what stdout still buffers go nowhere, so that the interpreter's last flush does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

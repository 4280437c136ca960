"""The screen: the answer on stdout, drafted text in colours; notes, errors and status lines on stderr."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from io import StringIO, TextIOWrapper
from json import dumps
from shutil import get_terminal_size
from textwrap import fill
from time import perf_counter
from typing import TextIO

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from lacli.errors import LacliError, OutputError, reason_of
from lacli.interrupts import ctrl_c_ends_at_once, put_terminal_back, undone
from lacli.settings import Switch
from lacli.terminal.input import is_terminal
from lacli.text.format import printable
from lacli.text.stream import Piece
from lacli.tree import Origin

ORIGIN_COLORS: dict[Origin, str] = {
    Origin.SUFFIX: "green",
    Origin.POOL: "cyan",
    Origin.WINDOW: "yellow",
    Origin.CHAIN: "bright_blue",
}
"""rich's names for the colours of drafted tokens. Of the first six all but blue are readable on any background."""


class Screen:
    """stdout for the answer and stderr for messages about it. Reasoning is always dim.

    `color`: auto means on a terminal that supports colours. `quiet`: print no notes. `show_accepted`: colour drafted
    text by its origin, or bracket it on a terminal without colours; callers may change it between answers.
    """

    def __init__(self, *, color: Switch = "auto", quiet: bool = False, show_accepted: bool = False) -> None:
        self.quiet = quiet
        self.show_accepted = show_accepted
        self._out: TextIO | None = sys.stdout
        if isinstance(sys.stdout, TextIOWrapper):
            # A terminal that cannot encode an emoji must not end the answer.
            sys.stdout.reconfigure(errors="replace")
        self._errors = console(sys.stderr, color)
        self._on_terminal = is_terminal(sys.stdout)
        out = console(sys.stdout, color)
        self._colored, self._moves_words = out.color_system is not None, self._on_terminal and out.is_interactive
        self._last = "\n"

    def write(self, pieces: Iterable[Piece]) -> None:
        """Print `pieces` as they come. Raises OutputError if stdout fails, BrokenPipeError if nobody reads it."""
        shown = map(self._shown, pieces) if self._on_terminal else pieces
        for parts in whole_words(shown) if self._moves_words else ([piece] for piece in shown):
            # One write for all: if the program ends between two tokens, no colour stays on.
            if text := "".join(map(self._styled, parts)):
                self._put(text)
                self._last = parts[-1].text[-1]

    def end_line(self) -> None:
        """Print a line break, unless the answer ended with one."""
        if self._last != "\n":
            self._last = "\n"
            self._put("\n")

    def line(self, content: str | Mapping[str, object]) -> None:
        """Print a text, or an object as one line of JSON, on stdout."""
        text = content if isinstance(content, str) else dumps(content, ensure_ascii=False)
        self._put(f"{printable(text, lines=True) if self._on_terminal else text}\n")

    def warn(self, sentence: str) -> None:
        self.say(f"lacli: {sentence}")

    def note(self, sentence: str) -> None:
        if not self.quiet:
            self.say(f"lacli: {sentence}", "dim")

    @contextmanager
    def waiting(self, *, shown: bool = True) -> Iterator[Callable[[str], None]]:
        """Show a status line on a terminal's stderr during the block, unless quiet or not `shown`.

        Yields a function that sets the line's words; after the block it does nothing.
        """
        file, over = sys.stderr, not (shown and self._errors.is_interactive and is_terminal(sys.stderr))

        def say(words: str) -> None:
            if not (over or self.quiet):
                with suppress(OSError, ValueError):  # the terminal or the stream is closed
                    # Some terminals begin a new line when the last column is used.
                    file.write(f"\r\x1b[K{words[: self._errors.width - 1]}")
                    file.flush()

        with undone(lambda: say("")):
            try:
                yield say
            finally:
                say("")
                over = True

    def prefill_line(self, *, shown: bool = True) -> Callable[[int, int], None]:
        """Return a function that shows the progress of a prefill; call it with the tokens done and their total.

        The status line shows both, tokens a second and the time left. It appears at 0 tokens done if the total is 128
        or more, and disappears when all are done.
        """
        line, begin = ExitStack(), 0.0
        say: Callable[[str], None] = print

        def show(done: int, total: int) -> None:
            nonlocal begin, say
            if done == total:
                line.close()
                return
            if not done:
                begin = perf_counter()
                # For a shorter prompt the line would only flash.
                say = line.enter_context(self.waiting(shown=shown and total >= 128))
            seconds = perf_counter() - begin
            left = seconds * (total - done) / max(done, 1)
            speed = f", {done / seconds:,.0f} tokens/s, {left:,.0f} s left" if done and seconds else ""
            say(f"reading the prompt: {done:,} of {total:,} tokens{speed}")

        return show

    def legend(self, accepted: Mapping[Origin, int]) -> None:
        """Print the number of accepted tokens of each origin in its colour, if `show_accepted` and not quiet."""
        if self.quiet or not ((self._colored or self._on_terminal) and self.show_accepted and accepted):
            return
        text = Text("lacli: accepted in parallel: ", style="dim")
        for place, origin in enumerate(sorted(accepted, key=accepted.__getitem__, reverse=True)):
            text.append(", " if place else "")
            text.append(f"{accepted[origin]} {origin.value}", f"not dim {ORIGIN_COLORS[origin]}")
        self._errors.print(text, soft_wrap=True)

    def say(self, text: str, style: str | None = None) -> None:
        """Print lines on stderr in rich's `style`, also if quiet; on a terminal they are wrapped between words."""
        text = printable(text, lines=True).expandtabs()
        text = wrapped(text, self._errors.width) if self._errors.is_terminal else text
        self._errors.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def gap(self) -> None:
        """Print an empty line after an answer, on a terminal only."""
        if self._errors.is_terminal:
            self._errors.print()

    def error(self, error: LacliError) -> None:
        """Print an error in one line, with visible signs for control characters, as a damaged file may have them."""
        self.say(f"lacli: {printable(str(error))}", "red")

    def _shown(self, piece: Piece) -> Piece:
        """Return a piece without control characters. With `show_accepted` and no colours, drafts are in brackets."""
        text = printable(piece.text, lines=True)
        marks = self.show_accepted and not self._colored and piece.origin in ORIGIN_COLORS
        return replace(piece, text=f"[{text}]" if marks and text else text)

    def _styled(self, piece: Piece) -> str:
        color = ORIGIN_COLORS.get(piece.origin) if self.show_accepted else None
        style = Style(color=color, dim=piece.reasoning or None) if self._colored else Style.null()
        return style.render(piece.text, color_system=ColorSystem.STANDARD)

    def _put(self, text: str) -> None:
        if self._out is None:
            raise OutputError("cannot write to standard output: it is closed", "check where stdout goes")
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:
            abandon_stdout()
            what = f"cannot write to standard output: {reason_of(error)}"
            raise OutputError(what, "check where stdout goes") from error


@contextmanager
def loading_model(screen: Screen, *, verbose: bool = False) -> Iterator[Callable[[float], None]]:
    """Show a status line while the block loads a model; Ctrl-C then ends the process.

    From now on, after the block too, a failed assertion of llama.cpp ends the process with one line. Yields a function
    that shows the loaded share of the weights, 0 to 1. `verbose`: show llama.cpp's log instead.
    """
    with ctrl_c_ends_at_once(), screen.waiting(shown=not verbose) as say:
        say("loading the model")
        end_at_abort(screen, "the model's file may be damaged: fetch it again")
        yield lambda share: say(f"loading the model {share:.0%}")


def end_at_abort(screen: Screen, hint: str) -> None:
    """From now on, a failed assertion of llama.cpp ends the process with one line, which has the `hint`."""
    # Commands without a model skip the import of llama.cpp's library, which takes time.
    from lacli.llamacpp.library import abort_error, on_abort

    def give_up(message: str) -> None:
        put_terminal_back()
        screen.error(abort_error(message, hint))
        os._exit(LacliError.exit_code)

    on_abort(give_up)


def wrapped(text: str, width: int) -> str:
    """Wrap `text` between words to `width` columns. In lines like "/help commands" the second column stays aligned."""
    lines = []
    for line in text.split("\n"):
        columns = re.match(r" *\S.*? {2,}(?=\S)", line)
        indent = " " * (len(columns[0]) if columns else len(line) - len(line.lstrip()))
        wide = max(width, len(indent) + 1)
        lines.append(fill(line, wide, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))
    return "\n".join(lines)


def whole_words(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield the parts of each piece, with line breaks so that no word crosses the terminal's edge.

    Fenced code stays as it is: the terminal breaks its lines, and they can be copied whole.
    """
    column, fenced, line, word = 0, False, "", list[Piece]()
    for piece in pieces:
        parts, edge = list[Piece](), get_terminal_size().columns
        for text in re.findall(r"\n|[^\S\n]+|\S+", piece.text):
            part, size, begun = replace(piece, text=text), cell_len(text), sum(cell_len(each.text) for each in word)
            blank = text.isspace()
            if not (blank or fenced) and begun < column and begun + size < edge <= column + size:
                parts += [Piece(f"\x1b[{begun}D\x1b[K\n" if begun else "\n"), *word]
                column = begun
            # Between wide characters, such as Chinese ones, a row may end.
            word = [] if blank or size != len(text) else [*word, part]
            parts.append(part)
            column, line = (column + size - 1) % edge + 1 if size else column, line + text
            if text == "\n":
                column, line, fenced = 0, "", fenced != line.lstrip().startswith("```")
        yield parts


def console(file: TextIO | None, color: Switch) -> Console:
    """Return a rich console for `file` (None: drop all text). `color` auto follows NO_COLOR, FORCE_COLOR and TERM=dumb.

    Without colours it writes no other escape codes either; rich alone would still write bold and dim.
    """
    file = StringIO() if file is None else file
    if color == "on":
        return Console(file=file, force_terminal=True, color_system="standard", no_color=False, emoji=False)
    plain = Console(file=file, color_system=None, emoji=False)
    return plain if color == "off" or plain.no_color else Console(file=file, emoji=False)


def abandon_stdout() -> None:
    """Discard the text that stdout still buffers, so that the interpreter's last flush does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

"""The loop of `lacli chat`: reads lines from a terminal or a pipe, runs or answers them, and shows errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from lacli.chat.commands import PLAIN_WORDS, QUOTES, Commands, is_open, message_of, parse, without_quotes
from lacli.errors import Interrupted, LacliError, OutputError
from lacli.interrupts import second_ctrl_c_ends, without_ctrl_c
from lacli.report import as_lines
from lacli.settings import Detail, Switch
from lacli.terminal.input import is_terminal
from lacli.terminal.screen import Screen, console
from lacli.text.files import decode
from lacli.text.format import counted
from lacli.text.reasoning import answer_of
from lacli.text.stream import Piece


class Lines(Protocol):
    def read(self) -> str:
        """Return the next message or command; blank ones are skipped.

        A message in triple quotes never begins with a slash, which would make it a command. Raises EOFError at the end,
        KeyboardInterrupt after Ctrl-C, and LacliError for an unreadable line; the next call continues after that line.
        """
        ...

    def edit(self, text: str) -> None:
        """Let the user edit `text` as the beginning of the next line. Does nothing without line editing."""
        ...


def open_lines(status: Callable[[int], str], history: Path | None, color: Switch) -> Lines:
    """Return the reader of standard input: with line editing if stdin and stdout are terminals that support it.

    `status`: returns the status line for a width in columns. `history`: the file of earlier lines, None for none.
    `color`: whether to use colours. Raises LacliError if standard input is closed.
    """
    if sys.stdin is None:
        raise LacliError("standard input is closed", "start the chat on a terminal, or give it lines through a pipe")
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout) or console(sys.stdout, color).is_dumb_terminal:
        return PipedLines(sys.stdin.buffer, asks=is_terminal(sys.stdin))
    # This import takes 0.2 s, which a pipe need not spend.
    from lacli.chat.terminal import TerminalLines

    return TerminalLines(status, history, color)


class PipedLines:
    """Reads lines from a pipe, or from a terminal without line editing. `asks`: print `> ` before reading each line."""

    def __init__(self, stream: BinaryIO, *, asks: bool = False) -> None:
        self._stream, self._asks = stream, asks
        self._number = 0

    def read(self) -> str:
        while not (message := without_quotes(self._message())).strip():
            pass
        return message

    def edit(self, text: str) -> None:
        pass

    def _message(self) -> str:
        """Return a message's lines, joined. Raises LacliError for invalid UTF-8 or open quotes, EOFError at the end."""
        lines, first = [self._line()], self._number
        while is_open(b"\n".join(lines).decode(errors="replace")):
            try:
                lines.append(self._line(". "))
            except EOFError:
                what = f"line {first} opens a message that never ends"
                raise LacliError(what, f"end it with {QUOTES}; quotes inside come in pairs") from None
        return decode(b"\n".join(lines), f"the message in line {first} of standard input")

    def _line(self, sign: str = "> ") -> bytes:
        """Return the next line without its line break. If `asks`, print `sign` first. Raises EOFError at the end."""
        if self._asks:
            print(sign, end="", file=sys.stderr, flush=True)
        try:
            raw = self._stream.readline()
        except OSError as error:
            raise EOFError from error
        if not raw:
            raise EOFError
        self._number += 1
        return raw.removeprefix(b"\xef\xbb\xbf" if self._number == 1 else b"").rstrip(b"\r\n")


@dataclass
class Repl:
    """One chat on one screen.

    `stats`: how much to report of each answer. `obeys`: lines that begin with a slash are commands. `interactive`: a
    user types, so Ctrl-C stops an answer and not the program. `failed`: an error occurred. `leaving`: Ctrl-C was
    pressed at the last prompt.
    """

    commands: Commands
    screen: Screen
    stats: Detail = ""
    obeys: bool = True
    interactive: bool = True
    failed: bool = False
    leaving: bool = False

    def run(self, lines: Lines, first: str = "") -> None:
        """Read and answer lines until the input or a command ends the chat. `first`: a message to answer before, or "".

        Errors are shown. Raises Interrupted after the second Ctrl-C at the prompt. If not `interactive`, raises
        Interrupted after any Ctrl-C, and OutputError if stdout fails.
        """
        while True:
            try:
                # Ctrl-C is raised as a loop starts its next round, so both loops are inside `try`.
                if first:
                    message, first = first, ""
                    if self.interactive:
                        self.screen.say(f"> {message}")
                    self._ask(message, lines)
                while not self._next(lines):
                    pass
                return
            except EOFError:
                return
            except KeyboardInterrupt:
                if self.leaving or not self.interactive:
                    raise Interrupted("") from None
                self.leaving = True
                self.screen.say("press Ctrl-C again or Ctrl-D to leave")
            except LacliError as error:
                if isinstance(error, OutputError) and not self.interactive:
                    raise
                self.failed = True
                self.screen.end_line()
                self.screen.error(error)

    def status(self, width: int) -> str:
        """Return the status line: used context, mode and the last answer's speed, cut to `width` characters."""
        chat = self.commands.chat
        used, cells = chat.used, chat.cells
        parts = [f"context {used:,} of {cells:,} ({100 * used // cells}%)", chat.settings.decode_settings.mode]
        if chat.turns and chat.conversation.messages:
            last = chat.turns[-1]
            parts += [f"{last.statistics.tokens_per_second:,.1f} tokens/s", f"{last.tokens_per_step:.1f} tokens/step"]
        return " · ".join(parts)[:width]

    def show_last(self) -> None:
        """Show the last question and its answer, each cut after 300 characters."""
        conversation = self.commands.chat.conversation
        for message in conversation.messages[-1 if conversation.is_open else -2 :]:
            whole = f"> {message.content}" if message.role == "user" else answer_of(message.content).strip()
            shown = whole[:300]
            self.screen.say(shown if shown == whole else f"{shown} ...", "dim")

    def _next(self, lines: Lines) -> bool:
        """Read a line, and run it as a command or answer it. Returns True if the chat ends."""
        line = lines.read()
        self.leaving = False
        try:
            return self._obey(line, lines)
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            self.screen.note("stopped")
            return False

    def _obey(self, line: str, lines: Lines) -> bool:
        if self.interactive:
            line = PLAIN_WORDS.get(line.rstrip().lower(), line)
        command = parse(line) if self.obeys else None
        if command is None:
            self._ask(message_of(line), lines)
            return False
        entry, argument = command
        reply = self.commands.run(entry, argument)
        with without_ctrl_c():
            self.commands.log.update(self.commands.as_saved)
        if reply.text:
            self.screen.say(reply.text)
        if "/load" in entry.names and self.interactive:
            self.show_last()
        if reply.edit:
            lines.edit(reply.edit)
        if reply.again:
            self._answer(self.commands.chat.again())
        return reply.end

    def _ask(self, typed: str, lines: Lines) -> None:
        """Answer the message `typed` with the files of /read before it.

        If no answer comes, offer `typed` again and keep the files.
        """
        chat = self.commands.chat
        asked = len(chat.turns)
        try:
            self._answer(chat.ask(self.commands.message(typed)))
        finally:
            if len(chat.turns) == asked:
                lines.edit(typed)
            else:
                self.commands.files.clear()

    def _answer(self, pieces: Generator[Piece]) -> None:
        """Show the pieces of an answer as they come. Ctrl-C ends the answer and keeps its text so far."""
        chat, stopped = self.commands.chat, False
        before = len(chat.turns)
        try:
            # A slow step may delay the stop: for one second, more presses of Ctrl-C count as the first one.
            with second_ctrl_c_ends(1.0), closing(pieces):
                self.screen.write(pieces)
        except KeyboardInterrupt:
            stopped = True
        finally:
            with without_ctrl_c():
                self.screen.end_line()
                last = chat.turns[-1] if len(chat.turns) > before else None
                if last:
                    detail, limit = self.stats or "short", chat.settings.max_tokens
                    self.commands.report = as_lines(chat.engine, last, detail=detail, max_tokens=limit)
                self.commands.log.update(self.commands.as_saved)
        if stopped:
            if not self.interactive:
                raise KeyboardInterrupt
            self.screen.note("stopped" if last else "stopped before the answer began")
        for note in chat.notes:
            # Notes about an answer are shown even if other notes are off.
            self.screen.warn(note)
        if last:
            if self.interactive and last.finish_reason == "length" and last.statistics.tokens == limit:
                self.screen.note(f"the answer was cut after {counted(limit, 'token')} (-n); /set n -1 lifts the limit")
            self.screen.legend(last.statistics.accepted_from)
            if self.stats:
                self.screen.say(self.commands.report)
        if self.interactive:
            self.screen.gap()

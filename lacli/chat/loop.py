"""The chat's loop: read a line, obey it or answer it, and go on whatever goes wrong.

What a line means is `commands.py`, what commands do `actions.py`, a turn `talk.py`; lines and screen are given.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, nullcontext

from lacli.chat.actions import Actions, Outcome
from lacli.chat.clipboard import copy
from lacli.chat.commands import (
    Command,
    argument_of,
    meant_by,
    message_of,
    parse,
)
from lacli.chat.lines import Lines
from lacli.chat.shown import oldest
from lacli.chat.status import status_line
from lacli.chat.talk import Chat
from lacli.chat.transcript import Transcript
from lacli.errors import (
    Interrupted,
    LacliError,
    OutputError,
    PromptError,
)
from lacli.session.report import Explanation, as_lines, watching
from lacli.terminal.interrupts import without_ctrl_c
from lacli.terminal.screen import Screen
from lacli.text.stream import Piece

EMPTIES = "; Ctrl-C empties the line"
"""Said where a text stands in the line that the user did not type just now."""


class Loop:
    """One chat on one screen. status: whether the line of numbers is shown; stats: numbers after every answer;
    explain: a line for every step of one.

    interactive: somebody types, so that Ctrl-C stops an answer and not the program. commands: lines that begin with a
    slash are commands. failed: something went wrong.
    """

    def __init__(
        self,
        chat: Chat,
        actions: Actions,
        screen: Screen,
        *,
        transcript: Transcript | None = None,
        interactive: bool = True,
        status: bool = True,
        stats: bool = False,
        explain: bool = False,
        commands: bool = True,
    ) -> None:
        self._chat = chat
        self._actions = actions
        self._screen = screen
        self._transcript = transcript
        self._interactive = interactive
        self._status = status
        self._stats = stats
        self._explain = explain
        self._commands = commands
        self._leaving = False
        self._told = False
        self.failed = False

    def run(self, lines: Lines, first: str = "") -> None:
        """Go on until the lines end or a command ends the chat. first: a message to begin with.

        Raises Interrupted for Ctrl-C where a line is read, and OutputError where nobody is there to see the sentence.
        """
        while True:
            try:
                # Ctrl-C is raised where a loop begins again, so that has to be in here.
                if first:
                    message, first = first, ""
                    if self._interactive:
                        self._screen.say(f"> {message}")
                    self._ask(message, lines)
                while not self._next(lines):
                    pass
                return
            except EOFError:
                return
            except KeyboardInterrupt:
                self._interrupted()
            except LacliError as error:
                if isinstance(error, OutputError) and not self._interactive:
                    raise
                self.failed = True
                self._screen.end_line()
                self._screen.error(error)

    def _next(self, lines: Lines) -> bool:
        """Read a line and do what it says; whether the chat ends with it."""
        line = lines.read()
        self._leaving = False
        try:
            return self._obey(line, lines).end
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            self._screen.note("stopped")
            return False

    def status(self, width: int) -> str | None:
        """The line of numbers for a terminal of so many columns, None where it is hidden."""
        if not self._status:
            return None
        chat, last = self._chat, self._chat.last
        speed, gain = (last.statistics.tokens_per_second, last.tokens_per_step) if last else (None, None)
        return status_line(speed, gain, chat.used, chat.cells, chat.settings.mode, width)

    def _interrupted(self) -> None:
        """Ctrl-C where a line is read."""
        if self._leaving or not self._interactive:
            raise Interrupted("")
        self._leaving = True
        self._screen.say("Ctrl-C again leaves, and so does Ctrl-D")

    def _obey(self, line: str, lines: Lines) -> Outcome:
        command = parse(line) if self._commands else None
        if command is None:
            self._tell_commands(line)
            if self._interactive and (hint := meant_by(line)):
                self._screen.say(hint)
            self._ask(self._actions.message(message_of(line)), lines)
            return Outcome()
        outcome = self._done(command)
        if outcome.text:
            offered = EMPTIES if outcome.edit and self._interactive else ""
            self._screen.say(f"{outcome.text}{offered}")
        if outcome.color is not None:
            self._screen.show_accepted = outcome.color
        if outcome.status is not None:
            self._status = outcome.status
        if outcome.edit is not None:
            lines.edit(outcome.edit)
        if outcome.copy is not None:
            self._screen.say(copy(outcome.copy))
        if outcome.ask is not None:
            self._ask(outcome.ask, lines)
        if outcome.again:
            self._answer(self._chat.again(), again=True)
        return outcome

    def _tell_commands(self, message: str) -> None:
        """Say once that a message which looks like a command is none here."""
        if message.startswith("/") and not self._commands and not self._told:
            self._told = True
            self._screen.note("a line that begins with / is a message here; --commands makes it a command")

    def _done(self, command: Command) -> Outcome:
        """Carry out a command: one that waits for a file can be stopped, others are done whole and in the log."""
        waits = argument_of(f"/{command.name}") == "file"
        with nullcontext() if waits else without_ctrl_c():
            return self._actions.run(command, self._screen.width)

    def _ask(self, message: str, lines: Lines) -> None:
        conversation = self._chat.conversation
        replaced = conversation.messages[-1] if conversation.is_open else None
        with without_ctrl_c():
            pieces = self._chat.ask(message)
            self._log(answered=False)
        try:
            self._answer(pieces)
        except PromptError as error:
            self._log_change("undo")
            if replaced and self._transcript:
                self._note(self._transcript.message(replaced))
            lines.edit(self._actions.refused(message))
            raise PromptError(error.what, f"{error.hint}{EMPTIES if self._interactive else ''}") from error

    def _answer(self, pieces: Generator[Piece], *, again: bool = False) -> None:
        """Show an answer as it comes; Ctrl-C stops it, and what came is kept. again: in the place of another one."""
        before, stopped = len(self._chat.turns), False
        explanation = self._explanation()
        try:
            with closing(pieces):
                self._screen.write(pieces)
        except KeyboardInterrupt:
            stopped = True
        finally:
            with without_ctrl_c():
                self._screen.end_line()
                explanation.end()
                answered = len(self._chat.turns) > before
                if self._chat.dropped:
                    self._log_change("compact", dropped=self._chat.dropped)
                    self._screen.say(f"lacli: the context was full: {oldest(self._chat.dropped)} are forgotten")
                if answered and again:
                    self._log_change("regen")
                if answered:
                    self._log(answered=True)
        if stopped:
            if not self._interactive:
                raise KeyboardInterrupt
            kept = "the old answer stays" if again else "/regen gives it"
            self._screen.note("stopped" if answered else f"stopped before the answer began; {kept}")
        for note in self._chat.notes:
            # They are about the answer, and so said also where notes are not wanted.
            self._screen.say(f"lacli: {note}")
        if answered:
            self._sum_up()
        if self._interactive:
            self._screen.gap()

    def _explanation(self) -> Explanation:
        """The lines about the next answer's steps, where they are wanted."""
        wait = self._screen.shared
        explanation = Explanation(self._screen.row, planned=self._chat.settings.mode == "auto", wait=wait)
        tells = not wait and len(self._chat.session.copies.names) > 1
        self._chat.watch = watching(explanation if self._explain else None, self._tell_losses if tells else None)
        return explanation

    def _tell_losses(self) -> None:
        for loss in self._chat.session.losses():
            self._screen.say(f"lacli: {loss}")

    def _sum_up(self) -> None:
        """What is shown of the last answer as a whole."""
        if self._chat.last:
            self._screen.legend(self._chat.last.statistics.accepted_from)
            if self._stats:
                self._screen.report(as_lines(self._chat.session, self._chat.last))

    def _log(self, *, answered: bool) -> None:
        if self._transcript:
            message = self._chat.conversation.messages[-1]
            self._note(self._transcript.message(message, self._chat.last if answered else None))

    def _log_change(self, command: str, **what: object) -> None:
        if self._transcript:
            self._note(self._transcript.changed(command, **what))

    def _note(self, sentence: str) -> None:
        if sentence:
            self._screen.note(sentence)

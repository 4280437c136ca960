"""`lacli chat`: read a line, obey it or answer it, and go on whatever goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from lacli.chat.commands import Commands, Reply, oldest
from lacli.chat.conversation import Chat
from lacli.chat.input import (
    PLAIN_WORDS,
    Editing,
    Lines,
    can_edit,
    message_of,
    open_lines,
    parse,
)
from lacli.chat.settings import ChatSettings, given_beside
from lacli.chat.talk import Conversation, Message
from lacli.chat.transcript import SavedChat, Transcript
from lacli.errors import (
    Interrupted,
    LacliError,
    OutputError,
    PromptError,
)
from lacli.llamacpp.model import giving_way
from lacli.llamacpp.probe import told_once_a_day
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.session.session import Session
from lacli.settings import Detail, Switch
from lacli.terminal.interrupts import hidden_keys, second_ctrl_c_ends, undone_by_signals, without_ctrl_c
from lacli.terminal.screen import Screen, loading_model
from lacli.text.files import is_terminal
from lacli.text.format import counted
from lacli.text.question import file_named
from lacli.text.reasoning import answer_of, closed
from lacli.text.stream import Piece

EMPTIES = "; Ctrl-C empties the line"
"""Said where a text stands in the line that the user did not type just now."""

SEPARATOR = " · "
SHOWN_LINES, SHOWN_CHARACTERS = 6, 400
"""Of a loaded chat's last question and of its answer, about a quarter of a small screen each."""

NERVOUS_S = 1.0
"""Seconds in which more presses of Ctrl-C stop an answer as the first one: a slow step may be under way."""


@dataclass(frozen=True)
class ChatPlan:
    """How a chat begins and what it keeps.

    `model`: as the user typed it. `variables`: what the template gets beside a conversation. `saved`: a chat to go on
    with, whose settings hold but for those `given` on the command line, by their fields' names. `first`: a message to
    begin with. `log`: a file to add to. `history`: the file of typed lines, `known`: that of what is known of models,
    None for none. `commands`: lines of a pipe may be commands.
    """

    model: str = ""
    system: str = ""
    template: str = ""
    settings: ChatSettings = ChatSettings()
    variables: Mapping[str, object] = field(default_factory=dict)
    saved: SavedChat | None = None
    given: frozenset[str] = frozenset()
    first: str = ""
    log: str | None = None
    history: Path | None = None
    known: Path | None = None
    color: Switch = "auto"
    status: bool = True
    stats: Detail = ""
    commands: bool = False
    verbose: bool = False
    replicas: ReplicaSettings | None = None

    def going_on(self, saved: SavedChat) -> ChatPlan:
        """The plan with what was saved, where the command line does not say otherwise."""
        return replace(
            self,
            system=self.system if self.given & {"system", "system_file"} else saved.system,
            template=self.template if "chat_template" in self.given else saved.template,
            settings=given_beside(saved.settings, self.settings, self.given),
        )

    @property
    def sampling(self) -> SamplingSettings:
        """How the session samples: with the saved chat's seed where the user has set none."""
        sampling = self.settings.sampling
        return replace(sampling, seed=self.saved.seed) if self.saved and sampling.seed < 0 else sampling


def chat(path: Path, plan: ChatPlan, model_settings: ModelSettings, screen: Screen) -> int:
    """Talk with a model until the user ends it; the exit code. Raises Interrupted for Ctrl-C at the prompt."""
    saved = plan.saved or SavedChat()
    plan = plan.going_on(saved) if plan.saved else plan
    with ExitStack() as stack:
        if can_edit(plan.color):
            # Keys that are typed while a model loads or answers are not shown there, but wait for the next line.
            stack.enter_context(hidden_keys(raw=True))
        # Under -q too: the log was asked for.
        transcript = stack.enter_context(Transcript(plan.log, screen.warn))
        with loading_model(screen, verbose=plan.verbose) as loading:
            session = Session(
                path,
                giving_way(model_settings),
                plan.settings.decode_settings,
                plan.sampling,
                template=plan.template,
                template_variables=plan.variables,
                replicas=plan.replicas,
                verbose=plan.verbose,
                loading=loading,
                reading=partial(screen.reading, shown=not plan.verbose),
            )
        stack.enter_context(session)
        if plan.known:
            session.use_known(plan.known)
        conversation = Conversation(plan.system, saved.messages)
        talk = Chat(session, plan.settings, conversation)
        talk.takes_commands = plan.commands or is_terminal(sys.stdin)
        commands = Commands(talk, screen, transcript, plan.model, plan.template, show_status=plan.status)
        commands.file = saved.path
        commands.may_replace.add(saved.path)
        repl = Repl(talk, commands, screen, transcript, plan, interactive=is_terminal(sys.stdin))
        commands.asks, commands.kept = repl.interactive and not plan.log, saved.messages
        lines = open_lines(Editing(screen.note, plan.history, repl.status, plan.color, repl.stay))
        notes = [*session.notes, *talk.notes]
        others = commands.differences(saved) if plan.saved else []
        screen.notes([*(notes if screen.quiet else told_once_a_day(notes)), *others], session.warnings)
        if repl.interactive:
            known = f", {counted(len(saved.messages), 'message')} loaded" if saved.messages else ""
            context = f"{talk.description}, context {talk.cells:,} tokens{known}"
            screen.note(f"{context}; /help for help, Ctrl-D ends")
            repl.show_last()
        elif not (plan.commands or plan.first):
            screen.note("each line that comes through the pipe is a message; lacli run takes all of it as one")
        transcript.begin(commands.as_saved())
        repl.run(lines, plan.first)
        # A user who types has seen what went wrong; a script has not.
        failed = repl.failed or transcript.is_lost
        return LacliError.exit_code if failed and not repl.interactive else 0


@dataclass
class Repl:
    """One chat on one screen.

    `plan`: its `stats` and `commands` are read. `interactive`: a user types, so that Ctrl-C stops an answer
    and not the program, and lines that begin with a slash are commands. `failed`: something went wrong. `leaving`:
    Ctrl-C was the last key at the prompt; `stopped`: it has stopped what the last line asked for. `told`: the note on
    lines that only look like commands was given.
    """

    chat: Chat
    commands: Commands
    screen: Screen
    transcript: Transcript
    plan: ChatPlan
    interactive: bool = True
    failed: bool = False
    leaving: bool = False
    stopped: bool = False
    told: bool = False

    def run(self, lines: Lines, first: str = "") -> None:
        """Go on until the lines end or a command ends the chat. `first`: a message to begin with.

        Raises Interrupted for Ctrl-C where a line is read, and OutputError where no user sees the sentence about it.
        """
        while True:
            try:
                # Ctrl-C is raised where a loop begins again, so that has to be in here.
                if first:
                    message, first = first, ""
                    if self.interactive:
                        self.screen.say(f"> {message}")
                    self._ask(message, lines, typed=False)
                while not self._next(lines):
                    pass
                return
            except EOFError:
                return
            except KeyboardInterrupt:
                self._interrupted()
            except LacliError as error:
                if isinstance(error, OutputError) and not self.interactive:
                    raise
                self.failed = True
                self.screen.end_line()
                self.screen.error(error)

    def status(self, width: int) -> str | None:
        """The line of numbers for a terminal of `width` columns, None where it is hidden."""
        if not self.commands.show_status:
            return None
        chat = self.chat
        last = chat.last if chat.conversation.messages else None
        speed, gain = (last.statistics.tokens_per_second, last.tokens_per_step) if last else (None, None)
        return status_line(speed, gain, chat.used, chat.cells, chat.mode, width)

    def show_last(self) -> None:
        """Show the last question, without the middle of a long one, and how its answer begins, where there is one."""
        conversation = self.chat.conversation
        for message in conversation.messages[-1 if conversation.is_open else -2 :]:
            is_question = message.role == "user"
            whole = f"> {message.content}" if is_question else answer_of(message.content).strip()
            shown = "\n".join(whole[:SHOWN_CHARACTERS].split("\n")[:SHOWN_LINES])
            if shown != whole:
                # Files stand before a question.
                shown += f" ...\n{whole.splitlines()[-1][-SHOWN_CHARACTERS:]}" if is_question else " ..."
            self.screen.report(shown, "dim")

    def _next(self, lines: Lines) -> bool:
        """Read a line and do what it says; True if the chat ends with it."""
        held, self.stopped = self.stopped, False
        line = lines.read(held=held)
        self.leaving = False
        try:
            return self._obey(line, lines).end
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            self.stopped = True
            self.screen.note("stopped")
            return False

    def stay(self) -> None:
        """Let the next Ctrl-C warn again: something was typed since the last one."""
        self.leaving = False

    def _interrupted(self) -> None:
        """Ctrl-C where a line is read."""
        if self.leaving or not self.interactive:
            raise Interrupted("")
        self.leaving = True
        self.screen.say("Ctrl-C again leaves, and so does Ctrl-D")

    def _obey(self, line: str, lines: Lines) -> Reply:
        takes_commands = self.interactive or self.plan.commands
        if self.interactive:
            line = PLAIN_WORDS.get(line.rstrip().lower(), line)
        command = parse(line) if takes_commands else None
        if command is None:
            if line.startswith("/") and not takes_commands and not self.told:
                self.told = True
                self.screen.note("a line that begins with / is a message here; --commands makes it a command")
            if self.interactive and (name := file_named(line)):
                self.screen.note(f"@{name} is only text here; /read {name} puts the file before a question")
            self._ask(self.commands.message(message_of(line)), lines)
            return Reply()
        # One that waits for a file can be stopped; others are done whole and in the log.
        with nullcontext() if command.entry.argument == "file" else without_ctrl_c():
            reply = self.commands.run(command)
        if reply.text:
            offered = EMPTIES if reply.edit and lines.edits else ""
            self.screen.say(f"{reply.text}{offered}")
        if command.name == "load" and self.interactive:
            self.show_last()
        if reply.edit is not None:
            lines.edit(reply.edit)
        if reply.ask is not None:
            self._ask(reply.ask, lines)
        if reply.again:
            self._answer(self.chat.again(), again=True)
        return reply

    def _ask(self, message: str, lines: Lines, *, typed: bool = True) -> None:
        conversation = self.chat.conversation
        replaced = conversation.messages[-1] if conversation.is_open else None
        with without_ctrl_c():
            pieces = self.chat.ask(message)
            self.transcript.message(conversation.messages[-1])
        try:
            self._answer(pieces)
        except PromptError as error:
            self.transcript.changed("undo")
            if replaced:
                self.transcript.message(replaced)
            self.commands.take_back(message)
            # In the line it would come before the command that is typed next.
            back = "; Up brings the message back" if typed and lines.edits else ""
            files = f"; {self.commands.files_wait}; /undo takes that back" if self.commands.files else ""
            raise PromptError(error.what, f"{error.hint}{back}{files}") from error

    def _answer(self, pieces: Generator[Piece], *, again: bool = False) -> None:
        """Show an answer as it comes; Ctrl-C stops it, and what came is kept. `again`: in the place of another one."""
        before, shown = len(self.chat.turns), list[str]()
        log_half = partial(self._log_half, shown, again=again)
        try:
            with (
                undone_by_signals(log_half) if self.plan.log else nullcontext(),
                second_ctrl_c_ends(NERVOUS_S),
                closing(pieces),
            ):
                self.screen.write(_collected(pieces, shown))
        except KeyboardInterrupt:
            self.stopped = True
        finally:
            with without_ctrl_c():
                self.screen.end_line()
                last = self.chat.last if len(self.chat.turns) > before else None
                if self.chat.dropped:
                    self.screen.say(f"lacli: the context is full: {oldest(self.chat.dropped)} are left out from now on")
                if last:
                    if again:
                        self.transcript.changed("regen", seed=self.chat.seed)
                    self.transcript.message(self.chat.conversation.messages[-1], last)
                    detail = self.plan.stats or "short"
                    self.commands.report = self.chat.report(last, detail=detail, width=self.screen.width)
        if self.stopped:
            if not self.interactive:
                raise KeyboardInterrupt
            is_open = self.chat.conversation.is_open
            place = "place and files" if self.commands.files_unanswered else "place"
            kept = f"/regen gives it, another question takes its {place}" if is_open else "the old answer stays"
            self.screen.note("stopped" if last else f"stopped before the answer began; {kept}")
        for note in self.chat.notes:
            # They are about the answer, and so said also where notes are not wanted.
            self.screen.say(f"lacli: {note}")
        if last:
            tokens = last.statistics.tokens
            if self.interactive and last.finish_reason == "length" and tokens == self.chat.settings.max_tokens:
                more = '(-n): say "go on", or /set n -1'
                self.screen.note(f"the answer was cut after {counted(tokens, 'token')} {more}")
            self.screen.legend(last.statistics.accepted_from)
            if self.plan.stats:
                self.screen.say(self.commands.report)
        if self.interactive:
            self.screen.gap()

    def _log_half(self, shown: Sequence[str], *, again: bool) -> None:
        """Log what there is of an answer, before the process ends in it."""
        if shown:
            if again:
                self.transcript.changed("regen", seed=self.chat.seed)
            self.transcript.message(Message("assistant", closed("".join(shown))))


def _collected(pieces: Iterable[Piece], shown: list[str]) -> Iterator[Piece]:
    """The pieces, whose texts `shown` gets."""
    for piece in pieces:
        shown.append(piece.text)
        yield piece


def status_line(
    tokens_per_second: float | None,
    S: float | None,
    used: int,
    cells: int,
    mode: str,
    width: int,
) -> str:
    """One line of at most `width` columns; where they are few, what matters most stays.

    tokens_per_second and S (tokens a step) are the last answer's, None before the first one. used and cells:
    tokens.
    """
    percent = f"{100 * used // cells}%"
    digits = 0 if tokens_per_second is None or tokens_per_second >= 10 else 1
    speed = [] if tokens_per_second is None else [f"{tokens_per_second:,.{digits}f} tokens/s"]
    gain = [] if S is None else [f"{S:.1f} tokens/step"]
    context = f"context {percent}"
    whole = f"context {used:,} of {cells:,} ({percent})"
    forms = (
        [mode, *speed, *gain, whole],
        [mode, *speed, *gain, context],
        [*speed, *gain, context],
        [*gain, context],
        [context],
        [percent],
    )
    return next((line for line in map(SEPARATOR.join, forms) if len(line) <= width), "")

"""The chat's loop with lines, a chat and a screen of the test's own: what it does with each, and what it survives."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from lacli import load
from lacli.chat.actions import Actions
from lacli.chat.adjust import Adjusted
from lacli.chat.conversation import Conversation
from lacli.chat.loop import Loop
from lacli.chat.saved import SavedChat, write_chat
from lacli.chat.talk import Chat
from lacli.chat.transcript import Transcript
from lacli.errors import (
    Interrupted,
    LacliError,
    OutputError,
    PromptError,
)
from lacli.llamacpp.settings import ModelSettings
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.stats import Step
from lacli.terminal.screen import Screen
from lacli.text.stream import Piece
from lacli.tree import Origin
from tests.fake_chat import FakeChat, an_answer

Line = str | type[BaseException] | BaseException


@dataclass
class Typed:
    """Lines as somebody would type them; an exception is what reading brings, and they end with Ctrl-D."""

    lines: list[Line]
    offered: list[str] = field(default_factory=list)

    def read(self) -> str:
        line = self.lines.pop(0) if self.lines else EOFError
        if isinstance(line, str):
            return line
        raise line

    def edit(self, text: str) -> None:
        self.offered.append(text)


@dataclass
class Answering(FakeChat):
    """It answers with these pieces; what is no piece is raised in their middle, and what came before is the answer."""

    pieces: list[str | type[BaseException] | BaseException] = field(default_factory=lambda: ["ye", "s"])
    notes: list[str] = field(default_factory=list)
    dropped: int = 0
    watch: Callable[[Step, str], None] | None = None

    def ask(self, question: str) -> Generator[Piece]:
        self.conversation.ask(question)
        return self._answer()

    def again(self) -> Generator[Piece]:
        self.conversation.take_back_answer()
        return self._answer()

    def _answer(self) -> Generator[Piece]:
        text = ""
        try:
            for piece in self.pieces:
                if not isinstance(piece, str):
                    raise piece
                text += piece
                if self.watch:
                    self.watch(Step((0,), (Origin.MODEL,), 1, 0, 0.1, 0, 0, 0), piece)
                yield Piece(piece, Origin.POOL if len(text) > 2 else Origin.MODEL)
        finally:
            if text:
                self.conversation.answer(text)
                whole = text == "".join(piece for piece in self.pieces if isinstance(piece, str))
                self.turns.append(replace(an_answer(text), finish_reason="eog" if whole else "interrupt"))
                self.turns[-1].statistics.accepted_from[Origin.POOL] = 1


@dataclass
class Streams:
    """What stdout and stderr have got so far."""

    capsys: pytest.CaptureFixture[str]
    read: list[str] = field(default_factory=lambda: ["", ""])

    @property
    def answers(self) -> str:
        return self._read()[0]

    @property
    def words(self) -> str:
        return self._read()[1]

    def _read(self) -> list[str]:
        found = self.capsys.readouterr()
        self.read = [self.read[0] + found.out, self.read[1] + found.err]
        return self.read


@pytest.fixture
def streams(capsys: pytest.CaptureFixture[str]) -> Streams:
    return Streams(capsys)


def loop_of(
    chat: FakeChat, screen: Screen, *, interactive: bool = True, status: bool = True, stats: bool = False,
    explain: bool = False, log: Transcript | None = None,
) -> Loop:  # fmt: skip
    actions = Actions(chat, transcript=log)
    return Loop(
        cast(Chat, chat), actions, screen, transcript=log, interactive=interactive, status=status, stats=stats,
        explain=explain,
    )  # fmt: skip


def say(chat: FakeChat, *lines: Line, screen: Screen | None = None, interactive: bool = True) -> Typed:
    """Give the loop these lines, and Ctrl-D."""
    typed = Typed([*lines])
    loop_of(chat, screen or Screen(), interactive=interactive).run(typed)
    return typed


def test_questions_are_answered_on_stdout_and_words_are_not(streams: Streams) -> None:
    chat = Answering()
    say(chat, "one", "/mode", "two", interactive=False)
    assert streams.answers == "yes\nyes\n"
    assert streams.words.startswith("auto, at most 64 rows; the modes are")
    assert [message.content for message in chat.conversation.messages] == ["one", "yes", "two", "yes"]


def test_a_line_that_only_looks_like_a_command_is_asked_without_its_space(streams: Streams) -> None:
    chat = Answering()
    say(chat, " /help", "//x", "\n/y")
    assert [message.content for message in chat.conversation.messages[::2]] == ["/help", "//x", "/y"]


@dataclass
class Losing(Answering):
    """A copy of its model fails in the answer."""

    failed: list[str] = field(default_factory=lambda: ["replica A has failed"])

    @property
    def session(self) -> Session:
        session = super().session
        session.losses = self._losses  # type: ignore[method-assign]
        return session

    def _losses(self) -> list[str]:
        return [self.failed.pop()] if self.failed else []


@pytest.mark.parametrize("shared", [False, True])
def test_a_failure_is_said_at_once_where_that_does_not_break_into_the_answer(
    shared: bool, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Screen, "shared", shared)
    chat = Losing()
    say(chat, "one", interactive=False)
    assert ("lacli: replica A has failed" in streams.words) == (not shared)
    assert streams.answers == "yes\n"


def test_exit_ends_it_and_leaves_the_lines_behind(streams: Streams) -> None:
    assert say(Answering(), "/bye", "one").lines == ["one"]
    assert streams.answers == ""


ERRORS = {
    "reading": ([LacliError("bad line", "another")], ["yes"]),
    "a command": (["/nothing"], ["yes"]),
    "an argument": (["/set temp hot"], ["yes"]),
    "a file": (["/load nowhere"], ["yes"]),
    "an answer": (["one"], [LacliError("no cell", "fewer")]),
    "the middle of an answer": (["one"], ["ye", LacliError("no token", "another grammar")]),
}


@pytest.mark.parametrize(("lines", "pieces"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("interactive", [True, False])
def test_an_error_is_a_line_and_the_next_question_is_answered(
    streams: Streams, lines: list[Line], pieces: list[str | BaseException], interactive: bool
) -> None:
    chat = Answering(pieces=list(pieces))

    def mend() -> Iterator[Line]:
        yield from lines
        chat.pieces = ["fine"]
        yield "next"

    typed = Typed([])
    waiting = mend()
    typed.read = lambda: _raised(next(waiting, EOFError))  # type: ignore[method-assign]
    loop_of(chat, Screen(), interactive=interactive).run(typed)
    begun = "".join(piece for piece in pieces[:-1] if isinstance(piece, str))
    assert streams.answers == (f"{begun}\n" if begun else "") + "fine\n"
    assert streams.words.count("lacli: ") == 1
    assert chat.conversation.last_answer == "fine"


def _raised(line: Line) -> str:
    if isinstance(line, str):
        return line
    raise line


def test_a_question_that_is_refused_is_taken_back_in_the_log_too(streams: Streams, tmp_path: Path) -> None:
    chat = Answering(pieces=[PromptError("too long", "shorter")])
    with Transcript(str(tmp_path / "log"), now) as log:
        loop_of(chat, Screen(), log=log).run(Typed(["one"]))
    assert [event["event"] for event in events(tmp_path / "log")] == ["message", "undo"]


def now() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


def events(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_nobody_types_and_nothing_can_be_written_so_it_ends(streams: Streams) -> None:
    for interactive in (True, False):
        chat = Answering(pieces=[OutputError("no space", "more")])
        if interactive:
            say(chat, "one", "two")
        else:
            with pytest.raises(OutputError):
                say(chat, "one", "two", interactive=False)
        assert [message.content for message in chat.conversation.messages] == (["two"] if interactive else ["one"])


def test_ctrl_c_at_the_prompt_is_a_hint_and_twice_in_a_row_leaves(streams: Streams) -> None:
    ctrl_c = KeyboardInterrupt
    chat = Answering()
    say(chat, ctrl_c, "one", ctrl_c, "/mode", ctrl_c, LacliError("bad line"))
    assert streams.words.count("Ctrl-C again leaves, and so does Ctrl-D") == 3
    with pytest.raises(Interrupted):
        say(chat, "one", ctrl_c, ctrl_c, "never")
    assert chat.conversation.questions == 2


def test_where_nobody_types_ctrl_c_leaves_at_once(streams: Streams) -> None:
    with pytest.raises(Interrupted):
        say(Answering(), KeyboardInterrupt, "never", interactive=False)
    with pytest.raises(Interrupted):
        say(Answering(pieces=["ye", KeyboardInterrupt]), "one", "never", interactive=False)
    assert streams.answers == "ye\n" and streams.words == ""


@pytest.mark.parametrize(
    ("pieces", "note", "kept"),
    [
        (["ye", KeyboardInterrupt, "s"], "lacli: stopped\n", ["one", "ye"]),
        ([KeyboardInterrupt], "lacli: stopped before the answer began; /regen gives it\n", ["one"]),
    ],
)
def test_ctrl_c_in_an_answer_keeps_what_came_and_the_log_says_so(
    streams: Streams, tmp_path: Path, pieces: list[str | type[BaseException]], note: str, kept: list[str]
) -> None:
    chat = Answering(pieces=[*pieces])
    with Transcript(str(tmp_path / "log"), now) as log:
        loop_of(chat, Screen(), log=log).run(Typed(["one", "/mode"]))
    assert [message.content for message in chat.conversation.messages] == kept
    assert streams.words.startswith(note) and "the modes are" in streams.words
    logged = events(tmp_path / "log")
    assert [event["content"] for event in logged] == kept
    assert [event["finish_reason"] for event in logged[1:]] == ["interrupt"] * (len(kept) - 1)


def test_a_command_that_waits_for_a_file_can_be_stopped(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(name: str, *, ordinary: bool) -> str:
        signal.raise_signal(signal.SIGINT)
        return name

    monkeypatch.setattr("lacli.chat.actions.read_text", pressed)
    say(Answering(), "/read file", "one")
    assert streams.words == "lacli: stopped\n" and streams.answers == "yes\n"
    with pytest.raises(Interrupted):
        say(Answering(), "/read file", "never", interactive=False)


def test_other_commands_are_done_whole_and_in_the_log(
    streams: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(self: Answering) -> None:
        self.conversation.clear()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Answering, "clear", pressed)
    with Transcript(str(tmp_path / "log"), now) as log:
        loop_of(Answering(), Screen(), log=log).run(Typed(["one", "/clear"]))
    assert streams.words == "cleared; the system prompt and the settings stay\n"
    assert events(tmp_path / "log")[-1]["event"] == "clear"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_undo_offers_the_question_as_the_next_line(streams: Streams) -> None:
    chat = Answering()
    assert say(chat, "one", "/undo").offered == ["one"]
    assert chat.conversation.questions == 0


def test_regen_answers_the_last_question_anew(streams: Streams) -> None:
    chat = Answering()
    say(chat, "one", "/regen")
    assert streams.answers == "yes\nyes\n"
    assert [message.content for message in chat.conversation.messages] == ["one", "yes"]


def test_a_file_with_a_question_is_asked_at_once(streams: Streams, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text\n")
    chat = Answering()
    say(chat, f"/read {tmp_path}/file", "why?", f"/read {tmp_path}/file what?")
    assert [message.content for message in chat.conversation.messages[::2]] == ["text\n\nwhy?", "text\n\nwhat?"]


def test_color_is_for_answers_from_then_on(streams: Streams) -> None:
    say(Answering(), "one", "/color on", "two", "/color off", "three", screen=Screen(color="on"))
    assert streams.answers == "yes\nye\x1b[36ms\x1b[0m\nyes\n"


def test_the_line_of_numbers_is_there_until_it_is_switched_off(streams: Streams) -> None:
    chat, screen = Answering(), Screen()
    loop = loop_of(chat, screen)
    assert loop.status(80) == "auto · context 10 of 100 (10%)"
    loop.run(Typed(["one", "/status off"]))
    assert loop.status(80) is None
    loop.run(Typed(["/status on"]))
    assert loop.status(80) == "auto · 4.0 tokens/s · S 3.0 · context 10 of 100 (10%)"
    assert loop.status(3) == "10%"
    assert loop_of(chat, screen, status=False).status(80) is None


def test_what_a_turn_has_to_say_comes_behind_its_answer(streams: Streams) -> None:
    chat = Answering(notes=["the context was full"])
    say(chat, "one")
    assert streams.answers == "yes\n" and streams.words == "lacli: the context was full\n"


def test_a_copy_that_does_not_work_is_an_error_like_others(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_clipboard(text: str) -> str:
        raise LacliError(f"no place for {text}", "none")

    monkeypatch.setattr("lacli.chat.loop.copy", no_clipboard)
    say(Answering(), "one", "/copy", "two")
    assert streams.words == "lacli: no place for yes (none)\n" and streams.answers == "yes\nyes\n"


def test_numbers_come_after_every_answer_where_they_are_asked_for(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.chat.loop.as_lines", lambda session, answer: f"{answer.statistics.tokens} tokens")
    loop_of(Answering(), Screen(quiet=True), stats=True).run(Typed(["one", "/mode plain", "/regen"]))
    assert streams.words.splitlines().count("6 tokens") == 2


def test_the_steps_of_every_answer_are_explained_where_that_is_wanted(streams: Streams) -> None:
    loop_of(Answering(), Screen(quiet=True), explain=True).run(Typed(["one", "/regen"]))
    lines = streams.words.splitlines()
    assert [line.split()[0] for line in lines if line] == ["step", "1-2", "step", "1-2"]
    assert all("2 in 200.0 ms" in line and line.endswith("2 plain steps  'yes'") for line in (lines[1], lines[-1]))


def test_a_stopped_answer_is_explained_as_far_as_it_came(streams: Streams) -> None:
    chat = Answering(pieces=["ye", KeyboardInterrupt])
    loop_of(chat, Screen(quiet=True), explain=True).run(Typed(["one"]))
    assert "1 plain step  'ye'" in streams.words


def test_a_marked_answer_gets_a_legend_and_an_answer_that_failed_none(streams: Streams) -> None:
    chat, screen = Answering(), Screen(color="on", show_accepted=True)
    loop_of(chat, screen).run(Typed(["one"]))
    assert "\x1b[36m1 pool\x1b[0m" in streams.words
    chat.pieces = [LacliError("broken", "mend it")]
    loop_of(chat, screen).run(Typed(["two"]))
    assert streams.words.count("accepted in parallel") == 1


def test_a_log_that_ends_is_said_once_and_the_chat_goes_on(streams: Streams, tmp_path: Path) -> None:
    log = Transcript(str(tmp_path / "log"), now)
    log.close()
    log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with log:
        loop_of(Answering(), Screen(), log=log).run(Typed(["one", "two", "/clear"]))
    assert streams.words.count("ends here") == 1 and streams.answers == "yes\nyes\n"


def test_a_context_is_made_whole_whatever_is_pressed(
    streams: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DecodeSettings(mode="lookahead", window=2, ngram=3, guesses=2)
    write_chat(tmp_path / "chat", SavedChat("", "", (), Adjusted(replace(settings, window=43), limit=5)))
    with load(model_settings=ModelSettings(context=256, threads=1), decode_settings=settings) as session:
        made = session._open_contexts

        def pressed(settings: DecodeSettings) -> object:
            signal.raise_signal(signal.SIGINT)
            return made(settings)

        monkeypatch.setattr(session, "_open_contexts", pressed)
        talk = Chat(session, Adjusted(settings, limit=5), Conversation())
        lines: list[Line] = ["hello", f"/load {tmp_path}/chat", "hello", "/mode plain", "/regen"]
        Loop(talk, Actions(talk), Screen()).run(Typed(lines))
    assert "for 46 sequences" in streams.words and "stopped" not in streams.words
    first, second, third = streams.answers.splitlines()
    assert first == second == third != ""

"""The loop of `lacli chat` with a fake chat, the whole command with a pipe, and the line of numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lacli.chat.commands import Commands
from lacli.chat.conversation import Conversation, Message
from lacli.chat.repl import Repl
from lacli.chat.transcript import Log, SavedChat, read_chat, write_chat
from lacli.errors import Interrupted, LacliError, PromptError
from lacli.terminal.screen import Screen
from tests.fakes.fake_chat import FakeChat
from tests.loading import STDLIB_7M
from tests.program import Done, call

Line = str | type[BaseException] | BaseException


@dataclass
class Typed:
    """Gives these lines and then Ctrl-D to the loop, and raises exceptions among them. `offered`: texts to edit."""

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
class Streams:
    """All output so far: `answers` from stdout, `words` from stderr."""

    capsys: pytest.CaptureFixture[str]
    answers: str = ""
    words: str = ""

    def read(self) -> None:
        found = self.capsys.readouterr()
        self.answers, self.words = self.answers + found.out, self.words + found.err


@pytest.fixture
def streams(capsys: pytest.CaptureFixture[str]) -> Streams:
    return Streams(capsys)


def say(streams: Streams, chat: FakeChat, *lines: Line, interactive: bool = True, log: Path | None = None) -> Typed:
    """Run the loop with these lines and Ctrl-D. `log`: the file of --log."""
    typed, screen = Typed([*lines]), Screen()
    try:
        with Log(str(log) if log else None) as opened:
            Repl(Commands(chat, opened), screen, interactive=interactive).run(typed)
    finally:
        streams.read()
    return typed


def contents(chat: FakeChat) -> list[str]:
    return [message.content for message in chat.conversation.messages]


def test_questions_are_answered_on_stdout_and_words_are_not(streams: Streams) -> None:
    chat = FakeChat()
    say(streams, chat, "one", "/set mode", "two", " /help", "//x", "\n/y", interactive=False)
    assert streams.answers == "yes\n" * 5
    assert streams.words.startswith("mode is auto (auto is the default)")
    assert contents(chat)[::2] == ["one", "two", "/help", "//x", "/y"]


ERRORS = {
    "reading": ([LacliError("bad line", "another")], ["yes"]),
    "a command": (["/nothing"], ["yes"]),
    "an answer": (["one"], [LacliError("no cell", "fewer")]),
    "the middle of an answer": (["one"], ["ye", LacliError("no token", "another grammar")]),
}


@pytest.mark.parametrize(("lines", "pieces"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("interactive", [True, False])
def test_an_error_is_a_line_and_the_loop_goes_on(
    streams: Streams, lines: list[Line], pieces: list[str | type[BaseException] | BaseException], interactive: bool
) -> None:
    say(streams, FakeChat(pieces=pieces), *lines, "/set mode", interactive=interactive)
    begun = "".join(piece for piece in pieces[:-1] if isinstance(piece, str))
    assert streams.answers == (f"{begun}\n" if begun else "")
    assert re.match(r"lacli: [^\n]*\nmode is auto", streams.words)


def test_ctrl_c_at_the_prompt_is_a_hint_and_twice_in_a_row_leaves(streams: Streams) -> None:
    ctrl_c, chat = KeyboardInterrupt, FakeChat()
    say(streams, chat, ctrl_c, "one", ctrl_c, "/show", ctrl_c, LacliError("bad line"))
    assert streams.words.count("press Ctrl-C again or Ctrl-D to leave") == 3
    with pytest.raises(Interrupted):
        say(streams, chat, "one", ctrl_c, ctrl_c, "never")
    assert chat.conversation.questions == 2


@pytest.mark.parametrize("interactive", [True, False])
def test_a_loaded_chat_shows_its_last_question_and_how_its_answer_begins(
    interactive: bool, tmp_path: Path, streams: Streams
) -> None:
    talk = ("first", "one", "second?", "<think>so</think>\n" + "x" * 400)
    messages = [Message("assistant" if index % 2 else "user", text) for index, text in enumerate(talk)]
    write_chat(tmp_path / "chat", SavedChat("demo", conversation=Conversation("", messages)))
    say(streams, FakeChat(), f"/load {tmp_path / 'chat'}", interactive=interactive)
    shown = "\n> second?\n" + "x" * 300 + " ...\n"
    assert (shown in streams.words) == interactive
    assert "first" not in streams.words and "so" not in streams.words.split()


QUESTION = "Write a Python function is_empty: Return true if the queue is empty."
"""A question without close choices between tokens in its answer, so that every mode gives the same answer."""


def chat(*arguments: str, lines: list[str], env: dict[str, str] | None = None) -> Done:
    """Run `lacli chat --commands` with these lines in a pipe."""
    stdin = "".join(f"{line}\n" for line in lines).encode()
    return call("chat", "--commands", "-q", *arguments, stdin=stdin, env=env)


def questions(file: Path) -> list[str]:
    return [message.content for message in read_chat(file).conversation.messages[::2]]


def test_a_line_of_a_pipe_is_no_command_unless_commands_are_wanted(tmp_path: Path) -> None:
    secret, log = tmp_path / "secret", tmp_path / "log"
    secret.write_text("the secret")
    lines = f"/read {secret}\n/save {tmp_path}/saved\n/nothing\n".encode()
    done = call("chat", "--log", str(log), "-n", "2", stdin=lines)
    assert (done.code, done.err.count("each piped line is a message")) == (0, 1)
    assert questions(log) == lines.decode().splitlines()
    assert not (tmp_path / "saved").exists()


def test_all_flags_given_with_load_win_and_the_environment_does_not(tmp_path: Path) -> None:
    file, grammar = tmp_path / "chat.json", tmp_path / "form.gbnf"
    grammar.write_text('root ::= "a"')
    chat("-sys", "Be nice.", "--chat-template", "chatml", "-c", "512", lines=[f"/save {file}"])
    assert not chat("--load", str(file), lines=["/show"], env={"LACLI_MODEL": "no/such.gguf"}).code
    asked = ["/system", "/show", "/set G", "/set grammar"]
    typed = ["-sys", "", "--preset", "creative", "--grammar-file", str(grammar)]
    env = {"LACLI_CHAT_TEMPLATE": "llama3", "LACLI_STRICT": "1", "LLAMA_ARG_CTX_SIZE": "256"}
    shown = chat("--load", str(file), *typed, lines=[*asked, f"/save {file}"], env=env).err
    for words in ("there is no system prompt", "template  chatml", "of 512 tokens used", "G is 8 ", "root ::= "):
        assert words in shown
    assert not read_chat(file).settings.decode_settings.strict and read_chat(file).context == 512
    assert "of 768 tokens used" in chat("-c", "768", "--load", str(file), lines=["/show"]).err


def test_words_alone_begin_a_chat_with_the_model_that_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    chat("-c", "512", lines=[f"/save {file}"])
    gone = {"LACLI_MODEL": "no/such.gguf"}
    done = chat("--load", str(file), "-n", "2", "Hi there", lines=[f"/save {file}"], env=gone)
    assert (done.code, questions(file)) == (0, ["Hi there"])


def test_a_chat_saved_with_relative_paths_goes_on_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.gguf").symlink_to(STDLIB_7M)
    (tmp_path / "turns.jinja").write_text("{{ messages[-1].content }}")
    (tmp_path / "chatml").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    for template, kept in (("turns.jinja", f"{tmp_path}/turns.jinja"), ("chatml", "chatml")):
        done = chat("-m", "model.gguf", "--chat-template", template, lines=["/save chat.jsonl"])
        assert not done.code, done.err
        saved = read_chat("chat.jsonl")
        assert (saved.model, saved.template) == (f"{tmp_path}/model.gguf", kept)
        with monkeypatch.context() as moved:
            moved.chdir("elsewhere")
            assert not chat("--load", "../chat.jsonl", lines=["/show"]).code
        Path("chat.jsonl").unlink()


def test_a_question_without_an_answer_is_offered_again(streams: Streams) -> None:
    for failure in (PromptError("too long", "shorter"), KeyboardInterrupt):
        chat = FakeChat(pieces=[failure])
        assert say(streams, chat, "one").offered == ["one"] and not contents(chat)
    assert streams.words == "lacli: too long (shorter)\nlacli: stopped before the answer began\n"


def test_a_file_goes_before_one_message_and_stays_until_that_has_an_answer(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file\n")
    chat = FakeChat(pieces=[KeyboardInterrupt])
    with Log(None) as log:
        repl = Repl(Commands(chat, log), Screen())
        repl.run(Typed([f"/read {tmp_path}/a", "one"]))
        chat.pieces = ["yes"]
        repl.run(Typed(["one", "two"]))
    assert contents(chat)[::2] == ["a file\n\none", "two"]


def test_ctrl_c_in_an_answer_keeps_what_came_in_the_log_too(streams: Streams, tmp_path: Path) -> None:
    chat, log = FakeChat(pieces=["ye", KeyboardInterrupt, "s"]), tmp_path / "log"
    say(streams, chat, "one", "/show", log=log)
    assert contents(chat) == ["one", "ye"] and read_chat(log).conversation == chat.conversation
    assert streams.words.startswith("lacli: stopped\n") and "auto, at most" in streams.words


def test_the_log_holds_the_conversation_that_is_saved_and_a_full_context_drops_old_turns(tmp_path: Path) -> None:
    log, file = tmp_path / "chat.jsonl", tmp_path / "chat.json"
    lines = [
        *("/system Be brief.", *(f"{QUESTION} {number}" for number in range(12)), "/undo", "/regen", "/nothing"),
        *(f"/save {file}", f"/load {file}", "/set temp 0.5", "x " * 400, f"/save {file}"),
    ]
    done = chat("-n", "6", "-c", "256", "--log", str(log), lines=lines)
    assert done.code == 1, "two errors: an unknown command and a long message"
    assert read_chat(log) == read_chat(file) and len(read_chat(file).conversation.messages) == 22
    assert done.err.count("lacli: the context was full: the model no longer sees the oldest") >= 1
    assert done.err.count("lacli: the message needs") == 1

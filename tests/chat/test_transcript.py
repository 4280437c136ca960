"""Chats in files: what is written comes back whole, a log can be followed, and a broken file gives one clear line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lacli.chat.commands import Commands
from lacli.chat.input import parse
from lacli.chat.settings import ChatSettings
from lacli.chat.talk import Message
from lacli.chat.transcript import (
    SavedChat,
    Transcript,
    read_chat,
    write_chat,
)
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.terminal.screen import Screen
from tests.fakes.fake_chat import FakeChat, an_answer

SETTINGS = ChatSettings(sampling=SamplingSettings(temp=0.5, logit_bias=((3, float("-inf")),)), stops=("x",))
CHAT = SavedChat("demo", "", "be brief", (Message("user", "a"), Message("assistant", "b", (5, 6))))
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


class Clock:
    """A second passes with each line."""

    def __init__(self) -> None:
        self._seconds = count()

    def __call__(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(self._seconds))


def opened(path: Path, warn: Callable[[str], None] = pytest.fail) -> Transcript:
    return Transcript(str(path), warn, Clock())


def begun(path: Path, chat: SavedChat = SavedChat("demo", "", "be brief")) -> Transcript:  # noqa: B008
    transcript = opened(path)
    transcript.begin(chat)
    return transcript


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]


def line(event: str, **what: Any) -> str:
    return json.dumps({"event": event, **what})


def first(**what: Any) -> str:
    return line("saved", **{"format": "lacli chat", "version": 2, "settings": {}} | what)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of a chat that was loaded and went on; a text has what some take for a line's end."""
    path = tmp_path / "chat.jsonl"
    with begun(path, replace(CHAT, template="chatml", settings=ChatSettings(max_tokens=9))) as transcript:
        transcript.message(Message("user", "c\u2028d"))
        transcript.message(Message("assistant", "e", (7,)), an_answer())
        transcript.changed("set", changed="temp: 0 -> 0.5", settings=SETTINGS.json)
    return path


AT_ITS_END = SavedChat(
    "demo", "chatml", "be brief",
    (*CHAT.messages, Message("user", "c\u2028d"), Message("assistant", "e")), SETTINGS,
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXT, TEXT, TEXT, st.lists(TEXT, max_size=5), st.integers(-1, 2**32 - 2), st.integers(0, 2**31 - 1))
def test_what_is_saved_is_read_again(
    tmp_path: Path, model: str, template: str, system: str, texts: list[str], seed: int, context: int
) -> None:
    messages = tuple(Message("assistant" if at % 2 else "user", text) for at, text in enumerate(texts))
    chat = SavedChat(model, template, system, messages, SETTINGS, seed, context)
    write_chat(tmp_path / "chat", chat)
    assert read_chat(tmp_path / "chat") == chat


def test_a_models_path_that_is_not_utf_8_does_not_end_the_chat(tmp_path: Path) -> None:
    chat = replace(CHAT, model="\udcff.gguf")
    write_chat(tmp_path / "chat", chat)
    begun(tmp_path / "log", chat).close()
    assert read_chat(tmp_path / "chat") == read_chat(tmp_path / "log") == replace(CHAT, model="?.gguf")


def test_a_saved_chat_is_json_lines_with_the_tokens_of_its_answers(tmp_path: Path) -> None:
    write_chat(tmp_path / "chat", replace(CHAT, system="größe", settings=SETTINGS))
    assert "größe" in (tmp_path / "chat").read_text("utf-8")
    head, question, answer = lines(tmp_path / "chat")
    assert (head["event"], head["format"], head["version"], head["model"]) == ("saved", "lacli chat", 2, "demo")
    assert head["settings"]["logit_bias"] == ["3-inf"], "JSON has no infinity"
    assert (question["role"], question["content"], answer["ids"]) == ("user", "a", [5, 6])
    assert read_chat(tmp_path / "chat").messages[1].tokens == (5, 6)


def test_each_line_of_a_log_is_in_the_file_at_once_with_its_time_and_cost(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with begun(path) as transcript:
        assert [line["event"] for line in lines(path)] == ["session"]
        transcript.message(Message("user", "a\nb"))
        transcript.message(Message("assistant", "ü"), an_answer(tokens=6, steps=2, seconds=1.5))
        session, question, answer = lines(path)
    assert session["time"] == "2026-01-01T00:00:00.000+00:00" and question["time"].endswith("01.000+00:00")
    assert session["settings"]["window"] == 15 and question["content"] == "a\nb"
    assert answer["content"] == "ü" and answer["finish_reason"] == "eog"
    assert (answer["tokens"], answer["tokens_per_step"], answer["tokens_per_second"]) == (6, 3.0, 4.0)


STEPS = ["talk", "talk", "talk", "ask", "undo", "regen", "clear", "compact", "system", "load", "set", "again"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(STEPS), max_size=25))
def test_a_reader_can_follow_a_log_to_the_chat_that_it_tells(tmp_path: Path, steps: list[str]) -> None:
    path, saved = tmp_path / "log", tmp_path / "saved"
    path.unlink(missing_ok=True)
    saved.unlink(missing_ok=True)
    chat = FakeChat()
    chat.conversation.system = "be brief"
    with begun(path) as transcript:
        commands = Commands(chat.as_chat, Screen(), transcript, "demo")
        for number, step in enumerate([f"save {saved}", *steps]):
            follow(commands, chat, transcript, step, f"{step} {number}", saved)
    expected = commands.as_saved()
    found = read_chat(path)
    assert replace(found, seed=expected.seed) == expected or not expected.messages
    assert (found.system, found.settings) == (expected.system, expected.settings) or not expected.messages


def follow(commands: Commands, chat: FakeChat, transcript: Transcript, step: str, text: str, saved: Path) -> None:
    conversation = chat.conversation
    match step:
        case "talk" | "ask":
            conversation.ask(text)
            transcript.message(conversation.messages[-1])
        case "again":
            if conversation.take_back_answer():
                transcript.changed("regen")
        case _:
            argument = {"load": str(saved), "system": text, "set": f"temp 0.{len(text)}"}.get(step, "")
            command = parse(f"/{step} {argument}".strip())
            assert command
            commands.run(command)
    if step in ("talk", "again") and conversation.is_open:
        conversation.answer(text)
        transcript.message(conversation.messages[-1], an_answer())


def test_a_log_is_read_as_the_chat_at_its_end_with_its_tokens(log: Path) -> None:
    found = read_chat(log)
    assert found == AT_ITS_END
    assert [message.tokens for message in found.messages] == [(), (5, 6), (), (7,)]


def test_sessions_in_which_nothing_was_said_do_not_hide_the_chat_before_them(log: Path) -> None:
    with begun(log, SavedChat("other")) as transcript:
        assert read_chat(log) == AT_ITS_END
        transcript.message(Message("user", "new"))
    assert [message.content for message in read_chat(log).messages] == ["new"]


def test_the_line_that_a_session_broke_off_in_is_left_out_and_gets_an_end(log: Path) -> None:
    whole = log.read_bytes()
    log.write_bytes(whole[:-5])
    assert read_chat(log) == replace(AT_ITS_END, settings=ChatSettings(max_tokens=9))
    begun(log).close()
    assert log.read_bytes().startswith(whole[:-5] + b"\n")
    assert read_chat(log).left_out == (6,)


@pytest.mark.parametrize(
    "wrong",
    [
        b"hello",
        b"\xff\xfe",
        b"",
        b"[]",
        b"NaN",
        b"[" * 100_000,
        b'{"event": "message", "role": "user", "content": "\\ud800"}',
        *(
            each.encode()
            for each in (
                line("set"),
                line("set", settings={"top_p": 7}),
                line("message", role="user", content=5),
                line("message", role="assistant", content="twice"),
                line("message", role="system", content="x"),
                line("message", role="assistant", content="x", ids=["x"]),
                line("system"),
                line("compact", dropped="all"),
            )
        ),
    ],
)
def test_a_damaged_line_is_named_and_the_rest_is_read(log: Path, wrong: bytes) -> None:
    raw = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join([*raw[:5], wrong, *raw[5:]]))
    assert read_chat(log) == replace(AT_ITS_END, left_out=(6,))


def test_a_huge_number_of_dropped_questions_is_soon_at_its_end(tmp_path: Path) -> None:
    with begun(tmp_path / "log") as transcript:
        transcript.message(Message("user", "a"))
        transcript.changed("compact", dropped=10**18)
    assert read_chat(tmp_path / "log").messages == (Message("user", "a"),)


BROKEN = {
    "nothing": ("", "line 1"),
    "words": ("hello", "line 1"),
    "torn": (first()[:-5], "line 1"),
    "a list": ("[]", "line 1"),
    "another kind": ('{"answer": 42}', "event"),
    "no chat": (line("clear"), "it begins with 'clear'"),
    "another format": (first(format="tar"), '"format" is not "lacli chat"'),
    "deep": ("[" * 100_000, "no saved chat"),
    "a newer format": (first(version=3), "use a newer lacli"),
    "no version": (first(version="1"), "version"),
    "a true version": (first(version=True), "version"),
    "a number as system": (first(system=3), '"system" is not a text'),
    "half a character": (first(system="\ud800"), "surrogates"),
    "no seed": (first(seed=-2), '"seed"'),
    "no context": (first(context=-1), '"context"'),
    "a setting out of range": (first(settings={"top_p": 7}), "must be from 0 to 1"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_no_chat_gives_one_line_that_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(text)
    with pytest.raises(LacliError) as caught:
        read_chat(path)
    told = str(caught.value)
    assert words in told and "chat.json" in told and "\n" not in told and caught.value.hint


def test_what_cannot_be_read_gives_one_line(tmp_path: Path) -> None:
    for name, words in ((".", "directory"), ("none", "No such file"), ("a\0b", "cannot read")):
        with pytest.raises(LacliError, match=words) as caught:
            read_chat(f"{tmp_path}/{name}")
        assert "\n" not in str(caught.value)


def test_a_torn_write_leaves_the_old_chat_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chat"
    write_chat(path, CHAT)

    def full(descriptor: int) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LacliError, match="No space left"):
        write_chat(path, replace(CHAT, system="new"))
    assert read_chat(path) == CHAT and os.listdir(tmp_path) == ["chat"]


def test_a_chat_is_replaced_at_once_and_keeps_its_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "chat"
    write_chat("~/chat", CHAT)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    text = path.read_text()
    with path.open() as reader:
        write_chat(path, replace(CHAT, system="new"))
        assert reader.read() == text, "who reads meanwhile reads a whole one"
    assert path.stat().st_mode & 0o777 == 0o640 and read_chat("~/chat").system == "new"


def test_nothing_but_a_saved_chat_is_written_over(tmp_path: Path, log: Path) -> None:
    notes, empty, link = tmp_path / "notes.txt", tmp_path / "empty", tmp_path / "link"
    notes.write_text("dear diary")
    empty.touch()
    link.symlink_to(tmp_path / "made")
    write_chat(empty, CHAT)
    refused = [
        (notes, "exists and is no saved chat"),
        (log, "is a log, which --log adds to and /save does not replace"),
        (link, "is a link"),
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "chat", "a folder that is there"),
        (notes / "chat", "a folder that is there"),
        (Path("/dev/null"), "exists and is no saved chat"),
        (Path("a\0b"), "cannot write"),
    ]
    for path, words in refused:
        with pytest.raises(LacliError, match=words):
            write_chat(path, CHAT)
    assert notes.read_text() == "dear diary" and read_chat(log) == AT_ITS_END
    assert sorted(os.listdir(tmp_path)) == ["chat.jsonl", "empty", "link", "notes.txt"]


def test_a_log_refuses_a_file_that_save_wrote_and_says_what_to_do(tmp_path: Path) -> None:
    write_chat(tmp_path / "chat", CHAT)
    with pytest.raises(LacliError, match=r"/chat was written by /save.*--load .*/chat --log OTHER"):
        begun(tmp_path / "chat")
    assert read_chat(tmp_path / "chat") == CHAT


@pytest.mark.parametrize("text", ["def main():\n    pass\n", "\n", line("clear") + "\n", "x" * 300])
def test_nothing_but_a_log_is_added_to(tmp_path: Path, text: str) -> None:
    path = tmp_path / "main.py"
    path.write_text(text)
    with pytest.raises(LacliError, match=r"main.py exists and is no log.*give another file to --log"):
        begun(path)
    assert path.read_text() == text
    path.write_text("")
    begun(path).close()


def test_a_log_is_its_owners_alone_and_no_link_is_followed(tmp_path: Path, log: Path) -> None:
    (tmp_path / "link").symlink_to(log)
    assert log.stat().st_mode & 0o777 == 0o600
    for name in (str(tmp_path / "link"), str(tmp_path), str(tmp_path / "none" / "log"), "a\0b"):
        with pytest.raises(LacliError, match="cannot write the log") as caught:
            Transcript(name, pytest.fail)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks that leave a file readable")
def test_a_log_that_another_chat_writes_is_refused_until_that_ends(tmp_path: Path) -> None:
    with begun(tmp_path / "log", CHAT), pytest.raises(LacliError, match="another chat is writing the log .*/log"):
        begun(tmp_path / "log")
    begun(tmp_path / "log").close()
    assert read_chat(tmp_path / "log").messages == CHAT.messages


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be deleted there")
def test_a_log_that_is_deleted_is_told_once_and_one_that_is_moved_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    with opened(tmp_path / "log", said.append) as transcript:
        transcript.begin(CHAT)
        (tmp_path / "log").rename(tmp_path / "moved")
        transcript.changed("undo")
        assert not said and '"undo"' in (tmp_path / "moved").read_text("utf-8")
        (tmp_path / "moved").unlink()
        for _ in range(2):
            transcript.changed("undo")
        assert said == [f"the log {tmp_path / 'log'} ends here: it was deleted"] and transcript.is_lost


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_once_and_the_chat_goes_on() -> None:
    said: list[str] = []
    with opened(Path("/dev/full"), said.append) as transcript:
        transcript.begin(CHAT)
        transcript.changed("undo")
    assert said == ["the log /dev/full ends here: No space left on device"]
    Transcript(None, pytest.fail).begin(CHAT)

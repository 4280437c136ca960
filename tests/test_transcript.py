"""--log: a line for each thing that happens, from which the conversation can be rebuilt."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lacli.chat.actions import Actions
from lacli.chat.adjust import Adjusted
from lacli.chat.commands import Command
from lacli.chat.conversation import Message
from lacli.chat.logged import read_log
from lacli.chat.saved import SavedChat, read_chat, settings_json
from lacli.chat.transcript import Transcript
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from tests.fake_chat import FakeChat, an_answer


class Clock:
    """A second passes with each line."""

    def __init__(self) -> None:
        self._seconds = count()

    def __call__(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(self._seconds))


def begun(path: Path) -> Transcript:
    transcript = Transcript(str(path), Clock())
    assert not transcript.begin("demo", "", "be brief", Adjusted())
    return transcript


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_is_in_the_file_at_once_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with begun(path) as transcript:
        assert [line["event"] for line in lines(path)] == ["session"]
        transcript.message(Message("user", "a\nb"))
        transcript.message(Message("assistant", "ü"), an_answer(tokens=6, steps=2, seconds=1.5))
        transcript.message(Message("assistant", "c"), replace(an_answer(), finish_reason="interrupt"))
        session, question, answer, broken = lines(path)
    assert (session["format"], session["version"], session["model"]) == ("lacli chat log", 1, "demo")
    assert session["settings"]["window"] == 15
    assert session["time"] == "2026-01-01T00:00:00.000+00:00" and question["time"].endswith("01.000+00:00")
    assert (question["role"], question["content"]) == ("user", "a\nb")
    assert answer["content"] == "ü" and answer["finish_reason"] == "eog"
    assert (answer["tokens"], answer["tokens_per_step"], answer["tokens_per_second"]) == (6, 3.0, 4.0)
    assert broken["finish_reason"] == "interrupt"


STEPS = ["talk", "talk", "talk", "ask", "undo", "regen", "clear", "compact", "system", "load", "set", "again"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=25))
def test_a_reader_can_rebuild_the_conversation(tmp_path: Path, steps: list[str]) -> None:
    """Whatever commands came, the log's reader ends with what the chat holds."""
    path, saved = tmp_path / "log", tmp_path / "saved.json"
    path.unlink(missing_ok=True)
    saved.unlink(missing_ok=True)
    chat = FakeChat()
    chat.conversation.system = "be brief"
    with begun(path) as transcript:
        actions = Actions(chat, "demo", "", transcript)
        actions.run(Command("save", str(saved)))
        for number, step in enumerate(steps):
            follow(actions, chat, transcript, step, f"{step} {number}", saved)
    rebuilt = read_log(path.read_text())
    assert rebuilt.conversation.as_messages() == chat.conversation.as_messages()
    assert rebuilt.settings == settings_json(chat.adjusted)
    assert read_chat(path) == SavedChat(
        "demo", rebuilt.conversation.system, tuple(rebuilt.conversation.messages), chat.adjusted
    )


def follow(actions: Actions, chat: FakeChat, transcript: Transcript, step: str, text: str, saved: Path) -> None:
    conversation = chat.conversation
    match step:
        case "talk" | "ask":
            conversation.ask(text)
            transcript.message(conversation.messages[-1])
        case "again":
            if actions.run(Command("regen")).again and conversation.take_back_answer():
                transcript.changed("regen")
        case "load":
            actions.run(Command("load", str(saved)))
        case "system":
            actions.run(Command("system", text))
        case "set":
            actions.run(Command("set", f"temp 0.{len(text)}"))
        case _:
            actions.run(Command(step))
    if step in ("talk", "again") and len(conversation.messages) % 2:
        conversation.answer(text)
        transcript.message(conversation.messages[-1], an_answer())


def test_a_session_that_goes_on_with_a_chat_has_its_messages_and_begins_anew_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with begun(path) as transcript:
        transcript.message(Message("user", "of another session"))
    with Transcript(str(path), Clock()) as transcript:
        transcript.begin("demo", "", "", Adjusted(), [Message("user", "a"), Message("assistant", "b")])
        transcript.message(Message("user", "c"))
    conversation = read_log(path.read_text()).conversation
    assert [each["content"] for each in conversation.as_messages()] == ["a", "b", "c"]


def test_a_log_is_added_to_and_a_torn_line_gets_an_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    begun(path).close()
    whole = path.read_text()
    path.write_text(whole + '{"event": "cle')
    begun(path).close()
    assert path.read_text().splitlines()[:2] == [whole.rstrip(), '{"event": "cle']
    with begun(path) as transcript:
        transcript.message(Message("user", "a"))
    assert len(path.read_text().splitlines()) == 5
    assert read_chat(path).messages == (Message("user", "a"),)


@pytest.mark.parametrize(
    "damage", [b"{", b"\xff\xfe", b"", b"[]", b'{"event": "message", "role": "user", "content": 5}']
)
def test_of_a_log_with_a_damaged_line_the_rest_is_read_and_the_line_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "log"
    said = [Message("user", "a"), Message("assistant", "b"), Message("user", "c"), Message("assistant", "d")]
    with begun(path) as transcript:
        for message in said:
            transcript.message(message)
    raw = path.read_bytes().splitlines()
    raw[1] = damage
    path.write_bytes(b"\n".join(raw) + b"\n")
    found = read_chat(path)
    assert found.messages == tuple(said[2:]) and found.left_out == (2, 3)
    assert "lines 2 and 3 of it are damaged" in Actions(cast(Any, FakeChat())).differences(found)[-1]


def test_a_number_of_dropped_questions_that_is_none_is_soon_at_its_end(tmp_path: Path) -> None:
    with begun(tmp_path / "log") as transcript:
        transcript.message(Message("user", "a"))
        transcript.changed("compact", dropped=10**18)
    assert read_chat(tmp_path / "log").messages == (Message("user", "a"),)


def test_a_log_is_its_owners_alone_and_no_link_is_followed(tmp_path: Path) -> None:
    path, link = tmp_path / "log", tmp_path / "link"
    begun(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    link.symlink_to(path)
    with pytest.raises(LacliError, match="it is a symbolic link"):
        begun(link)


@pytest.mark.parametrize("text", ["def main():\n    pass\n", "\n", '{"format": "lacli chat", "version": 1}', "x" * 300])
def test_nothing_but_a_log_is_added_to(tmp_path: Path, text: str) -> None:
    path = tmp_path / "main.py"
    path.write_text(text)
    with pytest.raises(LacliError, match=r"main.py exists and is no log.*give another file to --log") as caught:
        begun(path)
    assert path.read_text() == text and "\n" not in str(caught.value)
    path.write_text("")
    begun(path).close()


def test_what_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "none" / "log"), "a\0b"):
        with pytest.raises(LacliError, match="cannot write the log") as caught:
            Transcript(name, Clock())
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_once_and_the_chat_goes_on() -> None:
    transcript = Transcript("/dev/full", Clock())
    said = [transcript.begin("demo", "", "", Adjusted()), transcript.changed("undo"), transcript.changed("undo")]
    transcript.close()
    assert said == ["the log /dev/full ends here: No space left on device", "", ""]


def test_settings_in_a_log_are_json_that_every_reader_knows(tmp_path: Path) -> None:
    adjusted = Adjusted(sampling=SamplingSettings(logit_bias=((3, float("-inf")),)))
    with Transcript(str(tmp_path / "log"), Clock()) as transcript:
        transcript.begin("demo", "", "\ud800", adjusted)
    assert lines(tmp_path / "log")[0]["settings"]["logit_bias"] == ["3-inf"]

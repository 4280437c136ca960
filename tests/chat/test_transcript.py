"""Chats in files: a saved chat is read back whole, and a broken file gives one clear line."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lacli.chat.commands import Commands, parse
from lacli.chat.conversation import Conversation, Message
from lacli.chat.settings import ChatSettings
from lacli.chat.transcript import Log, SavedChat, read_chat, write_chat
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from tests.fakes.fake_chat import FakeChat

SETTINGS = ChatSettings(sampling=SamplingSettings(temp=0.5, logit_bias=((3, float("-inf")),)), stops=("x",))
MESSAGES = [Message("user", "a\u2028b"), Message("assistant", "b")]
CHAT = SavedChat("demo", "", Conversation("be brief", MESSAGES), SETTINGS)
TWICE = replace(CHAT, conversation=Conversation("be brief", MESSAGES * 2))
NEW = replace(CHAT, conversation=Conversation("new", MESSAGES))
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def line(event: str, **what: Any) -> str:
    return json.dumps({"event": event, **what})


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXT, TEXT, TEXT, st.lists(TEXT, max_size=5), st.integers(0, 2**31 - 1))
def test_a_saved_chat_is_read_again(
    tmp_path: Path, model: str, template: str, system: str, texts: list[str], context: int
) -> None:
    messages = [Message("assistant" if at % 2 else "user", text) for at, text in enumerate(texts)]
    chat = SavedChat(model, template, Conversation(system, messages), SETTINGS, context)
    write_chat(tmp_path / "chat", chat)
    assert read_chat(tmp_path / "chat") == chat


def test_settings_and_fields_that_this_version_does_not_know_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "chat"
    lines = [json.loads(each) for each in CHAT.lines.splitlines()]
    lines[0]["settings"]["window_init"] = "pool"
    file.write_text("\n".join(json.dumps(each | {"time": "2027-01-01"}) for each in lines))
    assert read_chat(file) == CHAT and not read_chat(file).damaged


@pytest.mark.parametrize(
    "wrong",
    [
        b"\xff\xfe",
        b"",
        b"NaN",
        b"[" * 100_000,
        b'{"event": "message", "role": "user", "content": "\\ud800"}',
        line("undo").encode(),
        line("message", role="user", content=5).encode(),
        line("message", role="assistant", content="twice").encode(),
        line("message", role="user").encode(),
    ],
)
def test_a_damaged_line_is_named_and_the_rest_is_read(tmp_path: Path, wrong: bytes) -> None:
    file = tmp_path / "chat"
    write_chat(file, TWICE)
    raw = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([*raw[:3], wrong, *raw[3:]]))
    assert read_chat(file) == replace(TWICE, damaged=[4])


def test_a_chat_is_replaced_at_once_and_keeps_its_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "chat"
    write_chat("~/chat", CHAT)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    text = path.read_text()
    with path.open() as reader:
        write_chat(path, NEW)
        assert reader.read() == text, "an open file keeps its whole old text"
    assert path.stat().st_mode & 0o777 == 0o640 and read_chat("~/chat") == NEW


def test_nothing_but_a_chat_is_written_over_or_added_to(tmp_path: Path) -> None:
    notes, empty, link = tmp_path / "notes.txt", tmp_path / "empty", tmp_path / "link"
    notes.write_text("dear diary")
    empty.touch()
    link.symlink_to(tmp_path / "made")
    for path in (notes, link, tmp_path, tmp_path / "none" / "chat", notes / "chat", Path("/dev/null"), Path("a\0b")):
        with pytest.raises(LacliError) as caught:
            write_chat(path, CHAT)
        with pytest.raises(LacliError) as of_log:
            Log(str(path))
        assert "\n" not in f"{caught.value}{of_log.value}"
    write_chat(empty, CHAT)
    assert notes.read_text() == "dear diary" and sorted(os.listdir(tmp_path)) == ["empty", "link", "notes.txt"]


STEPS = ["talk", "talk", "talk", "/undo", "/regen", "/clear", "/system be long", "/load saved", "/set n 3"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(STEPS), max_size=20))
def test_a_log_keeps_its_chats_and_ends_with_the_current_one(tmp_path: Path, steps: list[str]) -> None:
    path, saved, chat = tmp_path / "log", tmp_path / "saved", FakeChat()
    write_chat(path, replace(CHAT, conversation=Conversation("", [Message("user", "earlier")])))
    write_chat(saved, CHAT)
    earlier = path.read_bytes()
    with Log(str(path)) as log:
        commands = Commands(chat, log, "demo")
        for number, step in enumerate(steps):
            command = parse(step.replace("saved", str(saved)))
            again = commands.run(*command).again if command else False
            if again or not command:
                list(chat.again() if again else chat.ask(f"question {number}"))
            log.update(commands.as_saved)
            found = read_chat(path)
            assert path.read_bytes().startswith(earlier)
            assert found == commands.as_saved or not chat.conversation.messages
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks that leave a file readable")
def test_a_log_that_another_chat_writes_is_refused_until_that_ends(tmp_path: Path) -> None:
    with Log(str(tmp_path / "log")) as log:
        log.update(CHAT)
        with pytest.raises(LacliError, match="another chat is writing the log .*/log"):
            Log(str(tmp_path / "log"))
    Log(str(tmp_path / "log")).close()
    assert read_chat(tmp_path / "log") == CHAT

"""A log read back by /load and --load: the chat at its end, and what is said about a damaged one."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lacli.chat.adjust import Adjusted
from lacli.chat.conversation import Message
from lacli.chat.saved import SavedChat, read_chat, settings_json
from lacli.chat.transcript import Transcript
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from tests.fake_chat import an_answer

SETTINGS = Adjusted(sampling=SamplingSettings(temp=0.5, logit_bias=((3, float("-inf")),)), stops=("x",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of a question with its answer, whose text has what some take for a line's end."""
    file = tmp_path / "chat.jsonl"
    with Transcript(str(file), lambda: datetime(2026, 1, 1, tzinfo=UTC)) as transcript:
        transcript.begin(
            "demo", "chatml", "be brief", Adjusted(limit=9), [Message("user", "a"), Message("assistant", "b")]
        )
        transcript.message(Message("user", "c\u2028d"))
        transcript.message(Message("assistant", "e"), an_answer())
        transcript.changed("set", changed="temp: 0 -> 0.5", settings=settings_json(SETTINGS))
    return file


def test_a_log_is_read_as_the_chat_at_its_end(path: Path) -> None:
    messages = (Message("user", "a"), Message("assistant", "b"), Message("user", "c\u2028d"), Message("assistant", "e"))
    assert read_chat(path) == SavedChat("demo", "be brief", messages, SETTINGS, "chatml")


def test_sessions_in_which_nothing_was_said_do_not_hide_the_chat_before_them(path: Path) -> None:
    with Transcript(str(path), lambda: datetime(2026, 1, 2, tzinfo=UTC)) as transcript:
        transcript.begin("other", "", "", Adjusted())
        assert len(read_chat(path).messages) == 4 and read_chat(path).model == "demo"
        transcript.message(Message("user", "new"))
    assert [message.content for message in read_chat(path).messages] == ["new"]


def test_an_answer_keeps_the_tokens_that_a_session_begins_with(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    session = json.loads(lines[0])
    session["messages"][1]["tokens"] = [5, 6]
    path.write_text("\n".join([json.dumps(session), *lines[1:]]), encoding="utf-8")
    assert read_chat(path).messages[1].tokens == (5, 6)


def test_the_line_that_a_session_broke_off_in_is_left_out(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(text[:-5], encoding="utf-8")
    assert read_chat(path).adjusted == Adjusted(limit=9)
    path.write_text(text[:-5] + "\n" + text, encoding="utf-8")
    assert read_chat(path).adjusted == SETTINGS


def line(event: str, **what: Any) -> str:
    return json.dumps({"time": "", "event": event, **what})


@pytest.mark.parametrize(
    "wrong",
    [
        "hello",
        "[]",
        "NaN",
        line("set"),
        line("message", role="assistant", content="twice"),
        line("load", system="", messages=[{"role": "assistant", "content": ""}], settings={}),
        line("load", system="", messages=[{"role": "user", "content": "", "tokens": 5}], settings={}),
        line("compact", dropped="all"),
    ],
)
def test_a_line_that_is_none_of_a_log_is_named_and_the_rest_is_read(path: Path, wrong: str) -> None:
    whole = read_chat(path)
    lines = path.read_text(encoding="utf-8").split("\n")
    path.write_text("\n".join([*lines[:3], wrong, *lines[3:]]), encoding="utf-8")
    assert read_chat(path) == replace(whole, left_out=(4,))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "use a newer lacli"),
        ({"model": 3}, '"model" is not a text'),
        ({"system": None}, '"system" is not a text'),
        ({"messages": [{"role": "user", "content": 3}]}, '"content" is not a text'),
        ({"messages": [{"role": "user", "content": "", "tokens": ["x"]}]}, '"tokens" is no list of token ids'),
        ({"settings": []}, '"settings" is not an object'),
        ({"settings": {"top_p": 7}}, "must be from 0 to 1"),
    ],
)
def test_a_session_that_is_damaged_gives_one_line(path: Path, changes: dict[str, object], words: str) -> None:
    session = json.loads(path.read_text(encoding="utf-8").split("\n")[0])
    path.write_text(json.dumps(session | changes) + "\n", encoding="utf-8")
    with pytest.raises(LacliError) as caught:
        read_chat(path)
    assert words in str(caught.value) and "\n" not in str(caught.value)

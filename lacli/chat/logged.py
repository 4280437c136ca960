"""A log read back: the chat at its end.

The lines that `transcript.py` writes, undone and done again as they say. Whether values are what they should be is
checked in `saved.py`, as for a chat that was saved.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lacli.chat.conversation import Conversation, Message, in_turns

FORMAT, VERSION = "lacli chat log", 1

BEGINNING_BYTES = 200
BEGINNING = re.compile(rb'\s*\{\s*"time":\s*"[^"]*",\s*"event":\s*"session",\s*"format":\s*"' + FORMAT.encode() + rb'"')
BROKEN = (ValueError, KeyError, TypeError, RecursionError)
"""What a line raises that is none of a log."""


@dataclass
class Logged:
    """A chat as its log tells it. version: of the log's format; settings: by their fields' names, as JSON has them."""

    conversation: Conversation = field(default_factory=Conversation)
    version: object = VERSION
    model: object = ""
    template: object = ""
    settings: object = field(default_factory=dict)


def is_log(beginning: bytes) -> bool:
    """Whether a file that begins with these bytes (200 of them, or all) is a log."""
    return BEGINNING.match(beginning) is not None


def read_log(text: str) -> Logged:
    """The chat at the end of a log's text: of its last session that says something, where it has several.

    Raises ValueError for a line that is none of a log; one that a session broke off in is left out.
    """
    lines = text.removesuffix("\n").split("\n")
    logged, earlier, wrong = Logged(), Logged(), 0
    for number, each in enumerate(lines, start=1):
        try:
            line = json.loads(each, parse_constant=no_number)
            if line["event"] == "session":
                wrong = 0
                earlier, logged = logged if logged.conversation.messages else earlier, Logged()
            if not wrong:
                _follow(logged, line)
        except BROKEN:
            wrong = wrong or number
    if wrong and wrong < len(lines):
        raise ValueError(f"line {wrong} is none of a log")
    return logged if logged.conversation.messages or not earlier.conversation.messages else earlier


def no_number(text: str) -> NoReturn:
    """For NaN and infinities, which Python's reader of JSON takes and JSON does not have."""
    raise ValueError(f"{text} is no number in JSON")


def _follow(logged: Logged, line: dict[str, Any]) -> None:
    """Do what an event did."""
    match line["event"]:
        case "session":
            logged.version, logged.model, logged.template = line["version"], line["model"], line["template"]
            _replace(logged, line)
        case "load":
            _replace(logged, line)
        case "set":
            logged.settings = line["settings"]
        case _:
            _say(logged.conversation, line)


def _replace(logged: Logged, line: dict[str, Any]) -> None:
    messages = [Message(each["role"], each["content"], tuple(each.get("tokens", ()))) for each in line["messages"]]
    if not in_turns([message.role for message in messages]):
        raise ValueError("questions and answers do not take turns")
    logged.conversation.replace(line["system"], messages)
    logged.settings = line["settings"]


def _say(conversation: Conversation, line: dict[str, Any]) -> None:
    match line["event"]:
        case "message" if line["role"] == "user":
            conversation.ask(line["content"])
        case "message":
            if not conversation.is_open:
                raise ValueError("an answer without a question")
            conversation.answer(line["content"])
        case "undo":
            conversation.undo()
        case "regen":
            conversation.take_back_answer()
        case "clear":
            conversation.clear()
        case "system":
            conversation.system = line["content"]
        case "compact":
            for _ in range(line["dropped"]):
                conversation.drop_oldest()

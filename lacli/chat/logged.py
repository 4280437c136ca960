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
    """A chat as its log tells it. version: of the log's format; settings: by their fields' names, as JSON has them.

    left_out: the numbers of lines that are none of a log.
    """

    conversation: Conversation = field(default_factory=Conversation)
    version: object = VERSION
    model: object = ""
    template: object = ""
    settings: object = field(default_factory=dict)
    left_out: list[int] = field(default_factory=list)


def is_log(beginning: bytes) -> bool:
    """Whether a file that begins with these bytes (200 of them, or all) is a log."""
    return BEGINNING.match(beginning) is not None


def read_log(text: str) -> Logged:
    """The chat at the end of a log's text: of its last session that says something, where it has several.

    A damaged line is left out; of the last one, in which a session broke off, nothing is said.
    """
    lines = text.removesuffix("\n").split("\n")
    logged, earlier = Logged(), Logged()
    for number, each in enumerate(lines, start=1):
        try:
            each.encode()  # bytes that are no text would become messages that no tokenizer takes
            line = json.loads(each, parse_constant=no_number)
            if line["event"] == "session":
                earlier, logged = logged if logged.conversation.messages else earlier, Logged()
            _follow(logged, line)
        except BROKEN:
            if number < len(lines):
                logged.left_out.append(number)
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
            conversation.ask(_text(line))
        case "message":
            if not conversation.is_open:
                raise ValueError("an answer without a question")
            conversation.answer(_text(line))
        case "undo":
            conversation.undo()
        case "regen":
            conversation.take_back_answer()
        case "clear":
            conversation.clear()
        case "system":
            conversation.system = _text(line)
        case "compact":
            for _ in range(min(line["dropped"], conversation.questions)):
                conversation.drop_oldest()


def _text(line: dict[str, Any]) -> str:
    """What a line says. Raises ValueError where that is no text."""
    if not isinstance(line["content"], str):
        raise ValueError("no text")
    return line["content"]

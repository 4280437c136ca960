"""A chat in a file, as JSON Lines: the one format that /save and --log write and that /load and --load read.

A chat is a line about it (model, template, system prompt, settings) and a line a message. A log may have several.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt
from pydantic_core import from_json

from lacli.chat.settings import ChatSettings, settings_from_json
from lacli.chat.talk import Conversation, Message
from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.sampling import MOST_SEED
from lacli.llamacpp.settings import MOST_CELLS
from lacli.text.checked import checked
from lacli.text.files import Closing, for_owner, lock, read_raw, replace_file

FORMAT, VERSION = "lacli chat", 2
SAVED, SESSION = "saved", "session"
"""The event of a chat's first line, and the same in logs of lacli before December 2026."""

BEGINNING = re.compile(rb'\s*\{"event": "(' + f"{SAVED}|{SESSION}".encode() + rb')", "format": "' + FORMAT.encode())
BEGINNING_BYTES = 200


class Head(BaseModel):
    """A line that begins a chat."""

    model_config = ConfigDict(strict=True, protected_namespaces=())

    event: Literal["saved", "session"]
    format: Literal["lacli chat"]
    version: int
    model: str = ""
    template: str = ""
    system: str = ""
    seed: int = Field(-1, ge=-1, le=MOST_SEED)
    context: int = Field(0, ge=0, le=MOST_CELLS)
    settings: Any = {}


class Line(BaseModel):
    """A line behind the first: a message, or a command in a log of lacli before December 2026."""

    model_config = ConfigDict(strict=True)

    event: str
    role: Literal["user", "assistant"] | None = None
    content: str | None = None
    ids: list[NonNegativeInt] = []
    settings: dict[str, Any] | None = None
    seed: int | None = Field(None, ge=-1, le=MOST_SEED)


@dataclass(frozen=True)
class SavedChat:
    """A conversation with what it takes to go on.

    `model`: as the user typed it; `template`: empty for the model's own; `seed`: the one in use if the user has set
    none. `context`: cells as -c gave them, 0 for the default. `damaged`: the numbers of lines that were left out.
    `path`: the file that it was read from, as `absolute` gives it.
    """

    model: str = ""
    template: str = ""
    system: str = ""
    messages: tuple[Message, ...] = ()
    settings: ChatSettings = ChatSettings()
    seed: int = -1
    context: int = 0
    damaged: tuple[int, ...] = ()
    path: str = field(default="", compare=False)

    @property
    def lines(self) -> bytes:
        """The chat in a file's lines."""
        head = {
            "event": SAVED,
            "format": FORMAT,
            "version": VERSION,
            **{name: getattr(self, name) for name in ("model", "template", "system", "seed", "context")},
            "settings": self.settings.json,
        }
        return b"".join(map(_line, [head, *map(_as_json, self.messages)]))


def absolute(path: str | Path) -> str:
    """The absolute path that a file's name stands for."""
    return os.path.abspath(os.path.expanduser(path))


def write_chat(path: str | Path, chat: SavedChat, *, replaces: bool = True) -> None:
    """Write a chat in one go: a file of that name is whole before and after.

    Raises LacliError for a file that is no saved chat, and for one that is unless it `replaces` it. A new file is for
    its owner alone.
    """
    if _earlier(path) and not replaces:
        raise LacliError(f"{path} holds another chat", "the same again replaces it; another name keeps both")
    try:
        replace_file(Path(os.path.expanduser(path)), chat.lines, for_owner)
    except (OSError, ValueError) as error:
        raise LacliError(f"cannot write {str(path)!r}: {reason_of(error)}", "give another name") from error


class Log(Closing):
    """--log: a file that has the chat after each turn, behind what it had; without a path nothing is written.

    A file that cannot be written any more must not end the chat: `warn` receives a sentence, once. `is_lost`: it did.
    """

    def __init__(self, path: str | None, warn: Callable[[str], None]) -> None:
        """Raises LacliError for a file that cannot be written, that holds something else or that a chat writes."""
        self._path, self._warn = path, warn
        self._file: IO[bytes] | None = None
        self._start, self._last = 0, b""
        self.is_lost = False
        if path is None:
            return
        earlier = _earlier(path)
        try:
            self._file = open(os.path.expanduser(path), "ab", buffering=0, opener=for_owner)  # noqa: SIM115
            lock(self._file)
            self._file.write(b"\n" * (earlier != b"" and not earlier.endswith(b"\n")))
            self._start = self._file.tell()
        except BlockingIOError as error:
            self.close()
            raise LacliError(f"another chat is writing the log {path}", "give another file to --log") from error
        except (OSError, ValueError) as error:
            raise LacliError(f"cannot write the log {path}: {reason_of(error)}", "give another file") from error

    def update(self, chat: SavedChat) -> None:
        """Write the chat as it is now in the place of what it was."""
        lines = chat.lines if chat.messages else b""
        same = len(os.path.commonprefix([self._last, lines]))
        self._last = lines
        try:
            if self._file:
                self._file.truncate(self._start + same)
                while same < len(lines):
                    same += self._file.write(lines[same:])
        except OSError as error:
            self.close()
            self._file, self.is_lost = None, True
            self._warn(f"the log {self._path} ends here: {reason_of(error)}")

    def begin(self) -> None:
        """Keep the chat so far: the next one is another."""
        self._start, self._last = self._start + len(self._last), b""

    def close(self) -> None:
        if self._file:
            self._file.close()


def read_chat(path: str | Path) -> SavedChat:
    """Read the last chat of a file that has messages. Damaged lines are left out.

    Of the last line, in which an old log may have broken off, nothing is said. Raises LacliError, in one line, for a
    file that holds no chat.
    """
    raw = read_raw(str(path)).removeprefix(codecs.BOM_UTF8)
    chats, damaged = list[SavedChat](), []
    lines = raw.removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            found = from_json(line, allow_inf_nan=False)
            if isinstance(found, dict) and found.get("event") in (SAVED, SESSION):
                chats.append(_begun(found, f"{path}, line {number}"))
            else:
                chats[-1] = _followed(chats[-1], checked(Line, found))
        except (ValueError, UsageError, IndexError) as error:
            if not chats:
                raise LacliError(f"{path} is no saved chat: line 1 does not begin one", "/save writes one") from error
            if number < len(lines):
                damaged.append(number)
    said = [chat for chat in chats if chat.messages]
    return replace((said or chats)[-1], damaged=tuple(damaged), path=absolute(path))


def _line(what: Mapping[str, Any]) -> bytes:
    # Of all texts only a model's path may hold bytes that are not UTF-8.
    return json.dumps(what, ensure_ascii=False, allow_nan=False).encode(errors="replace") + b"\n"


def _as_json(message: Message) -> dict[str, Any]:
    """A message; an answer with its tokens' ids, since its text can be cut into others."""
    ids = {"ids": list(message.tokens)} if message.tokens else {}
    return {"event": "message", "role": message.role, "content": message.content, **ids}


def _begun(found: object, where: str) -> SavedChat:
    """The chat that a first line begins. Raises LacliError if it is damaged: what follows would be another's."""
    try:
        head = checked(Head, found)
        if head.version > VERSION:
            raise UsageError(f"it has format {head.version}, and this lacli reads {VERSION}", "use a newer lacli")
        settings = settings_from_json(head.settings)
    except UsageError as error:
        raise LacliError(f"{where} begins no chat: {error.what}", error.hint or "/save writes one") from error
    return SavedChat(head.model, head.template, head.system, (), settings, head.seed, head.context)


def _followed(chat: SavedChat, line: Line) -> SavedChat:
    """The chat after a line. Raises ValueError or UsageError if the line does not fit."""
    conversation, settings = Conversation(chat.system, chat.messages), chat.settings
    match line:
        case Line(event="message", role="user", content=str(text)):
            conversation.ask(text)
        case Line(event="message", role="assistant", content=str(text)) if conversation.is_open:
            conversation.answer(text, line.ids)
        case Line(event="undo"):
            conversation.undo()
        case Line(event="regen"):
            conversation.take_back_answer()
        case Line(event="clear"):
            conversation.clear()
        case Line(event="system", content=str(text)):
            conversation.system = text
        case Line(event="set", settings=dict(found)):
            settings = settings_from_json(found)
        case Line(event="message" | "system" | "set"):
            raise ValueError("the line does not follow from those before it")
    messages = tuple(conversation.messages)
    seed = chat.seed if line.seed is None else line.seed
    return replace(chat, system=conversation.system, messages=messages, settings=settings, seed=seed)


def _earlier(path: str | Path) -> bytes:
    """The bytes of a file that may be written: of chats, or none. Raises LacliError for a file of anything else."""
    target = Path(os.path.expanduser(path))
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise LacliError(f"{path} is no ordinary file", "give the name of a file, or a new name")
    raw = read_raw(str(path)) if target.is_file() else b""
    if raw and not BEGINNING.match(raw[:BEGINNING_BYTES]):
        raise LacliError(f"{path} exists and is no saved chat", "give another name")
    return raw

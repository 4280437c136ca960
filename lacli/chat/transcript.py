"""A chat in a file, as JSON Lines: the one format that /save and --log write and that /load and --load read.

A chat is a line about it (model, template, system prompt, settings) and a line a message. A log may have several.
"""

from __future__ import annotations

import codecs
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_core import from_json

from lacli.chat.conversation import Conversation, Message
from lacli.chat.settings import ChatSettings, settings_from_json
from lacli.closing import Closing
from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.settings import MOST_CELLS
from lacli.text.checked import checked
from lacli.text.files import for_owner, lock, read_raw, replace_file

FORMAT, VERSION, SAVED = "lacli chat", 2, "saved"
"""What a chat's first line says: its format and the event."""

MESSAGE = TypeAdapter(Message)
"""Reads any other line."""


class Head(BaseModel):
    """A line that begins a chat."""

    model_config = ConfigDict(strict=True, protected_namespaces=())

    format: Literal["lacli chat"]
    version: int
    model: str = ""
    template: str = ""
    system: str = ""
    context: int = Field(0, ge=0, le=MOST_CELLS)
    prompt_cache: str = ""
    settings: Any = {}


@dataclass
class SavedChat:
    """A conversation with what it takes to go on.

    `model`, `template`: an absolute path, or a name as the user typed it; an empty `template` is the model's own.
    `context`: cells as -c gave them, 0 for the default. `prompt_cache`: a file that is there, or "". `damaged`: the
    numbers of lines that were left out. `path`: the file that it was read from, as `absolute` gives it.
    """

    model: str = ""
    template: str = ""
    conversation: Conversation = field(default_factory=Conversation)
    settings: ChatSettings = ChatSettings()
    context: int = 0
    prompt_cache: str = ""
    damaged: list[int] = field(default_factory=list)
    path: str = field(default="", compare=False)

    @property
    def damage(self) -> str:
        """A sentence about the lines that were left out, empty for none."""
        lines = ", ".join(map(str, self.damaged))
        return f"damaged lines of {self.path} are left out: {lines}" if lines else ""

    @property
    def lines(self) -> bytes:
        """The chat in a file's lines."""
        own = {name: getattr(self, name) for name in ("model", "template", "context", "prompt_cache")}
        head = {"event": SAVED, "format": FORMAT, "version": VERSION, **own}
        head |= {"system": self.conversation.system, "settings": self.settings.json}
        messages = ({"event": "message", **vars(message)} for message in self.conversation.messages)
        lines = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in (head, *messages))
        # Of all texts only a model's path may hold bytes that are not UTF-8.
        return "".join(lines).encode(errors="replace")


def absolute(path: str | Path) -> str:
    """The absolute path that a file's name stands for."""
    return os.path.abspath(os.path.expanduser(path))


def movable(name: str) -> str:
    """The name of a model or a template for a chat that may go on in another folder: a file's is absolute."""
    return absolute(name) if os.path.isfile(os.path.expanduser(name)) else name


def write_chat(path: str | Path, chat: SavedChat, *, replaces: bool = True) -> None:
    """Write a chat in one go: a file of that name is whole before and after.

    Raises LacliError for a file that is no saved chat, and for one that is unless it `replaces` it. A new file is for
    its owner alone.
    """
    if _read_target(path) and not replaces:
        raise LacliError(f"{path} holds another chat", "give another name")
    try:
        replace_file(Path(os.path.expanduser(path)), chat.lines)
    except (OSError, ValueError) as error:
        raise LacliError(f"cannot write {str(path)!r}: {reason_of(error)}", "give another name") from error


class Log(Closing):
    """--log: a file that has the chat after each turn, behind what it had; without a path nothing is written."""

    def __init__(self, path: str | None) -> None:
        """Raises LacliError for a file that cannot be written, that holds something else or that a chat writes."""
        self._path = path
        self._file: IO[bytes] | None = None
        self._start, self._last = 0, b""
        if path is None:
            return
        earlier = _read_target(path)
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
        """Write the chat as it is now in the place of what it was. Raises LacliError, once, if that is impossible."""
        lines = chat.lines if chat.conversation.messages else b""
        same = len(os.path.commonprefix([self._last, lines]))
        self._last = lines
        if self._file:
            try:
                self._file.truncate(self._start + same)
                while same < len(lines):
                    same += self._file.write(lines[same:])
            except OSError as error:
                self.close()
                self._file = None
                what = f"the log {self._path} ends here: {reason_of(error)}"
                raise LacliError(what, "/save writes the chat to another file") from error

    def begin(self) -> None:
        """Keep the chat so far: the next one is another."""
        self._start, self._last = self._start + len(self._last), b""

    def close(self) -> None:
        if self._file:
            self._file.close()


def read_chat(path: str | Path) -> SavedChat:
    """Read the last chat of a file that has messages. Damaged lines are left out.

    Nothing is said of the last line, in which a log may have broken off. Raises LacliError, in one line, for a file
    that holds no chat.
    """
    raw = read_raw(str(path)).removeprefix(codecs.BOM_UTF8)
    chats, damaged = list[SavedChat](), []
    lines = raw.removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            found = from_json(line, allow_inf_nan=False)
            if isinstance(found, dict) and found.get("event") == SAVED:
                chats.append(_begin_chat(found, f"{path}, line {number}"))
            else:
                message, conversation = MESSAGE.validate_json(line, strict=True), chats[-1].conversation
                (conversation.ask if message.role == "user" else conversation.answer)(message.content)
        except (ValueError, IndexError) as error:
            if not chats:
                raise LacliError(f"{path} is no saved chat: line 1 does not begin one", "/save writes one") from error
            if number < len(lines):
                damaged.append(number)
    chosen = [chat for chat in chats if chat.conversation.messages] or chats
    chosen[-1].damaged, chosen[-1].path = damaged, absolute(path)
    return chosen[-1]


def _begin_chat(found: object, where: str) -> SavedChat:
    """The chat that a first line begins. Raises LacliError if it is damaged: what follows would be another's."""
    try:
        head = checked(Head, found)
        if head.version > VERSION:
            raise UsageError(f"it has format {head.version}, and this lacli reads {VERSION}", "use a newer lacli")
        settings = settings_from_json(head.settings)
    except UsageError as error:
        raise LacliError(f"{where} begins no chat: {error.what}", error.hint or "/save writes one") from error
    cache = head.prompt_cache if os.path.isfile(head.prompt_cache) else ""
    return SavedChat(head.model, head.template, Conversation(head.system), settings, head.context, cache)


def _read_target(path: str | Path) -> bytes:
    """The bytes of a file that may be written: of chats, or none. Raises LacliError for a file of anything else."""
    target = Path(os.path.expanduser(path))
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise LacliError(f"{path} is no ordinary file", "give the name of a file, or a new name")
    raw = read_raw(str(path)) if target.is_file() else b""
    if raw:
        try:
            checked(Head, from_json(raw.split(b"\n")[0]))
        except (ValueError, UsageError) as error:
            raise LacliError(f"{path} exists and is no saved chat", "give another name") from error
    return raw

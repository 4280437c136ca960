"""Chats in a file of JSON Lines, the format of /save, /load, --log and --load.

A chat is one line with its model, template, system prompt and settings, then a line for each message. A log may hold
several chats.
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
from lacli.context import Closing
from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.settings import MOST_CELLS
from lacli.text.files import for_owner, lock, read_raw, replace_file
from lacli.text.json_schema import checked

FORMAT, VERSION, SAVED = "lacli chat", 2, "saved"
"""The format, version and event in a chat's first line."""

MESSAGE = TypeAdapter(Message)
"""Reads the lines after a chat's first line."""


class Head(BaseModel):
    """The first line of a saved chat: the chat without its messages. `version`: of the format."""

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
    """A conversation with everything needed to continue it.

    `model`, `template`: an absolute path, or a name as typed; template "" is the model's own. `context`: cells as given
    to -c, 0 for the default. `prompt_cache`: an existing file, or "". `damaged`: numbers (from 1) of lines left out.
    `path`: the absolute path of the file that the chat was read from, or "".
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
        """A sentence that names the damaged lines, "" if there are none."""
        lines = ", ".join(map(str, self.damaged))
        return f"damaged lines of {self.path} are left out: {lines}" if lines else ""

    @property
    def lines(self) -> bytes:
        own = {name: getattr(self, name) for name in ("model", "template", "context", "prompt_cache")}
        head = {"event": SAVED, "format": FORMAT, "version": VERSION, **own}
        head |= {"system": self.conversation.system, "settings": self.settings.json}
        messages = ({"event": "message", **vars(message)} for message in self.conversation.messages)
        lines = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in (head, *messages))
        # Only a model's path can contain bytes that are not UTF-8.
        return "".join(lines).encode(errors="replace")


def absolute(path: str | Path) -> str:
    return os.path.abspath(os.path.expanduser(path))


def movable(name: str) -> str:
    """Return the name of a model or template for use from any folder: a file's absolute path, or `name` unchanged."""
    return absolute(name) if os.path.isfile(os.path.expanduser(name)) else name


def write_chat(path: str | Path, chat: SavedChat, *, replaces: bool = True) -> None:
    """Write a chat to a file in one step, so that it is never half written. Only the owner can read a new file.

    Raises LacliError if the file cannot be written or is no saved chat, or if it is one and `replaces` is False.
    """
    if _read_target(path) and not replaces:
        raise LacliError(f"{path} holds another chat", "give another name")
    try:
        replace_file(Path(os.path.expanduser(path)), chat.lines)
    except (OSError, ValueError) as error:
        raise LacliError(f"cannot write {str(path)!r}: {reason_of(error)}", "give another name") from error


class Log(Closing):
    """The file of --log. The chat is written after the file's earlier content. Without a path nothing is written."""

    def __init__(self, path: str | None) -> None:
        """Open the log `path`, if any. Raises LacliError if it cannot be written, is no saved chat or is in use."""
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
        """Replace the chat's state in the log. Raises LacliError if writing fails; later calls then do nothing."""
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
        """Keep the chat so far: the next `update` begins another chat after it."""
        self._start, self._last = self._start + len(self._last), b""

    def close(self) -> None:
        if self._file:
            self._file.close()


def read_chat(path: str | Path) -> SavedChat:
    """Return a file's last chat with messages, or its last chat if none has messages.

    Damaged lines are left out. Their numbers are in `damaged`, except for the last line: a log may end within a line.
    Raises LacliError if the file holds no chat.
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
    """Return a chat without messages. `found`: its first line, parsed. Raises LacliError about `where` if damaged."""
    try:
        head = checked(Head, found)
        if head.version > VERSION:
            raise UsageError(f"the file has format {head.version}, but lacli reads {VERSION}", "use a newer lacli")
        settings = settings_from_json(head.settings)
    except UsageError as error:
        raise LacliError(f"{where} begins no chat: {error.what}", error.hint or "/save writes one") from error
    cache = head.prompt_cache if os.path.isfile(head.prompt_cache) else ""
    return SavedChat(head.model, head.template, Conversation(head.system), settings, head.context, cache)


def _read_target(path: str | Path) -> bytes:
    """Return the content of a file to be written: saved chats, or b"" for none. Raises LacliError for other content."""
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

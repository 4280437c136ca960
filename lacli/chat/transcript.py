"""A chat in a file, as JSON Lines: the one format that /save and --log write and that /load and --load read.

A chat begins with a line about it (model, template, system prompt, settings); each message is a line, and in a log each
command that changed something. /save replaces its file, --log adds to it as the chat goes.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from lacli.chat.settings import ChatSettings, settings_from_json
from lacli.chat.talk import Conversation, Message
from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.sampling import MOST_SEED
from lacli.llamacpp.settings import MOST_CELLS
from lacli.session.generation import Answer
from lacli.text.files import Closing, for_owner, is_deleted, lock, replace_file
from lacli.text.question import read_raw

FORMAT, VERSION = "lacli chat", 2
SAVED, SESSION, EMPTY = "saved", "session", "empty"
"""The first line's event: a file of /save, which /save may replace, or a log, to which --log may add; no line yet."""

BEGINNING = re.compile(rb'\s*\{"event": "(\w+)", "format": "' + FORMAT.encode() + rb'"')
BEGINNING_BYTES = 200

DAMAGED = (ValueError, KeyError, TypeError, RecursionError)
"""What a line raises that does not belong to a chat."""


def local_time() -> datetime:
    return datetime.now().astimezone()


@dataclass(frozen=True)
class SavedChat:
    """A conversation with what it takes to go on.

    `model`: as the user typed it; `template`: empty for the model's own; `seed`: the one in use where the user has set
    none. `context`: cells as -c gave them, 0 for the default. `left_out`: the numbers of damaged lines. `path`: the
    file that it was read from, as `absolute` gives it.
    """

    model: str = ""
    template: str = ""
    system: str = ""
    messages: tuple[Message, ...] = ()
    settings: ChatSettings = ChatSettings()
    seed: int = -1
    context: int = 0
    left_out: tuple[int, ...] = ()
    path: str = field(default="", compare=False)

    def lines(self, event: str, now: datetime) -> bytes:
        """The chat in a file's lines; `event` begins them."""
        first = _line(
            event,
            now,
            format=FORMAT,
            version=VERSION,
            model=self.model,
            template=self.template,
            system=self.system,
            seed=self.seed,
            context=self.context,
            settings=self.settings.json,
        )
        return first + b"".join(_message_line(message, now) for message in self.messages)


def absolute(path: str | Path) -> str:
    """The absolute path that a file's name stands for."""
    return os.path.abspath(os.path.expanduser(path))


def write_chat(path: str | Path, chat: SavedChat, *, replaces: bool = True) -> None:
    """Write a chat in one go: a file of that name is whole before and after.

    Raises LacliError for a file that is no saved chat, and for one that is unless it `replaces` it. A new file is for
    its owner alone.
    """
    target = Path(os.path.expanduser(path))
    try:
        _refuse_others(target, str(path))
        if not replaces and target.exists() and target.stat().st_size:
            raise LacliError(f"{path} holds another chat", "the same again replaces it; another name keeps both")
        replace_file(target, [chat.lines(SAVED, local_time())], for_owner)
    except (OSError, ValueError) as error:
        what = f"cannot write {str(path)!r}: {reason_of(error)}"
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        place = "on another disk, or make room" if is_full else "in a folder that is there"
        raise LacliError(what, f"give another name, {place}") from error


def read_chat(path: str | Path) -> SavedChat:
    """Read the chat at the end of a file: of its last session that says something. Damaged lines are left out.

    Of the last line, in which a session may have broken off, nothing is said. Raises LacliError, in one line, for a
    file that holds no chat.
    """
    raw = read_raw(str(path), ordinary=True).removeprefix(codecs.BOM_UTF8)
    chats, left_out = [SavedChat()], []
    lines = raw.removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line, parse_constant=_no_number)
            json.dumps(found, ensure_ascii=False).encode()  # half of a character would be a text for no tokenizer
            begins = found["event"] in (SAVED, SESSION)
            if not begins:
                chats[-1] = _followed(chats[-1], found)
        except DAMAGED as error:
            if number == 1:
                raise LacliError(f"{path} is no saved chat: line 1: {_reason(error)}", "/save writes one") from error
            if number < len(lines):
                left_out.append(number)
            continue
        if begins:
            chats.append(_begun(found, f"{path}, line {number}"))
        elif number == 1:
            raise LacliError(f"{path} is no saved chat: it begins with {found['event']!r}", "/save writes one")
    said = [chat for chat in chats if chat.messages]
    return replace((said or chats)[-1], left_out=tuple(left_out), path=absolute(path))


class Transcript(Closing):
    """--log: a file that grows by a line for each thing that happens in a chat; without a path nothing is written.

    A file that cannot be written any more must not end the chat: `warn` receives a sentence, once.
    """

    def __init__(
        self, path: str | None, warn: Callable[[str], None], clock: Callable[[], datetime] = local_time
    ) -> None:
        """Open a file to add to it. Raises LacliError when that cannot be done, and for a file that is no log."""
        self._path, self._warn, self._clock = path, warn, clock
        self._file = None
        if path is None:
            return
        name = Path(os.path.expanduser(path))
        try:
            kind = _kind(name) if name.is_file() else EMPTY
            if kind == SAVED:
                what = f"{path} was written by /save, and a log grows by the line"
                raise LacliError(what, f"--load {path} --log OTHER goes on with it")
            if kind not in (SESSION, EMPTY):
                raise LacliError(f"{path} exists and is no log of a chat", "give another file to --log")
            torn = kind == SESSION and not name.read_bytes().endswith(b"\n")
            self._file = open(name, "ab", buffering=0, opener=for_owner)  # noqa: SIM115  # closed by close()
            lock(self._file)
        except BlockingIOError as error:
            self.close()
            raise LacliError(f"another chat is writing the log {path}", "give another file to --log") from error
        except (OSError, ValueError) as error:
            what = f"cannot write the log {path}: {reason_of(error)}"
            raise LacliError(what, "give another file to --log") from error
        if torn:
            self._write(b"\n")

    def begin(self, chat: SavedChat) -> None:
        """A session starts, or goes on with a chat that was loaded."""
        self._write(chat.lines(SESSION, self._clock()))

    def message(self, message: Message, answer: Answer | None = None) -> None:
        """A message is complete. `answer`: what it cost, for the model's own."""
        self._write(_message_line(message, self._clock(), answer))

    def changed(self, command: str, **what: Any) -> None:
        """A command changed something: undo, regen (seed), clear, system (content), set (settings, seed), compact."""
        self._write(_line(command, self._clock(), **what))

    @property
    def is_lost(self) -> bool:
        """True if a write failed and the log ended early."""
        return self._path is not None and self._file is None

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _write(self, line: bytes) -> None:
        """Write all of it; after a failure nothing more, since a log with a gap would be another chat."""
        try:
            if self._file and is_deleted(self._file):
                raise OSError(errno.ENOENT, "it was deleted")
            while line and self._file:
                line = line[self._file.write(line) :]
        except OSError as error:
            self.close()
            self._file = None
            self._warn(f"the log {self._path} ends here: {reason_of(error)}")


def _line(event: str, now: datetime, **what: Any) -> bytes:
    line = {"event": event, **what, "time": now.isoformat(timespec="milliseconds")}
    # Of all texts only a model's path may hold bytes that are not UTF-8.
    return json.dumps(line, ensure_ascii=False, allow_nan=False).encode(errors="replace") + b"\n"


def _message_line(message: Message, now: datetime, answer: Answer | None = None) -> bytes:
    """A message; of an answer also its tokens' ids, since its text can be cut into others, and what it cost."""
    more: dict[str, Any] = {"ids": list(message.tokens)} if message.tokens else {}
    if answer:
        run = answer.statistics
        more |= {
            "finish_reason": answer.finish_reason,
            "tokens": run.tokens,
            "tokens_per_step": round(run.tokens_per_step, 4),
            "tokens_per_second": round(run.tokens_per_second, 2),
        }
    return _line("message", now, role=message.role, content=message.content, **more)


def _begun(line: Mapping[str, Any], where: str) -> SavedChat:
    """The chat that a first line begins. Raises LacliError where it is damaged: what follows would be another's."""
    try:
        if line["format"] != FORMAT:
            raise ValueError(f'"format" is not "{FORMAT}"')
        if type(line["version"]) is not int or line["version"] <= 1:
            raise ValueError('"version" is not a whole number from 2')
        if line["version"] > VERSION:
            raise LacliError(
                f"{where} has format {line['version']}, and this lacli reads {VERSION}", "use a newer lacli"
            )
        settings = settings_from_json(line.get("settings", {}))
        model, template, system = (_text(line, name) for name in ("model", "template", "system"))
        if type(context := line.get("context", 0)) is not int or not 0 <= context <= MOST_CELLS:
            raise ValueError('"context" is no number of tokens')
        return SavedChat(model, template, system, settings=settings, seed=_seed(line, -1), context=context)
    except UsageError as error:
        raise LacliError(f"{where}: {error.what}", error.hint) from error
    except DAMAGED as error:
        raise LacliError(f"{where} is no saved chat: {_reason(error)}", "/save writes one") from error


def _followed(chat: SavedChat, line: Mapping[str, Any]) -> SavedChat:
    """The chat after what a line says was done. Raises one of DAMAGED where the line does not fit."""
    chat = replace(chat, seed=_seed(line, chat.seed))
    if line["event"] == "set":
        try:
            return replace(chat, settings=settings_from_json(line["settings"]))
        except UsageError as error:
            raise ValueError(error) from error
    conversation = Conversation(chat.system, chat.messages)
    match line["event"]:
        case "message" if line["role"] == "user":
            conversation.ask(_text(line, "content"))
        case "message":
            if line["role"] != "assistant" or not conversation.is_open:
                raise ValueError("questions and answers do not take turns")
            ids = line.get("ids", [])
            if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
                raise ValueError('"ids" is no list of token ids')
            conversation.answer(_text(line, "content"), ids)
        case "undo":
            conversation.undo()
        case "regen":
            conversation.take_back_answer()
        case "clear":
            conversation.clear()
        case "system":
            conversation.system = _text(line, "content")
        case "compact":
            for _ in range(min(line["dropped"], conversation.questions)):
                conversation.drop_oldest()
    return replace(chat, system=conversation.system, messages=tuple(conversation.messages))


def _seed(line: Mapping[str, Any], otherwise: int) -> int:
    if type(seed := line.get("seed", otherwise)) is not int or not -1 <= seed <= MOST_SEED:
        raise ValueError('"seed" is no seed')
    return seed


def _text(line: Mapping[str, Any], name: str) -> str:
    if not isinstance(text := line.get(name, "" if name != "content" else None), str):
        raise ValueError(f'"{name}" is not a text')
    return text


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "it is not JSON"
    if isinstance(error, TypeError):
        return "it is no object of a chat's"
    return f"it has no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__


def _no_number(text: str) -> NoReturn:
    """For NaN and infinities, which Python's reader of JSON takes and JSON does not have."""
    raise ValueError(f"{text} is no number in JSON")


def _kind(path: Path) -> str:
    """SAVED, SESSION or EMPTY, or "" for a file that is no chat."""
    with path.open("rb") as file:
        beginning = file.read(BEGINNING_BYTES)
    found = BEGINNING.match(beginning)
    return found[1].decode() if found else "" if beginning else EMPTY


def _refuse_others(target: Path, name: str) -> None:
    """Raise LacliError where a file would be lost that is not a saved chat."""
    if target.is_symlink():
        raise LacliError(
            f"{name} is a link, and its target may be a file of another program", "give the name of a file"
        )
    if target.is_dir():
        raise LacliError(f"{name} is a folder", "give the name of a file")
    kind = _kind(target) if target.is_file() else EMPTY
    if kind == SESSION:
        what = f"{name} is a log, which --log adds to and /save does not replace"
        raise LacliError(what, f"give another name; lacli chat --load {name} --log {name} goes on in it")
    if target.exists() and not (target.is_file() and kind in (SAVED, EMPTY)):
        raise LacliError(f"{name} exists and is no saved chat", "give another name")

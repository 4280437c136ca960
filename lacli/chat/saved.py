"""A chat in a file: what /save writes and /load reads, as JSON.

The file holds what was typed and what was answered, with all settings by name; nothing of a model. Keeping a log as
the chat goes is `transcript.py`.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn

from lacli.chat.adjust import Adjusted, value_of, with_values
from lacli.chat.conversation import Message, in_turns
from lacli.chat.keys import ALL, Key, Value
from lacli.chat.logged import (
    BEGINNING_BYTES,
    is_log,
    no_number,
    read_log,
)
from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.sampling import MOST_SEED, bias_words, token_bias
from lacli.text.files import for_owner
from lacli.text.question import decode, read_raw

FORMAT, VERSION = "lacli chat", 1

BEGINNING = re.compile(rb'\s*\{\s*"format":\s*"' + FORMAT.encode() + rb'"\s*,')
ONE_KIND: dict[str, tuple[type, ...]] = {"switch": (bool,), "whole": (int,), "number": (int, float)}
KIND_WORDS = {"switch": "true or false", "whole": "a whole number", "number": "a number"}


@dataclass(frozen=True)
class SavedChat:
    """A conversation with what it takes to go on.

    model: as the user typed it; template: empty for the model's own; seed: the one in use where the user has set none.
    left_out: the numbers of a log's lines that are damaged.
    """

    model: str
    system: str
    messages: tuple[Message, ...]
    adjusted: Adjusted
    template: str = ""
    seed: int = -1
    left_out: tuple[int, ...] = ()


def write_chat(path: str | Path, chat: SavedChat) -> None:
    """Write a chat in one go: a file of that name is whole before and after. Only another chat is written over."""
    text = json.dumps(_as_json(chat), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        target = Path(os.path.expanduser(path))
        _refuse_others(target, str(path))
        _replace_file(target, text.encode())
    except UnicodeEncodeError as error:
        raise LacliError(f"cannot write {path}: a message is not UTF-8 text", "/undo takes it back") from error
    except (OSError, ValueError) as error:
        raise LacliError(
            f"cannot write {str(path)!r}: {reason_of(error)}", "give another name, in a folder that is there"
        ) from error


def read_chat(path: str | Path) -> SavedChat:
    """A chat from its file, or from a log: the one at its end.

    Raises LacliError, in one line, for whatever is wrong with the file.
    """
    try:
        raw = read_raw(str(path), ordinary=True).removeprefix(codecs.BOM_UTF8)
    except ValueError as error:
        raise LacliError(f"cannot read {str(path)!r}: {error}", "check the file's name") from error
    try:
        if is_log(raw[:BEGINNING_BYTES]):
            left_out, found = _of_a_log(raw)
        else:
            left_out, found = (), json.loads(decode(raw, str(path)), parse_constant=no_number)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise LacliError(f"{path} is no saved chat: not JSON at {where}", "/save writes one") from error
    except (ValueError, RecursionError) as error:
        raise LacliError(f"{path} is no saved chat: {error}", "/save writes one") from error
    return replace(_Reader(str(path)).chat(found), left_out=left_out)


def _of_a_log(raw: bytes) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The lines of a log that are damaged, and the chat at its end as a saved one has it."""
    logged = read_log(raw.decode(errors="surrogateescape"))
    return tuple(logged.left_out), {
        "format": FORMAT,
        "version": logged.version,
        "model": logged.model,
        "template": logged.template,
        "system": logged.conversation.system,
        "messages": messages_json(logged.conversation.messages),
        "settings": logged.settings,
    }


def settings_json(adjusted: Adjusted) -> dict[str, Any]:
    """All settings by their fields' names; a bias is written as on the command line, for JSON has no -inf."""
    return {key.field: _plain(value_of(adjusted, key)) for key in ALL.values()} | {"strict": adjusted.decoding.strict}


def messages_json(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Roles and contents, and the tokens of answers: a text can be cut into others, with which a chat parts."""
    plain = [{"role": message.role, "content": message.content} for message in messages]
    return [
        {**each, "tokens": list(message.tokens)} if message.tokens else each
        for each, message in zip(plain, messages, strict=True)
    ]


def _as_json(chat: SavedChat) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": chat.model,
        "template": chat.template,
        "system": chat.system,
        "messages": messages_json(chat.messages),
        "settings": settings_json(chat.adjusted),
        "seed": chat.seed,
    }


def _plain(value: Value) -> bool | int | float | str | list[str]:
    if isinstance(value, tuple):
        return [each if isinstance(each, str) else bias_words(*each) for each in value]
    return value


def _refuse_others(target: Path, name: str) -> None:
    """Raise LacliError where a file would be lost that is not one of ours; an empty one is nobody's."""
    if target.is_symlink():
        raise LacliError(f"{name} is a link, and what it leads to may be somebody's", "give the name of a file")
    if target.is_dir():
        raise LacliError(f"{name} is a folder", "give the name of a file")
    if not target.exists():
        return
    if not target.is_file():
        raise LacliError(f"{name} is no ordinary file", "give another name")
    with target.open("rb") as file:
        beginning = file.read(BEGINNING_BYTES)
    if beginning and not BEGINNING.match(beginning):
        raise LacliError(f"{name} exists and is no saved chat", "give another name")


def _replace_file(target: Path, content: bytes) -> None:
    """Put a file in another's place when it is complete; where that fails nothing is left of it."""
    beside = target.parent / f".lacli-{token_hex(8)}"
    try:
        with open(beside, "xb", opener=for_owner) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, beside)
        os.replace(beside, target)
    finally:
        with suppress(OSError):
            beside.unlink()


class _Reader:
    """Turns a parsed file into a chat, or says in one line what is wrong with it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def chat(self, found: object) -> SavedChat:
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            self._refuse(f'it has no "format": "{FORMAT}"')
        version = found.get("version")
        if type(version) is not int or version < 1:
            self._refuse('"version" is not a whole number from 1')
        if version > VERSION:
            raise LacliError(f"{self._name} has format {version}, and this lacli reads {VERSION}", "use a newer lacli")
        return SavedChat(
            model=self._text(found, "model", ""),
            system=self._text(found, "system", ""),
            messages=self._messages(found.get("messages")),
            adjusted=self._settings(found.get("settings", {})),
            template=self._text(found, "template", ""),
            seed=self._seed(found.get("seed", -1)),
        )

    def _seed(self, found: object) -> int:
        if type(found) is not int or not -1 <= found <= MOST_SEED:
            self._refuse('"seed" is no seed')
        return found

    def _refuse(self, why: str) -> NoReturn:
        raise LacliError(f"{self._name} is no saved chat: {why}", "/save writes one")

    def _text(self, found: Mapping[str, object], name: str, otherwise: str | None = None) -> str:
        text = found.get(name, otherwise)
        if not isinstance(text, str):
            self._refuse(f'"{name}" is not a text')
        try:
            text.encode()
        except UnicodeEncodeError:
            self._refuse(f'"{name}" holds half of a character')
        return text

    def _messages(self, found: object) -> tuple[Message, ...]:
        if not isinstance(found, list):
            self._refuse('"messages" is not a list')
        for each in found:
            if not isinstance(each, dict):
                self._refuse(f'one of "messages" ({type(each).__name__}) is no message')
        roles = [self._text(each, "role") for each in found]
        if not in_turns(roles):
            self._refuse("its messages do not take turns, user and assistant")
        return tuple(
            Message("assistant" if index % 2 else "user", self._text(each, "content"), self._tokens(each))
            for index, each in enumerate(found)
        )

    def _tokens(self, message: Mapping[str, Any]) -> tuple[int, ...]:
        tokens = message.get("tokens", [])
        if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
            self._refuse('"tokens" is no list of token ids')
        return tuple(tokens)

    def _settings(self, found: object) -> Adjusted:
        if not isinstance(found, dict):
            self._refuse('"settings" is not an object')
        unknown = [name for name in found if name not in ALL and name != "strict"]
        if unknown:
            raise LacliError(f"{self._name} has settings that this lacli does not know: {', '.join(unknown)}",
                             "remove them, or use a newer lacli")  # fmt: skip
        strict = found.get("strict", False)
        if not isinstance(strict, bool):
            self._refuse('"strict" is not true or false')
        try:
            changes = {name: self._value(ALL[name], value) for name, value in found.items() if name != "strict"}
            adjusted = with_values(Adjusted(), changes)
        except UsageError as error:
            raise LacliError(f"{self._name}: {error.what}", error.hint) from error
        return replace(adjusted, decoding=replace(adjusted.decoding, strict=strict))

    def _value(self, key: Key, value: object) -> Value:
        if key.kind in ONE_KIND:
            return self._simple(key, value)
        if key.kind in ("texts", "choices", "biases"):
            if not isinstance(value, list):
                self._refuse(f'"{key.field}" is not a list')
            texts = [self._text({key.field: each}, key.field) for each in value]
            return tuple(map(token_bias, texts)) if key.kind == "biases" else tuple(texts)
        text = self._text({key.field: value}, key.field)
        if key.choices and text not in key.choices:
            self._refuse(f'"{key.field}" is {text!r}, and not one of {", ".join(key.choices)}')
        return text

    def _simple(self, key: Key, value: object) -> bool | int | float:
        if not isinstance(value, ONE_KIND[key.kind]) or (isinstance(value, bool) and key.kind != "switch"):
            self._refuse(f'"{key.field}" is not {KIND_WORDS[key.kind]}')
        assert isinstance(value, bool | int | float)
        try:
            return float(value) if key.kind == "number" else value
        except OverflowError:
            self._refuse(f'"{key.field}" is too large')

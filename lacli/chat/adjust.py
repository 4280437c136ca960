"""/set: one setting of a session changed, and the sentence that says so.

Makes new settings of old ones; what that means for a context or a sampler is `talk.py`'s affair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lacli.chat.keys import (
    ALL,
    DEFAULT,
    FILES,
    NO,
    PRESET,
    Group,
    Key,
    Value,
    find_key,
    plain_name,
)
from lacli.chat.values import (
    read_value,
    show_value,
    unquoted,
    usage,
)
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings, flag
from lacli.settings import PRESETS, DecodeSettings, ModeName
from lacli.text.format import did_you_mean
from lacli.text.question import read_text

SETTING = re.compile(r"(?P<key>[^\s=]+)(?:=|\s+=\s+(?=\S)|\s+|$)\s*(?P<value>.*)", re.DOTALL)
"""A key and its value; an = that is all that follows is a value."""

OTHERS = {"grammar": "json_schema", "json_schema": "grammar"}
"""Settings of which one takes the other's place."""

WINDOW = ("window", "ngram", "guesses", "window_init", "window_shift", "pool_prompt", "pool_text", "pool_keys")
LOOKUP = ("lookup_match", "lookup_draft")
AUTO = ("sources", "auto_rows")
UNUSED: dict[ModeName, tuple[str, ...]] = {
    "plain": (*WINDOW, *LOOKUP, *AUTO, "jacobi_iterations"),
    "jacobi": (*WINDOW[1:], *LOOKUP, *AUTO),
    "lookup": (*WINDOW, *AUTO, "jacobi_iterations"),
    "lookahead": (*LOOKUP, *AUTO, "jacobi_iterations"),
    "auto": (*LOOKUP, "pool_prompt", "pool_text", "jacobi_iterations"),
}
"""What a mode does not look at."""


@dataclass(frozen=True)
class Adjusted:
    """All that /set can change. limit: tokens of an answer, -1 for no limit; stops: texts that end it."""

    decoding: DecodeSettings = DecodeSettings()
    sampling: SamplingSettings = SamplingSettings()
    limit: int = -1
    stops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.limit < -1:
            raise UsageError(f"-n is {self.limit}", "-n must be at least -1, which is no limit")


def adjust(now: Adjusted, key: str, value: str) -> tuple[Adjusted, str]:
    """The settings with one key changed, and a sentence on what changed.

    value: as a user writes it; `default` resets the key, and the key `default` resets all. Empty: switches
    a switch on. Raises UsageError or LacliError in one line.
    """
    changes = _changes(key, value.strip())
    new = with_values(now, changes)
    changed = [each for each in ALL.values() if value_of(now, each) != value_of(new, each)]
    if not changed:
        return now, _unchanged(now, changes)
    words = [
        f"{each.name}: {show_value(each, value_of(now, each))} -> {show_value(each, value_of(new, each))}"
        for each in changed
    ]
    return new, "; ".join([", ".join(words), *_notes(new, [each.field for each in changed])])


def key_and_value(argument: str) -> tuple[str, str]:
    """What /set was given: a key and its value, "" for none; they may have = between them, as flags do."""
    found = SETTING.match(argument)
    return (found["key"], found["value"]) if found else (argument, "")


def settings_by_name(now: Adjusted, in_use: Adjusted | None = None) -> list[tuple[Group, str, str, bool]]:
    """Every setting for a person: its group, its name, its value, and whether that is the default.

    in_use: the settings whose values are shown, where something makes them others.
    """
    return [
        (key.group, key.name, show_value(key, value_of(in_use or now, key)), value_of(now, key) == key.default)
        for key in ALL.values()
    ]


def choices(key: str) -> tuple[str, ...]:
    """The values that a key can have, where they are few, for completion; none for an unknown key."""
    if plain_name(key).lower() == PRESET:
        return tuple(PRESETS)
    try:
        found = find_key(key)
    except UsageError:
        return ()
    return ("on", "off") if found.kind == "switch" else found.choices


def value_of(now: Adjusted, key: Key) -> Value:
    """What a key is set to."""
    home = {"guessing": now.decoding, "sampling": now.sampling, "answer": now}[key.group]
    value: Value = getattr(home, key.field)
    return value


def with_values(now: Adjusted, changes: Mapping[str, Value]) -> Adjusted:
    """The settings with these fields changed, all at once. Raises UsageError where they leave their ranges."""
    parts: dict[Group, dict[str, Any]] = {"guessing": {}, "sampling": {}, "answer": {}}
    for field, value in changes.items():
        parts[ALL[field].group][field] = value
    decoding = replace(now.decoding, **parts["guessing"])
    sampling = replace(now.sampling, **parts["sampling"])
    return replace(now, decoding=decoding, sampling=sampling, **parts["answer"])


def _changes(typed: str, value: str) -> dict[str, Value]:
    """The new values by field that a key and its value stand for."""
    name = plain_name(typed).lower()
    if name == DEFAULT:
        return {key.field: key.default for key in ALL.values()}
    if name == PRESET:
        return dict(_preset(value))
    if name in FILES:
        if not value:
            raise UsageError(f"{name} needs a file", f"/set {name} FILE")
        return _one_form(FILES[name], _not_empty(read_text(unquoted(value), ordinary=True), value))
    key = find_key(typed)
    if value.lower() == DEFAULT:
        return {key.field: key.default}
    if not value and key.kind != "switch":
        raise UsageError(f"{key.name} needs a value", f"write {usage(key)}")
    read = read_value(key, value or "on")
    if name.startswith(NO):
        read = not read
    return _one_form(key.field, read) if key.field in OTHERS else {key.field: read}


def _one_form(field: str, value: Value) -> dict[str, Value]:
    """A grammar takes a schema's place, and a schema a grammar's."""
    return {field: value, OTHERS[field]: ""} if value else {field: value}


def _preset(value: str) -> dict[str, int]:
    name = unquoted(value).lower()
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS, "one of " + ", ".join(PRESETS))
        raise UsageError(f"there is no preset {value!r}" if value else "preset needs a name", hint)
    return PRESETS[name]


def _not_empty(text: str, file: str) -> str:
    if not text.strip():
        raise UsageError(f"{file} is empty", "/set grammar none and /set json-schema none clear them")
    return text


def _unchanged(now: Adjusted, changes: Mapping[str, Value]) -> str:
    if len(changes) == len(ALL):
        return "everything is at its default already"
    return ", ".join(
        f"{ALL[field].name} is {show_value(ALL[field], value_of(now, ALL[field]))} already"
        for field in changes
        if len(changes) == 1 or value_of(now, ALL[field]) or field not in OTHERS
    )


def _notes(new: Adjusted, changed: list[str]) -> list[str]:
    """Sentences about what was changed and changes nothing."""
    # Temperature 0 puts all of them to sleep; another change speaks for itself only.
    told = [key for field, key in ALL.items() if "temp" in changed or field in changed]
    idle = [key.name for key in told if flag(key.field) in new.sampling.idle]
    notes = [f"{_listed(idle)} no effect at temperature 0; /set temp 0.8 draws, for example"] if idle else []
    mode = new.decoding.mode
    unused = [field for field in changed if field in UNUSED[mode]]
    # A preset or a reset is for several modes, and no one asked for one of its values.
    if unused and len(unused) == len(changed):
        others = [each for each in UNUSED if not set(changed) & set(UNUSED[each])]
        elsewhere = f", but in {' or '.join(others)}" if others else ""
        notes.append(f"{_listed([ALL[field].name for field in unused])} no effect in mode {mode}{elsewhere}")
    return notes


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last} have" if first else f"{last} has"

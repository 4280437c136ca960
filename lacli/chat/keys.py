"""The settings that a session can change, and every name that a user may know them by.

The keys are made of the settings' own fields, so that a new field has one at once. What a value may be and how it is
written is `values.py`; changing it is `adjust.py`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.settings import (
    FLAG,
    LOADING,
    PLACEMENT,
    REPLICAS,
    DecodeSettings,
    spellings,
)
from lacli.text.format import did_you_mean

Group = Literal["answer", "guessing", "sampling"]
Kind = Literal["switch", "whole", "number", "choice", "choices", "text", "texts", "biases"]
Value = bool | int | float | str | tuple[str, ...] | tuple[tuple[int, float], ...]

SIMPLE: dict[type, Kind] = {bool: "switch", int: "whole", float: "number", str: "text", tuple: "texts"}
NO = "no-"

WITH_THE_MODEL = ("strict", "ordered", "least_outputs")
"""Fields of DecodeSettings that decide how the model is loaded."""

OF_THE_MODEL = ("back",)
"""Those that the model decides."""


@dataclass(frozen=True)
class Key:
    """One setting. field: its name in the settings; name: as it is shown; choices: all values, where they are few."""

    field: str
    group: Group
    kind: Kind
    default: Value
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """W, N and G are called as the paper does, all others as their long flag."""
        flag = FLAG.get(self.field) or next(each for each in spellings(self.field) if each.startswith("--"))
        return flag.lstrip("-")

    @property
    def names(self) -> list[str]:
        """All that a user may type for it, dashes in front apart."""
        also = [NO + self.name] if self.field.startswith("pool_") and self.kind == "switch" else []
        own = self.field.replace("_", "-")
        return list(dict.fromkeys([self.name, *(flag.lstrip("-") for flag in spellings(self.field)), own, *also]))


def _keys(group: Group, settings: type[Any]) -> list[Key]:
    hints = get_type_hints(settings)
    found = []
    for field in fields(settings):
        assert field.default is not MISSING
        if field.name in (*WITH_THE_MODEL, *OF_THE_MODEL):
            continue
        several = get_origin(hints[field.name]) is tuple
        hint = get_args(hints[field.name])[0] if several else hints[field.name]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        kind: Kind = SIMPLE[type(field.default)] if not choices else "choices" if several else "choice"
        if field.name == "logit_bias":
            kind = "biases"
        found.append(Key(field.name, group, kind, field.default, choices))
    return found


ALL: dict[str, Key] = {
    key.field: key
    for key in (
        Key("limit", "answer", "whole", -1),
        Key("stops", "answer", "texts", ()),
        *_keys("guessing", DecodeSettings),
        *_keys("sampling", SamplingSettings),
    )
}
"""Every key by its field's name, in the order in which they are shown."""

DEFAULT, PRESET = "default", "preset"
FILES = {"grammar-file": "grammar", "json-schema-file": "json_schema", "jf": "json_schema"}
"""Keys whose value is a file that holds the value of another key."""

_BY_NAME = {name: key for key in ALL.values() for name in key.names}
_FOLDED = {name.lower(): key for name, key in _BY_NAME.items()}
_SQUEEZED = {name.replace("-", ""): key for name, key in _FOLDED.items() if not name.startswith(NO)}
_WITH_THE_START = {**LOADING, **PLACEMENT, **REPLICAS}
_RESTART = {flag.lstrip("-"): flags[0] for flags in _WITH_THE_START.values() for flag in flags}

KEYS: tuple[str, ...] = (DEFAULT, PRESET, *(key.name for key in ALL.values()), *FILES)
"""What /set takes, one name for each, for completion."""


def plain_name(typed: str) -> str:
    """A key as typed, less its dashes in front, with dashes for underscores."""
    return typed.strip().lstrip("-").replace("_", "-")


def set_name(typed: str) -> str:
    """What /set takes for a name, "" for nothing that it knows."""
    if plain_name(typed).lower() in (DEFAULT, PRESET, *FILES):
        return plain_name(typed).lower()
    try:
        return find_key(typed).name
    except UsageError:
        return ""


def find_key(typed: str) -> Key:
    """The key of a name, as flags and fields are called; its dashes may be left out.

    Raises UsageError for one that cannot be changed.
    """
    name = plain_name(typed)
    folded = name.lower()
    key = _BY_NAME.get(name) or _FOLDED.get(folded) or _SQUEEZED.get(folded.replace("-", ""))
    if key:
        return key
    if folded.replace("-", "_") in WITH_THE_MODEL:
        raise UsageError(
            f"{folded} cannot be changed in a session: it decides how the model is loaded", "start again with --strict"
        )
    if folded in _RESTART:
        flag = _RESTART[folded]
        raise UsageError(f"{folded} cannot be changed in a session", f"start again with {flag}")
    if folded == "system":
        raise UsageError("the system prompt is not a setting", "/system TEXT changes it")
    raise UsageError(f"there is no setting {typed!r}", did_you_mean(name, (*_BY_NAME, *KEYS), "/set lists them"))

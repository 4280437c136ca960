"""The one registry of options: a field of a settings class declares its flags, help, range and names, once.

The command line, /set, saved chats, rows of prompts and requests are made of these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lacli.errors import UsageError

KINDS: dict[object, tuple[str, tuple[type[object], ...]]] = {
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    bool: ("True or False", (bool,)),
}
"""The types of fields that are checked, in words, and the types that they take."""

NOTHING = ("none", "off")
"""What stands for an empty list, where names are expected."""


@dataclass(frozen=True)
class Option:
    """How users name a setting, and which values it takes.

    `kind`: the type of the field `name`. `flags`: its spellings; the first names it in messages and, without dashes, in
    /set. `help`: "" for a field without a flag. `least`, `most`: the range of a number. `request`: its name in
    requests if not `name`. `metavar`, `shown`: its value and its default in help. `read`: makes a value of a text, of
    a `repeated` option one of its values. `variable`: whether the environment sets a default.
    """

    flags: tuple[str, ...] = ()
    help: str = ""
    name: str = ""
    default: Any = None
    kind: Any = None
    least: float | None = None
    most: float | None = None
    request: str = ""
    metavar: str | None = None
    shown: str = ""
    read: Callable[[str], Any] | None = None
    repeated: bool = False
    variable: bool = True

    @property
    def label(self) -> str:
        """The spelling that messages use."""
        return self.flags[0]

    @property
    def words(self) -> tuple[str, ...]:
        """The words that the value can be; empty if it can be others."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def check(self, value: Any) -> None:
        """Raise UsageError for a value of another type, for an unknown word, and for a number out of its range."""
        if get_origin(self.kind) is Literal and value not in self.words:
            raise UsageError(f"{self.label} cannot be {value!r}", f"one of {', '.join(self.words)}")
        if self.kind in KINDS and not isinstance(value, KINDS[self.kind][1]):
            raise UsageError(f"{self.label} is {value!r}", f"it must be {KINDS[self.kind][0]}")
        form = "g" if self.kind is float else ""
        # Written so that "not a number" is out of range.
        if self.least is not None and not value >= self.least:
            raise UsageError(f"{self.label} is {value:{form}}", f"{self.label} must be at least {self.least:{form}}")
        if self.most is not None and not value <= self.most:
            raise UsageError(f"{self.label} is {value:{form}}", f"{self.label} must be at most {self.most:{form}}")


def option(default: Any, help: str, *flags: str, **more: Any) -> Any:
    """Return the dataclass field of an option. `flags`: without any, the field's name is its flag."""
    return field(default=default, metadata={"option": Option(flags, help, **more)})


def options_of(settings: type[Any]) -> Mapping[str, Option]:
    """Return the options of a settings class by their fields' names, those without a flag among them."""
    return _options_of(settings)  # type: ignore[arg-type]  # mypy doubts that classes have hashes


@cache
def _options_of(settings: type[Any]) -> Mapping[str, Option]:
    hints = get_type_hints(settings)
    found = {}
    for each in fields(settings):
        declared: Option = each.metadata.get("option", Option())
        flags = declared.flags or ("--" + each.name.replace("_", "-"),)
        found[each.name] = replace(declared, flags=flags, name=each.name, default=each.default, kind=hints[each.name])
    return found


def check(settings: object) -> None:
    """Raise UsageError for a field of `settings` that is out of its range or of another type than declared."""
    for each in options_of(type(settings)).values():
        each.check(getattr(settings, each.name))

"""/set: changes the settings of a chat, shows them in columns, and keeps them as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from lacli.chat.setting import (
    DEFAULT,
    FILES,
    IN_FILES,
    NO,
    PRESET,
    SETTINGS,
    Setting,
    Value,
    find_setting,
    plain_name,
    unquoted,
)
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings, bias_words
from lacli.settings import PRESETS, SOURCES, DecodeSettings, ModeName
from lacli.text.format import did_you_mean, no_effect
from lacli.text.question import read_text

EXCLUSIVE = {"grammar": "json_schema", "json_schema": "grammar"}
"""Settings that replace each other."""

WINDOW = ("window", "ngram", "guesses", "window_init", "window_shift", "pool_prompt", "pool_text", "pool_keys")
LOOKUP, AUTO = ("lookup_match", "lookup_draft"), ("sources", "auto_rows")
UNUSED: dict[ModeName, tuple[str, ...]] = {
    "plain": (*WINDOW, *LOOKUP, *AUTO, "jacobi_iterations"),
    "jacobi": (*WINDOW[1:], *LOOKUP, *AUTO),
    "lookup": (*WINDOW, *AUTO, "jacobi_iterations"),
    "lookahead": (*LOOKUP, *AUTO, "jacobi_iterations"),
    "auto": (*LOOKUP, "pool_prompt", "pool_text", "jacobi_iterations"),
}
"""Fields that a mode does not read."""

MODE_HELP: Mapping[str, str] = {
    "plain": "no guesses: a token a step",
    "jacobi": "a block of guesses, mended each step",
    "lookup": "what followed the same words before",
    "lookahead": "a window of guesses and a pool: W, N, G",
    "auto": "several sources, as many rows as pay here",
}
"""How each mode guesses."""

KEY_VALUE = re.compile(r"(?:parameter\s+)?(?P<key>[^\s=]+)(?:=|\s+=\s+(?=\S)|\s+|$)\s*(?P<value>.*)", re.DOTALL)
"""A key and its value; an = that is all that follows is a value. Ollama has a word before them."""

COLUMN, MAX_COLUMNS = 26, 4
"""Characters of a setting in the list, which aligns most of them, and settings in a row of a wide terminal."""


@dataclass(frozen=True)
class ChatSettings:
    """All that /set can change. `max_tokens`: of an answer, -1 for no limit; `stops`: texts that end it."""

    decode_settings: DecodeSettings = DecodeSettings()
    sampling: SamplingSettings = SamplingSettings()
    max_tokens: int = -1
    stops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < -1:
            raise UsageError(f"-n is {self.max_tokens}", "-n must be at least -1, which is no limit")

    @property
    def values(self) -> dict[str, Any]:
        """Every setting by its field's name."""
        return {**vars(self), **vars(self.decode_settings), **vars(self.sampling)}

    def with_values(self, changes: Mapping[str, Value]) -> ChatSettings:
        """Change these fields, all at once. Raises UsageError where they leave their ranges."""

        def own(part: object) -> dict[str, Any]:
            return {field: value for field, value in changes.items() if field in vars(part)}

        decode_settings = replace(self.decode_settings, **own(self.decode_settings))
        sampling = replace(self.sampling, **own(self.sampling))
        return replace(self, decode_settings=decode_settings, sampling=sampling, **own(self))

    @property
    def json(self) -> dict[str, Any]:
        """Every setting as JSON has it; a bias is written as on the command line, for JSON has no -inf."""
        own = {field: self.values[field] for field in IN_FILES}
        return own | {"logit_bias": [bias_words(*bias) for bias in self.sampling.logit_bias]}


def set_name(typed: str) -> str:
    """What /set takes for a name, "" for nothing that it knows."""
    if (name := plain_name(typed).lower()) in (DEFAULT, PRESET, *FILES):
        return name
    try:
        return find_setting(typed).name
    except UsageError:
        return ""


def key_and_value(argument: str) -> tuple[str, str]:
    """What /set was given: a key and its value, "" for none; they may have = between them, as flags do."""
    found = KEY_VALUE.match(argument)
    return (found["key"], found["value"]) if found else (argument, "")


def values_of(key: str) -> Mapping[str, str]:
    """The values that a key can have, where they are few, and what each means; none for an unknown key."""
    if plain_name(key).lower() == PRESET:
        return {
            name: " ".join(f"{SETTINGS[field].name}={value}" for field, value in preset.items())
            for name, preset in PRESETS.items()
        }
    try:
        found = find_setting(key)
    except UsageError:
        return {}
    if found.field == "mode":
        return MODE_HELP
    return dict.fromkeys(("on", "off") if isinstance(found.default, bool) else found.words, "")


def adjust(now: ChatSettings, key: str, value: str) -> tuple[ChatSettings, str]:
    """Change one key; the new settings, and a sentence on what changed.

    `value`: as a user writes it; `default` resets the key, and the key `default` resets all. Empty: switches
    a switch on. Raises UsageError or LacliError in one line.
    """
    changes = _changes(key, value.strip())
    new = now.with_values(changes)
    changed = _changed(now, new)
    if not changed:
        return now, _unchanged(now, changes)
    return new, "; ".join([changes_in_words(now, new), *_without_effect(new, [each.field for each in changed])])


def changes_in_words(now: ChatSettings, new: ChatSettings) -> str:
    """The settings that become others, each with both values; "" for none."""
    changed = _changed(now, new)
    return ", ".join(
        f"{each.name}: {each.show(now.values[each.field])} -> {each.show(new.values[each.field])}" for each in changed
    )


def settings_from_json(found: object) -> ChatSettings:
    """The settings that `ChatSettings.json` wrote; those that are left out have their defaults.

    Raises UsageError where they are none.
    """
    if not isinstance(found, dict):
        raise UsageError('"settings" is not an object')
    if unknown := [field for field in found if field not in IN_FILES]:
        raise UsageError(f"this lacli does not know the settings {', '.join(unknown)}", "use a newer lacli")
    if isinstance(names := found.get("sources"), list):
        # Earlier versions had more of them.
        found = {**found, "sources": [name for name in names if name in SOURCES]}
    return ChatSettings().with_values({field: IN_FILES[field].read_json(value) for field, value in found.items()})


def given_beside(saved: ChatSettings, typed: ChatSettings, given: frozenset[str]) -> ChatSettings:
    """Saved settings with the `given` fields as they were typed; a typed grammar replaces a saved schema."""
    changes = {field: typed.values[field] for field in IN_FILES if field in given}
    for form, other in EXCLUSIVE.items():
        if changes.get(form):
            changes.setdefault(other, "")
    return saved.with_values(changes)


def all_settings(now: ChatSettings, width: int = 80, in_use: ChatSettings | None = None) -> str:
    """Every setting in columns under its group, long ones in rows of their own, those that are changed with a star.

    `in_use`: the settings whose values are shown, where something makes them others.
    """
    width = min(width, MAX_COLUMNS * COLUMN)
    rows = []
    for group in dict.fromkeys(setting.group for setting in SETTINGS.values()):
        own = [_listed(setting, now, in_use) for setting in SETTINGS.values() if setting.group == group]
        short = [_indented(text) for text in own if len(text) < COLUMN - 1]
        rows += [group, rendered(Columns(short, width=min(COLUMN, width) - 1), width)]
        rows += [rendered(_indented(text), width) for text in own if len(text) >= COLUMN - 1]
    return "\n".join([*rows, "* is not lacli's default; /set KEY VALUE changes, /set KEY default resets"])


def one_setting(now: ChatSettings, setting: Setting, in_use: ChatSettings | None = None) -> str:
    """A setting's value, its default and what it may be. `in_use`: as in `all_settings`."""
    shown = setting.show((in_use or now).values[setting.field])
    is_default = now.values[setting.field] == setting.default
    default = "the default" if is_default else f"{setting.show(setting.default)} is the default"
    return f"{setting.name} is {shown} ({default}); write {setting.usage}"


def changed_settings(now: ChatSettings) -> str:
    """The settings that are not at their defaults, in one line."""
    changed = [each for each in SETTINGS.values() if now.values[each.field] != each.default]
    return ", ".join(f"{each.name} {each.show(now.values[each.field])}" for each in changed) or "nothing"


def rendered(shown: RenderableType, width: int = 80) -> str:
    """Lines of at most `width` columns, without colours."""
    screen = Console(file=StringIO(), width=width, color_system=None)
    with screen.capture() as captured:
        screen.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _changes(typed: str, value: str) -> dict[str, Value]:
    """The new values by field that a key and its value stand for."""
    name = plain_name(typed).lower()
    if name == DEFAULT:
        return {setting.field: setting.default for setting in SETTINGS.values()}
    if name == PRESET:
        preset = unquoted(value).lower()
        if preset not in PRESETS:
            hint = did_you_mean(preset, PRESETS, "one of " + ", ".join(PRESETS))
            raise UsageError(f"there is no preset {value!r}" if value else "preset needs a name", hint)
        return dict(PRESETS[preset])
    if name in FILES:
        if not value:
            raise UsageError(f"{name} needs a file", f"/set {name} FILE")
        if not (text := read_text(unquoted(value), ordinary=True)).strip():
            raise UsageError(f"{value} is empty", "/set grammar none and /set json-schema none clear them")
        return {FILES[name]: text, EXCLUSIVE[FILES[name]]: ""}
    setting = find_setting(typed)
    if value.lower() == DEFAULT:
        return {setting.field: setting.default}
    if not value and not isinstance(setting.default, bool):
        raise UsageError(f"{setting.name} needs a value", f"write {setting.usage}")
    read = setting.read(value or "on")
    if read and setting.field in EXCLUSIVE:
        return {setting.field: read, EXCLUSIVE[setting.field]: ""}
    return {setting.field: not read if name.startswith(NO) else read}


def _changed(now: ChatSettings, new: ChatSettings) -> list[Setting]:
    return [each for each in SETTINGS.values() if now.values[each.field] != new.values[each.field]]


def _unchanged(now: ChatSettings, changes: Mapping[str, Value]) -> str:
    if len(changes) == len(SETTINGS):
        return "everything is at its default already"
    told = [SETTINGS[field] for field, value in changes.items() if value or len(changes) == 1]
    return ", ".join(f"{each.name} is {each.show(now.values[each.field])} already" for each in told)


def _without_effect(new: ChatSettings, changed: list[str]) -> list[str]:
    """Sentences about settings that were changed and have no effect."""
    # Temperature 0 makes all of these idle; another change concerns its own setting alone.
    told = [setting.name for field, setting in SETTINGS.items() if "temp" in changed or field in changed]
    idle = [name for name in told if f"--{name}" in new.sampling.idle]
    notes = [f"{no_effect(idle)} at temperature 0; /set temp 0.8 draws, for example"] if idle else []
    mode = new.decode_settings.mode
    unused = [field for field in changed if field in UNUSED[mode]]
    # A preset or a reset is for several modes: the user did not ask for one of its values.
    if unused and len(unused) == len(changed):
        others = [each for each in UNUSED if not set(changed) & set(UNUSED[each])]
        elsewhere = f", but in {' or '.join(others)}" if others else ""
        notes.append(f"{no_effect([SETTINGS[field].name for field in unused])} in mode {mode}{elsewhere}")
    return notes


def _listed(setting: Setting, now: ChatSettings, in_use: ChatSettings | None) -> str:
    star = "" if now.values[setting.field] == setting.default else " *"
    return f"{setting.name} {setting.show((in_use or now).values[setting.field])}{star}"


def _indented(text: str) -> Padding:
    return Padding(Text(text, overflow="fold"), (0, 0, 0, 1))


KEYS: Mapping[str, str] = {
    DEFAULT: "reset every setting",
    PRESET: "W, N and G for a kind of text or a size of model",
    **{each.name: f"{each.usage}; {each.show(each.default)} is the default" for each in SETTINGS.values()},
    **{key: f"read {SETTINGS[field].name} from a file" for key, field in FILES.items()},
}
"""What /set takes, one name for each, and what it sets, for completion."""

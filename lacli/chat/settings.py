"""A chat's settings: their names and values as /set shows and reads them, and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings, bias_words, token_bias
from lacli.settings import KINDS, NOTHING, AnswerSettings, DecodeSettings, Option, options_of
from lacli.text.files import check_text
from lacli.text.format import did_you_mean, shortened

Value = bool | int | float | str | tuple[str, ...] | tuple[tuple[int, float], ...]

HEADINGS = {"Answer": AnswerSettings, "Drafting": DecodeSettings, "Sampling": SamplingSettings}
"""The settings by their headings in help."""

IN_FILES: dict[str, Option] = {
    name: each for of in HEADINGS.values() for name, each in options_of(of).items() if each.help
}
"""The settings that a saved chat contains."""

SETTINGS = {name: each for name, each in IN_FILES.items() if name != "strict"}
"""The settings that /set changes, in the order shown."""


def unquoted(text: str) -> str:
    """Return `text` without the quotes (' or ") around all of it; unchanged if there are none."""
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def key_of(setting: Option) -> str:
    """Return a setting's name in /set: its first flag without dashes."""
    return setting.flags[0].lstrip("-")


def choices_of(setting: Option) -> tuple[str, ...]:
    """Return the words that a setting's value can be; () if it is a number or any text."""
    return ("on", "off") if setting.kind is bool else setting.words


def usage_of(setting: Option) -> str:
    """Say in words what a user may type as the value of a setting."""
    if choices := choices_of(setting):
        return " or ".join(choices)
    if setting.name == "logit_bias":
        return "15043+1 or 15043-inf, several separated by spaces, or none"
    if isinstance(setting.default, tuple):
        return "one or more texts, quoted if they contain spaces, or none to clear them"
    return KINDS[setting.kind][0] + (", or none" if setting.kind is str else "")


def read(setting: Option, text: str) -> Value:
    """Convert a user's `text` to a value of `setting`. Raises UsageError if the text has the wrong type."""
    text = check_text(text.strip(), key_of(setting))
    several = isinstance(setting.default, tuple)
    if text.lower() in NOTHING and (several or setting.kind is str):
        return () if several else ""
    if several and setting.read:
        return tuple(map(setting.read, text.replace(",", " ").split()))
    if several:
        return tuple(filter(None, map(_unescaped, re.findall(r'"(?:\\.|[^"\\])*"|\S+', text))))
    if setting.kind is str:
        return unquoted(text)
    try:
        found: Value = TypeAdapter(setting.kind).validate_python(text.lower())
    except ValidationError:
        what = f"{key_of(setting)} is {usage_of(setting)}, not {shortened(text)!r}"
        example = f"for example {show(setting, setting.default)}"
        raise UsageError(what, did_you_mean(text, setting.words, example)) from None
    return found


def _unescaped(word: str) -> str:
    """Return `word` without its double quotes and with JSON escapes such as \\n decoded; unchanged if it is invalid."""
    try:
        return str(json.loads(word if word.startswith('"') else f'"{word}"', strict=False))
    except ValueError:
        return word


def show(setting: Option, value: Value) -> str:
    """Return a value as one line that a user could type; a text is cut to 40 characters."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str):
        return value if setting.words else shortened(" ".join(value.split()), 40) or "none"
    if not isinstance(value, tuple):
        return str(value).removesuffix(".0")
    shown = (json.dumps(each, ensure_ascii=False) if isinstance(each, str) else bias_words(*each) for each in value)
    return " ".join(shown) or "none"


BY_KEY = {
    key.lower(): setting
    for setting in SETTINGS.values()
    for key in (*(flag.lstrip("-") for flag in setting.flags), setting.name.replace("_", "-"))
}
BY_KEY["n"] = SETTINGS["max_tokens"]  # the paper's N is a capital
BY_KEY["N"] = SETTINGS["ngram"]
"""Settings by all names that /set accepts, in lower case."""

KEYS: Mapping[str, str] = {
    key_of(each): f"{usage_of(each)}; {show(each, each.default)} is the default" for each in SETTINGS.values()
}
"""One name of each setting and its possible values, for completion."""


@dataclass(frozen=True)
class ChatSettings(AnswerSettings):
    decode_settings: DecodeSettings = DecodeSettings()
    sampling: SamplingSettings = SamplingSettings()

    @property
    def values(self) -> dict[str, Any]:
        """Every setting of the chat by field name."""
        return {**vars(self), **vars(self.decode_settings), **vars(self.sampling)}

    def with_values(self, changes: Mapping[str, Value]) -> ChatSettings:
        """Return the settings with `changes`, by field name, applied. Raises UsageError for values out of range."""

        def own(part: object) -> dict[str, Any]:
            return {field: value for field, value in changes.items() if field in vars(part)}

        decode_settings = replace(self.decode_settings, **own(self.decode_settings))
        sampling = replace(self.sampling, **own(self.sampling))
        return replace(self, decode_settings=decode_settings, sampling=sampling, **own(self))

    @property
    def json(self) -> dict[str, Any]:
        """Every setting by field name, for JSON. Logit biases are texts as on the command line: JSON has no -inf."""
        own = {field: self.values[field] for field in IN_FILES}
        return own | {"logit_bias": [bias_words(*bias) for bias in self.sampling.logit_bias]}


def settings_from_json(found: object) -> ChatSettings:
    """Return the settings in `found`, as `ChatSettings.json` wrote them.

    Missing fields have defaults, unknown ones are ignored. Raises UsageError if `found` is no object or has a wrong
    value.
    """
    if not isinstance(found, dict):
        raise UsageError('the field "settings" is not a JSON object')
    known = {field: value for field, value in found.items() if field in IN_FILES}
    return ChatSettings().with_values({field: _read_json(IN_FILES[field], value) for field, value in known.items()})


def _read_json(setting: Option, found: object) -> Value:
    try:
        if setting.name == "logit_bias":
            return tuple(map(token_bias, TypeAdapter(list[str]).validate_python(found, strict=True)))
        value: Value = TypeAdapter(setting.kind).validate_json(json.dumps(found), strict=True)
    except (ValidationError, UsageError) as error:
        words = f'"{setting.name}" cannot be {shortened(json.dumps(found))}'
        raise UsageError(words, f"give {usage_of(setting)}") from error
    return value


def find_setting(typed: str) -> Option:
    """Return the setting with this flag or field name. Raises UsageError for a name that /set does not accept."""
    name = typed.strip().lstrip("-").replace("_", "-")
    if found := BY_KEY.get(name) or BY_KEY.get(name.lower()):
        return found
    otherwise = "/set lists them; to change flags of the model, such as -c, start again with --load FILE"
    raise UsageError(f"there is no setting {typed!r}", did_you_mean(name, BY_KEY, otherwise))


def adjust(settings: ChatSettings, key: str, value: str) -> ChatSettings:
    """Return the settings with `key` set to the typed `value`; "default" resets it. Raises LacliError if impossible."""
    setting = find_setting(key)
    found = setting.default if value.strip().lower() == "default" else read(setting, value)
    setting.check(found, key.strip())
    return settings.with_values({setting.name: found})


def changes_in_words(old: ChatSettings, new: ChatSettings) -> str:
    """Return the settings that differ, each with its old and new value, in words; "" if none differ."""
    return ", ".join(
        f"{key_of(each)}: {show(each, old.values[each.name])} -> {show(each, new.values[each.name])}"
        for each in SETTINGS.values()
        if old.values[each.name] != new.values[each.name]
    )


def all_settings(settings: ChatSettings) -> str:
    """Return all settings in words: first the ones that are not at their default, then the others by heading."""
    groups = {heading: list[str]() for heading in ("Changed", *HEADINGS)}
    for each in SETTINGS.values():
        value = settings.values[each.name]
        own = next(heading for heading, of in HEADINGS.items() if each.name in options_of(of))
        groups[own if value == each.default else "Changed"].append(f"{key_of(each)} {show(each, value)}")
    shown = [f"{heading}:\n  {', '.join(found)}" for heading, found in groups.items() if found]
    return "\n".join([*shown, "/set KEY VALUE changes, /set KEY default resets"])


def one_setting(settings: ChatSettings, setting: Option) -> str:
    """Return a sentence with a setting's value, its default and its possible values."""
    value, default = show(setting, settings.values[setting.name]), show(setting, setting.default)
    return f"{key_of(setting)} is {value} ({default} is the default); write {usage_of(setting)}"

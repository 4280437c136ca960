"""/set: the settings of a chat, made of the fields of the settings' own dataclasses: a new field is one at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings, bias_words, token_bias
from lacli.settings import ANSWER, LETTERS, NOTHING, PRESETS, SOURCES, DecodeSettings, names_in, spellings
from lacli.text.format import did_you_mean, no_effect
from lacli.text.question import check_text, read_text

Value = bool | int | float | str | tuple[str, ...] | tuple[tuple[int, float], ...]

WITH_THE_MODEL = ("strict", "ordered", "min_outputs")
"""Fields of DecodeSettings that decide how the model is loaded."""

NOT_SET = (
    *(*WITH_THE_MODEL, "max_rollback", "leaves"),
    *("window_init", "window_shift", "pool_prompt", "pool_text", "pool_keys"),
)
"""Fields of DecodeSettings that no user sets in a chat: those of the model, and ablations of the paper's algorithm."""

DEFAULT, PRESET = "default", "preset"
"""Keys that stand for several settings."""

FILES = {"grammar-file": "grammar", "json-schema-file": "json_schema", "jf": "json_schema"}
"""Keys whose value is a file that holds the value of another key."""

EXCLUSIVE = {"grammar": "json_schema", "json_schema": "grammar"}
"""Settings that replace each other."""

SWITCHES = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
WORD = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|\S+', re.DOTALL)
SHOWN_CHARACTERS = 40


def unquoted(text: str) -> str:
    """A whole text without the quotes around it; inside double ones a backslash before a quote or itself goes too."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    if len(text) > 1 and text[0] == text[-1] == '"':
        return re.sub(r'\\(["\\])', r"\1", text[1:-1])
    return text


def _shown(item: str | tuple[int, float]) -> str:
    return json.dumps(item, ensure_ascii=False) if isinstance(item, str) else bias_words(*item)


def shortened(text: str) -> str:
    """A text in one line of at most SHOWN_CHARACTERS."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 3] + "..."


@dataclass(frozen=True)
class Setting:
    """One key of /set. `field`: its name in the settings. `flags`: as on the command line. `words`: values, if few."""

    field: str
    default: Value
    flags: tuple[str, ...]
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that is shown: the paper's W, N and G, -n, else the first long flag."""
        long = (flag for flag in self.flags if flag.startswith("--"))
        return (self.flags[0] if self.field in (*LETTERS, "max_tokens") else next(long)).lstrip("-")

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it can have, if they are few."""
        return ("on", "off") if isinstance(self.default, bool) else self.words

    @property
    def usage(self) -> str:
        """What can be typed as a value."""
        if self.choices:
            several = isinstance(self.default, tuple)
            return f"some of {', '.join(self.words)}, or none" if several else " or ".join(self.choices)
        if self.field == "logit_bias":
            return "15043+1 or 15043-inf, several with spaces between, or none"
        texts = "one or more texts, quoted where they hold spaces, or none to clear them"
        by_type = {int: "a whole number", float: "a number", str: "a text, or none", tuple: texts}
        return by_type[type(self.default)]

    def read(self, text: str) -> Value:
        """The value that a user typed. Raises UsageError for another type."""
        text = check_text(text.strip(), self.name)
        if isinstance(self.default, bool):
            if text.lower() not in SWITCHES:
                raise self._other(text)
            return SWITCHES[text.lower()]
        if isinstance(self.default, int | float):
            try:
                return type(self.default)(text)
            except ValueError:
                raise self._other(text) from None
        if isinstance(self.default, tuple):
            return self._read_several(text)
        if self.words and unquoted(text).lower() not in self.words:
            raise UsageError(f"{self.name} cannot be {text!r}", did_you_mean(text, self.words, self.usage))
        if self.words:
            return unquoted(text).lower()
        return "" if text.lower() in NOTHING else unquoted(text)

    def _read_several(self, text: str) -> Value:
        if text.lower() in (*NOTHING, '""', "''"):
            return ()
        if self.words:
            return names_in(text)
        if self.field == "logit_bias":
            return tuple(token_bias(bias) for bias in text.replace(",", " ").split())
        texts = tuple(self._unescaped(word) for word in WORD.findall(text))
        if "" in texts:
            raise UsageError(f"{self.name}: an empty text is everywhere", f"/set {self.name} none for none at all")
        return texts

    def read_json(self, found: object) -> Value:
        """The value that `ChatSettings.json` wrote. Raises UsageError for another type."""
        if isinstance(self.default, tuple):
            if isinstance(found, list | tuple) and all(isinstance(each, str) for each in found):
                return tuple(map(token_bias, found)) if self.field == "logit_bias" else tuple(found)
        elif type(found) is type(self.default) or (type(found) is int and isinstance(self.default, float)):
            try:
                return type(self.default)(found)
            except OverflowError:
                pass
        raise UsageError(f'"{self.field}" cannot be {shortened(json.dumps(found))}', f"give {self.usage}")

    def show(self, value: Value) -> str:
        """A value in one short line, as it can be typed again; a long text is cut."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple):
            plain = (each if self.words else _shown(each) for each in value)
            return " ".join(map(str, plain)) or "none"
        if isinstance(value, str):
            return value if self.words else shortened(value) or "none"
        return str(value).removesuffix(".0")

    def _other(self, text: str) -> UsageError:
        return UsageError(
            f"{self.name} is {self.usage}, not {shortened(text)!r}", f"for example {self.show(self.default)}"
        )

    def _unescaped(self, word: str) -> str:
        """A text of a list: as it stands between single quotes, elsewhere with JSON's escapes, \\n for example."""
        if len(word) > 1 and word[0] == word[-1] == "'":
            return word[1:-1]
        quoted = len(word) > 1 and word[0] == word[-1] == '"'
        if len(word) > 1 and word[0] in "\"'" and not quoted:
            raise UsageError(f"{self.name}: a quote is not closed at {shortened(word)}", "close it")
        try:
            return str(json.loads(word if quoted else f'"{word}"', strict=False))
        except ValueError:
            return word[1:-1] if quoted else word


def _settings(of: type[DecodeSettings | SamplingSettings]) -> list[Setting]:
    hints, found = get_type_hints(of), []
    for field in fields(of):
        hint = get_args(hints[field.name])[0] if get_origin(hints[field.name]) is tuple else hints[field.name]
        words = get_args(hint) if get_origin(hint) is Literal else ()
        if field.name not in NOT_SET:
            default: Any = field.default
            found.append(Setting(field.name, default, spellings(field.name), words))
    return found


_LENGTH_FLAGS, _STOP_FLAGS = ANSWER.values()
SETTINGS: dict[str, Setting] = {
    setting.field: setting
    for setting in (
        Setting("max_tokens", -1, _LENGTH_FLAGS),
        Setting("stops", (), _STOP_FLAGS),
        *_settings(DecodeSettings),
        *_settings(SamplingSettings),
    )
}
"""Every setting by its field's name, in the order in which they are shown."""

IN_FILES = {**SETTINGS, "strict": Setting("strict", False, spellings("strict"))}
"""Those that a saved chat has; /set cannot change the last one."""

_BY_NAME = {
    name.lower(): setting
    for setting in SETTINGS.values()
    for name in (setting.name, *(flag.lstrip("-") for flag in setting.flags), setting.field.replace("_", "-"))
}
_BY_NAME["n"] = SETTINGS["max_tokens"]  # the paper's N is a capital
_BY_NAME["N"] = SETTINGS["ngram"]

KEYS: Mapping[str, str] = {
    DEFAULT: "reset every setting",
    PRESET: "W, N and G for a kind of text or a size of model",
    **{each.name: f"{each.usage}; {each.show(each.default)} is the default" for each in SETTINGS.values()},
    **{key: f"read {SETTINGS[field].name} from a file" for key, field in FILES.items()},
}
"""What /set takes, one name for each, and what it sets, for completion."""


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
        """Change these fields, all at once. Raises UsageError if they leave their ranges."""

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


def settings_from_json(found: object) -> ChatSettings:
    """The settings that `ChatSettings.json` wrote; those that are left out have their defaults.

    Names that this version does not know are ignored. Raises UsageError for what is no settings.
    """
    if not isinstance(found, dict):
        raise UsageError('"settings" is not an object')
    known = {field: value for field, value in found.items() if field in IN_FILES}
    if isinstance(names := known.get("sources"), list):
        # Earlier versions had more of them.
        known["sources"] = [name for name in names if name in SOURCES]
    return ChatSettings().with_values({field: IN_FILES[field].read_json(value) for field, value in known.items()})


def given_beside(saved: ChatSettings, typed: ChatSettings, given: frozenset[str]) -> ChatSettings:
    """Saved settings with the `given` fields as they were typed; a typed grammar replaces a saved schema."""
    changes = {field: typed.values[field] for field in IN_FILES if field in given}
    for form, other in EXCLUSIVE.items():
        if changes.get(form):
            changes.setdefault(other, "")
    return saved.with_values(changes)


def plain_name(typed: str) -> str:
    """A key as typed, without its dashes in front, with dashes for underscores."""
    return typed.strip().lstrip("-").replace("_", "-")


def find_setting(typed: str) -> Setting:
    """The setting of a name, as flags and fields are called. Raises UsageError for one that cannot be changed."""
    name = plain_name(typed)
    if found := _BY_NAME.get(name) or _BY_NAME.get(name.lower()):
        return found
    known = (*_BY_NAME, DEFAULT, PRESET, *FILES)
    otherwise = "/set lists them; flags of the model, such as -c, are for another start with --load FILE"
    raise UsageError(f"there is no setting {typed!r}", did_you_mean(name, known, otherwise))


def values_of(key: str) -> tuple[str, ...]:
    """The values that a key can have, if they are few."""
    if plain_name(key).lower() == PRESET:
        return tuple(PRESETS)
    found = _BY_NAME.get(plain_name(key).lower())
    return found.choices if found else ()


def adjust(now: ChatSettings, key: str, value: str) -> tuple[ChatSettings, str]:
    """Change one key; the new settings, and a sentence on what changed.

    `value`: as a user writes it; `default` resets the key, and the key `default` resets all. Raises UsageError or
    LacliError in one line.
    """
    changes = _changes(key, value.strip())
    new = now.with_values(changes)
    if new == now:
        told = [SETTINGS[field] for field in changes][:1] if len(changes) == 1 else []
        words = [f"{each.name} is {each.show(now.values[each.field])} already" for each in told]
        return now, "".join(words) or "nothing changed"
    # Temperature 0 makes all of these idle; another change concerns its own setting alone.
    told = [each for field, each in SETTINGS.items() if "temp" in changes or field in changes]
    idle = [each.name for each in told if f"--{each.name}" in new.sampling.idle]
    notes = [f"{no_effect(idle)} at temperature 0; /set temp 0.8 draws, for example"] if idle else []
    return new, "; ".join([changes_in_words(now, new), *notes])


def changes_in_words(now: ChatSettings, new: ChatSettings) -> str:
    """The settings that become others, each with both values; "" for none."""
    changed = [each for each in SETTINGS.values() if now.values[each.field] != new.values[each.field]]
    return ", ".join(
        f"{each.name}: {each.show(now.values[each.field])} -> {each.show(new.values[each.field])}" for each in changed
    )


def _changes(typed: str, value: str) -> dict[str, Value]:
    """The new values by field that a key and its value stand for."""
    name = plain_name(typed).lower()
    if name == DEFAULT:
        return {setting.field: setting.default for setting in SETTINGS.values()}
    if name == PRESET:
        if value.lower() not in PRESETS:
            raise UsageError(f"there is no preset {value!r}", "one of " + ", ".join(PRESETS))
        return dict(PRESETS[value.lower()])
    if name in FILES:
        if not (value and (text := read_text(unquoted(value), ordinary=True)).strip()):
            raise UsageError(f"{name} needs a file that is not empty", f"/set {name} FILE")
        return {FILES[name]: text, EXCLUSIVE[FILES[name]]: ""}
    setting = find_setting(typed)
    if value.lower() == DEFAULT:
        return {setting.field: setting.default}
    read = setting.read(value)
    if read and setting.field in EXCLUSIVE:
        return {setting.field: read, EXCLUSIVE[setting.field]: ""}
    return {setting.field: read}


def all_settings(now: ChatSettings, width: int = 80) -> str:
    """Every setting in columns, with a star at those that are changed."""
    from rich.columns import Columns
    from rich.console import Console
    from rich.text import Text

    shown = [
        f"{each.name} {each.show(now.values[each.field])}{'' if now.values[each.field] == each.default else ' *'}"
        for each in SETTINGS.values()
    ]
    screen = Console(width=width, color_system=None)
    with screen.capture() as captured:
        screen.print(Columns([Text(each) for each in shown], padding=(0, 2), column_first=True))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join([*lines, "* is not lacli's default; /set KEY VALUE changes, /set KEY default resets"])


def one_setting(now: ChatSettings, setting: Setting) -> str:
    """A setting's value, its default and what it may be."""
    value, default = setting.show(now.values[setting.field]), setting.show(setting.default)
    return f"{setting.name} is {value} ({default} is the default); write {setting.usage}"


def changed_settings(now: ChatSettings) -> str:
    """The settings that are not at their defaults, in one line."""
    changed = [each for each in SETTINGS.values() if now.values[each.field] != each.default]
    return ", ".join(f"{each.name} {each.show(now.values[each.field])}" for each in changed) or "nothing"

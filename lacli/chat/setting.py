"""A setting of a chat: the names it has, what may be typed for it, and how it is read and shown.

The settings are made of the fields of the settings' own dataclasses: a new field is one at once.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings, bias_words, token_bias
from lacli.settings import ANSWER, LETTERS, LOADING, NOTHING, PLACEMENT, REPLICAS, DecodeSettings, names_in, spellings
from lacli.text.format import did_you_mean
from lacli.text.question import check_text

Value = bool | int | float | str | tuple[str, ...] | tuple[tuple[int, float], ...]

WITH_THE_MODEL = ("strict", "ordered", "min_outputs")
"""Fields of DecodeSettings that decide how the model is loaded."""

OF_THE_MODEL = ("max_rollback", "leaves")
"""Those that the model and the context decide."""

DEFAULT, PRESET = "default", "preset"
"""Keys that stand for several settings."""

FILES = {"grammar-file": "grammar", "json-schema-file": "json_schema", "jf": "json_schema"}
"""Keys whose value is a file that holds the value of another key."""

NO = "no-"
"""In front of a switch's name, turns it off."""

SWITCHES = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
WORD = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|\S+', re.DOTALL)
SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Setting:
    """One key of /set. `field`: its name in the settings. `flags`: as on the command line. `words`: values, if few."""

    field: str
    group: str
    default: Value
    flags: tuple[str, ...]
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that is shown: the paper's W, N and G, -n, else the first long flag."""
        long = (flag for flag in self.flags if flag.startswith("--"))
        return (self.flags[0] if self.field in (*LETTERS, "max_tokens") else next(long)).lstrip("-")

    @property
    def names(self) -> list[str]:
        """All names that a user may type, without the dashes in front."""
        negated = [NO + self.name] if self.field.startswith("pool_") and isinstance(self.default, bool) else []
        flags = [flag.lstrip("-") for flag in self.flags]
        return list(dict.fromkeys([self.name, *flags, self.field.replace("_", "-"), *negated]))

    @property
    def usage(self) -> str:
        """What can be typed as a value."""
        if self.words:
            several = isinstance(self.default, tuple)
            return f"some of {', '.join(self.words)}, or none" if several else " or ".join(self.words)
        if self.field == "logit_bias":
            return "15043+1 or 15043-inf, several with spaces between, or none"
        if self.field == "max_tokens":
            return "a whole number, -1 for no limit"
        texts = "one or more texts, quoted where they hold spaces, or none to clear them"
        by_type = {bool: "on or off", int: "a whole number", float: "a number", str: "a text, or none", tuple: texts}
        return by_type[type(self.default)]

    def read(self, text: str) -> Value:
        """The value that a user typed. Raises UsageError where it has another type."""
        text = check_text(text.strip(), self.name)
        if isinstance(self.default, bool):
            if text.lower() not in SWITCHES:
                raise UsageError(f"{self.name} is on or off, not {text!r}", f"/set {self.name} on")
            return SWITCHES[text.lower()]
        if isinstance(self.default, int | float):
            try:
                return type(self.default)(text)
            except ValueError:
                what = f"{self.name} is {self.usage}, not {shortened(text)!r}"
                first, _, more = text.partition(" ")
                hint = f"one setting at a time: /set {self.name} {first}" if more else ""
                raise UsageError(what, hint or f"{self.show(self.default)} is the default") from None
        several = isinstance(self.default, tuple)
        if several and text.lower() in (*NOTHING, '""', "''"):
            return ()
        if self.words:
            chosen = names_in(text) if several else (unquoted(text).lower(),)
            for word in chosen:
                if word not in self.words:
                    raise UsageError(f"{self.name} cannot be {word!r}", did_you_mean(word, self.words, self.usage))
            return chosen if several else chosen[0]
        if isinstance(self.default, str):
            return "" if text.lower() in NOTHING else unquoted(text)
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


def _settings(group: str, of: type[DecodeSettings | SamplingSettings]) -> list[Setting]:
    hints, found = get_type_hints(of), []
    for field in fields(of):
        hint = get_args(hints[field.name])[0] if get_origin(hints[field.name]) is tuple else hints[field.name]
        words = get_args(hint) if get_origin(hint) is Literal else ()
        if field.name not in (*WITH_THE_MODEL, *OF_THE_MODEL):
            default: Any = field.default
            found.append(Setting(field.name, group, default, spellings(field.name), words))
    return found


_LENGTH_FLAGS, _STOP_FLAGS = ANSWER.values()
SETTINGS: dict[str, Setting] = {
    setting.field: setting
    for setting in (
        Setting("max_tokens", "answer", -1, _LENGTH_FLAGS),
        Setting("stops", "answer", (), _STOP_FLAGS),
        *_settings("guessing", DecodeSettings),
        *_settings("sampling", SamplingSettings),
    )
}
"""Every setting by its field's name, in the order in which they are shown."""

IN_FILES = {**SETTINGS, "strict": Setting("strict", "guessing", False, spellings("strict"))}
"""Those that a saved chat has; /set cannot change the last one."""

_AS_WRITTEN = {name: setting for setting in SETTINGS.values() for name in setting.names}
_BY_NAME = {name.lower(): setting for name, setting in _AS_WRITTEN.items()} | _AS_WRITTEN
_BY_NAME["num-predict"] = SETTINGS["max_tokens"]  # as Ollama calls it
_SQUEEZED = {name.lower().replace("-", ""): setting for name, setting in _BY_NAME.items() if NO not in name}
_RESTART = {flag.lstrip("-"): flags[0] for flags in (LOADING | PLACEMENT | REPLICAS).values() for flag in flags}
_RESTART |= dict.fromkeys(("num-ctx", "ctx", "context"), "-c")  # as others call it
_COMMANDS = {
    "system": ("the system prompt", "/system TEXT changes it"),
    "verbose": ("what an answer cost", "/stats shows it, /status the line of numbers"),
    "status": ("the line of numbers", "/status on or off"),
    **dict.fromkeys(("color", "colour"), ("the colour of guessed tokens", "/color on or off")),
    "format": ("the form of an answer", "/set json-schema {} makes it JSON"),
}
"""What is no setting: what it is in words, and the command that has it."""


def plain_name(typed: str) -> str:
    """A key as typed, without its dashes in front, with dashes for underscores."""
    return typed.strip().lstrip("-").replace("_", "-")


def find_setting(typed: str) -> Setting:
    """The setting of a name, as flags and fields are called; its dashes may be left out.

    Raises UsageError for one that cannot be changed.
    """
    name = plain_name(typed)
    folded = name.lower()
    if found := _BY_NAME.get(name) or _BY_NAME.get(folded) or _SQUEEZED.get(folded.replace("-", "")):
        return found
    if folded.replace("-", "_") in WITH_THE_MODEL:
        what = f"{folded} cannot be changed in a session: it decides how the model is loaded"
        raise UsageError(what, "start again with --strict")
    if folded in _RESTART:
        kept = "/save FILE and --load FILE keep the chat"
        raise UsageError(f"{folded} cannot be changed in a session", f"start again with {_RESTART[folded]}; {kept}")
    if folded in _COMMANDS:
        what, hint = _COMMANDS[folded]
        raise UsageError(f"{what} is not a setting", hint)
    known = (*_BY_NAME, DEFAULT, PRESET, *FILES)
    raise UsageError(f"there is no setting {typed!r}", did_you_mean(name, known, "/set lists them"))


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

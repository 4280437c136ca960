"""A setting's value as a user writes and reads it.

Text to value and back, by kind; ranges are checked by the settings, names are `keys.py`.
"""

from __future__ import annotations

import re

from lacli.chat.keys import Key, Value
from lacli.errors import UsageError
from lacli.llamacpp.sampling import bias_words, token_bias
from lacli.settings import NOTHING, names_or_none
from lacli.text.format import did_you_mean
from lacli.text.question import check_text

SWITCHES = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
EMPTY = ('""', "''")

WORD = re.compile(r"""(?P<double>"(?:\\.|[^"\\])*")|(?P<single>'[^']*')|(?P<bare>\S+)""", re.DOTALL)
ESCAPED = re.compile(r"""\\([ntr\\"' ])""")
LETTERS = {"n": "\n", "t": "\t", "r": "\r"}
SHOWN_CHARACTERS = 40


def read_value(key: Key, text: str) -> Value:
    """The value that a user wrote for a key. Raises UsageError, in one line, for what is none of its kind."""
    text = check_text(text.strip(), key.name)
    match key.kind:
        case "switch":
            return _switch(key, text)
        case "whole" | "number":
            return _number(key, text)
        case "choice":
            return _choice(key, text, key.name)
        case "text":
            return "" if text.lower() in NOTHING else unquoted(text)
        case "choices":
            return tuple(_choice(key, name, key.name.removesuffix("s")) for name in names_or_none(text))
        case "texts":
            return () if text.lower() in (*NOTHING, *EMPTY) else _texts(key, text)
        case "biases":
            return () if text.lower() in NOTHING else tuple(map(token_bias, text.replace(",", " ").split()))


def show_value(key: Key, value: Value) -> str:
    """A value in one short line, as it can be typed again; a long text is cut."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return value if key.kind == "choice" else _shortened(value) or "none"
    if key.kind == "choices":
        return " ".join(str(each) for each in value) or "none"
    return " ".join(quoted(each) if isinstance(each, str) else bias_words(*each) for each in value) or "none"


def usage(key: Key) -> str:
    """What can be written for a key."""
    words = {
        "switch": "on or off",
        "whole": "a whole number",
        "number": "a number",
        "choice": " or ".join(key.choices),
        "choices": f"some of {', '.join(key.choices)}, or none",
        "text": "a text, or none",
        "texts": "one or more texts, quoted where they hold spaces, or none to clear them",
        "biases": "15043+1 or 15043-inf, several with spaces between, or none",
    }
    return words[key.kind]


def unquoted(text: str) -> str:
    """A whole text without the quotes around it; inside double ones a backslash before a quote or itself goes too."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    if len(text) > 1 and text[0] == text[-1] == '"':
        return re.sub(r'\\(["\\])', r"\1", text[1:-1])
    return text


def quoted(text: str) -> str:
    """A text in double quotes, in one line."""
    for plain, letter in (("\\", "\\"), ('"', '"'), ("\n", "n"), ("\t", "t"), ("\r", "r")):
        text = text.replace(plain, "\\" + letter)
    return f'"{text}"'


def _switch(key: Key, text: str) -> bool:
    if text.lower() not in SWITCHES:
        raise UsageError(f"{key.name} is on or off, not {text!r}", f"/set {key.name} on")
    return SWITCHES[text.lower()]


def _number(key: Key, text: str) -> float:
    whole = key.kind == "whole"
    try:
        return int(text) if whole else float(text)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        hint = f"{show_value(key, key.default)} is the default"
        raise UsageError(f"{key.name} is {kind}, not {_shortened(text)!r}", hint) from None


def _choice(key: Key, text: str, noun: str) -> str:
    wanted = unquoted(text).lower()
    if wanted not in key.choices:
        several = key.kind == "choices"
        hint = did_you_mean(wanted, key.choices, usage(key) if several else "one of " + ", ".join(key.choices))
        raise UsageError(f"there is no {noun} {text!r}", hint)
    return wanted


def _texts(key: Key, text: str) -> tuple[str, ...]:
    found = []
    for word in WORD.finditer(text):
        if word["bare"] and len(word["bare"]) > 1 and word["bare"][0] in "\"'":
            raise UsageError(f"{key.name}: a quote is not closed at {_shortened(text[word.start() :])}", "close it")
        inner = word[0] if word["bare"] else word[0][1:-1]
        found.append(inner if word["single"] else ESCAPED.sub(lambda at: LETTERS.get(at[1], at[1]), inner))
    if "" in found:
        raise UsageError(f"{key.name}: an empty text is everywhere", f"/set {key.name} none for none at all")
    return tuple(found)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 3] + "..."

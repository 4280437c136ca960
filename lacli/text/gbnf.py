"""GBNF grammars: what crashes llama.cpp or never returns from it, and parts that its converter gets wrong."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lacli.errors import UsageError

TOKEN = re.compile(
    r'#[^\n]*|"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|!?<[^>\n]*>|(?P<rule>[\w-]+)[ \t]*::='
    r"|\{\s*(?P<least>\d{0,9})\s*,?\s*(?P<most>\d{0,9})\s*\}|[\w-]+|[.()|*+?]"
)
"""The parts of a grammar; what stands between them is llama.cpp's parser's to refuse."""

DEEPEST, MOST_RULES = 1000, 5000
"""llama.cpp's parser recurses on each parenthesis and on each rule that begins with a rule."""

MOST_DIGITS = 16
"""Digits of a whole number without a bound, as the converter of JSON schemas has it."""

MOST_REPEATS = 8
"""Repeats of what may be empty, multiplied where they stand inside each other.

llama.cpp follows each of them at each character, so that a token takes this to the power of its length: on the bundled
model's vocabulary 0.02 s with 8 repeats and 33 s with 16.
"""


LONGEST_RUN = 1000
"""llama.cpp refuses a grammar with a longer run of optional parts."""

UNSAFE = ['"', "\\", *map(chr, range(32))]

FORBIDDEN = r'"\\\x00-\x1F'

SAFE_CHARACTER = f"[^{FORBIDDEN}]"
"""A character that a JSON string holds unescaped, as a class of a grammar."""

PIECE = re.compile(
    r"\\[\[\](){}|*+?](?![*+?{])"
    r"|\[\^?(?:[^\\\]\x00-\x1f\ud800-\udfff]|\\[\[\]\\nrt-]|\\u[0-9a-fA-F]{4})+\]"
    r"|\{(?:\d+(?:,\d*)?|,\d+)\}|\((?:\?:|(?!\?))|[)|*+?.]"
    r'|[^\\\[\](){}|*+?.^$"\x00-\x1f\ud800-\udfff]'
)
"""The parts of a pattern that the converter translates correctly.

It loses the part before an escape with a quantifier, never returns from a bare ] or }, and copies escapes such as \\d,
which llama.cpp then refuses.
"""

ESCAPE = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.", re.DOTALL)

IN_CLASS = {"d": "0-9", "w": "A-Za-z0-9_", "s": " ", **{mark: mark for mark in ".+*?(){}|$/,:;@#%&=!~<>'"}}
"""Escapes as parts of a class; of the white space only the character that JSON takes unescaped."""


NOT_IN_CLASS = {
    "D": IN_CLASS["d"],
    "W": IN_CLASS["w"],
    "S": r" \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
}
"""Escapes that stand for all but a class, outside of classes; control characters are in no text of JSON anyway."""


class Part(NamedTuple):
    """A part of a grammar: whether it may be empty, and the repeats of what may be empty in it."""

    is_empty: bool = False
    repeats: int = 1


def danger(grammar: str) -> str:
    """The reason why llama.cpp would crash on a grammar, or not return for minutes; "" without one."""
    rules: dict[str, list[re.Match[str]]] = {}
    body: list[re.Match[str]] = []
    depth = 0
    for token in TOKEN.finditer(grammar):
        if token["rule"]:
            body = rules[token["rule"]] = []
            continue
        body.append(token)
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth > DEEPEST:
            return f"it has more than {DEEPEST} parentheses inside each other"
        if token["most"] and int(token["least"] or 0) > int(token["most"]):
            return f"{token[0]} repeats at least {token['least']} and at most {token['most']} times"
    if len(rules) > MOST_RULES:
        return f"it has more than {MOST_RULES} rules"
    users: defaultdict[str, set[str]] = defaultdict(set)
    for name, body in rules.items():
        for token in body:
            users[token[0]].add(name)
    known: dict[str, Part] = {}
    pending = dict.fromkeys(rules)
    while pending:
        name, _ = pending.popitem()
        whole = _whole(rules[name], known)
        if whole.repeats > MOST_REPEATS:
            return f"rule {name} repeats what may be empty: let what is repeated have a character at least"
        if whole != known.get(name, Part()):
            known[name] = whole
            pending |= dict.fromkeys(users[name])
    return ""


def _whole(body: Sequence[re.Match[str]], known: Mapping[str, Part]) -> Part:
    """What the parts of a rule come to. `known`: what there is to say of rules so far."""
    outer: list[tuple[bool, bool, Part, int]] = []
    # Whether an alternative in front, and the parts in front of the last one, may be empty; and the most repeats.
    other, before, last, most = False, True, Part(True), 1
    for token in body:
        text = token[0]
        if text == "(":
            outer.append((other, before, last, most))
            other, before, last, most = False, True, Part(True), 1
            continue
        if text == "|":
            other, before, last = other or (before and last.is_empty), True, Part(True)
            continue
        if text in "*+?" or token["least"] is not None:
            times = int(token["most"] or token["least"] or 1)
            is_empty = last.is_empty or text in "*?" or token["least"] == "0"
            last = Part(is_empty, last.repeats * times if last.is_empty and times else last.repeats)
        else:
            part = known.get(text, Part(text == '""' or text.startswith("#")))
            if text == ")" and outer:
                part = Part(other or (before and last.is_empty), most)
                other, before, last, most = outer.pop()
            before, last = before and last.is_empty, part
        most = max(most, last.repeats)
    return Part(other or (before and last.is_empty), most)


def literal(text: str) -> str:
    """The part of a grammar that is `text` and nothing else."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def integers(least: int | None, most: int | None) -> str:
    """The part of a grammar that is a whole number from `least` to `most`, with MOST_DIGITS where one is None."""
    parts = []
    if least is None or least < 0:
        nearest = 1 if most is None or most >= 0 else -most
        parts.append(f'"-" ({_naturals(nearest, None if least is None else -least)})')
    if most is None or most >= 0:
        parts.append(_naturals(max(least or 0, 0), most))
    return " | ".join(parts)


def _naturals(least: int, most: int | None) -> str:
    """Whole numbers from `least`, at least 0, to `most`: the longest and the shortest digit by digit."""
    if most is None:
        most = 10 ** max(MOST_DIGITS, len(str(least))) - 1
    shortest, longest = len(str(least)), len(str(most))
    if shortest == longest:
        return _of_one_length(str(least), str(most))
    parts = [_of_one_length(str(least), "9" * shortest)]
    if longest - shortest > 1:
        parts.append(f"[1-9] [0-9]{{{shortest},{longest - 2}}}")
    return " | ".join([*parts, _of_one_length(f"1{'0' * (longest - 1)}", str(most))])


def _of_one_length(least: str, most: str) -> str:
    """Numbers of as many digits as both have, from `least` to `most`."""
    first, last, rest = int(least[0]), int(most[0]), len(least) - 1
    if not rest:
        return f"[{first}-{last}]"
    if first == last:
        return f'"{first}" ({_of_one_length(least[1:], most[1:])})'
    below, above = [], []
    if least[1:] != "0" * rest:
        below = [f'"{first}" ({_of_one_length(least[1:], "9" * rest)})']
        first += 1
    if most[1:] != "9" * rest:
        above = [f'"{last}" ({_of_one_length("0" * rest, most[1:])})']
        last -= 1
    between = [f"[{first}-{last}] [0-9]{{{rest}}}"] if first <= last else []
    return " | ".join([*below, *between, *above])


def inside_json(pattern: str, place: str) -> str:
    """A pattern for the whole of a JSON string, without quotes, backslashes and control characters.

    JSON would have to escape those, and a grammar does not. Where an anchor is missing anything may stand. Raises
    UsageError, naming the place, for what the converter refuses, translates wrongly or never finishes.
    """
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
    inner = pattern[begins : len(pattern) - ends]
    with warnings.catch_warnings():
        # Python may read brackets inside brackets differently one day, and says so.
        warnings.simplefilter("ignore", FutureWarning)
        pieces = _pieces(inner, place)
        for piece in pieces:
            if piece[0] == "[" and piece[1] != "^" and any(re.fullmatch(piece, bad) for bad in UNSAFE):
                what = "a quote, a backslash or a control character"
                raise UsageError(f"{piece} in the pattern at {place} allows {what}", "JSON cannot hold it unescaped")
    dots = {".": SAFE_CHARACTER}
    safe = "".join(f"{piece[:-1]}{FORBIDDEN}]" if piece[:2] == "[^" else dots.get(piece, piece) for piece in pieces)
    anything = f"{SAFE_CHARACTER}*"
    return f"^{'' if begins else anything}{safe}{'' if ends else anything}$"


def _pieces(pattern: str, place: str) -> list[str]:
    try:
        re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise UsageError(f"the pattern at {place} is broken: {shown(str(error))}") from error
    pattern = ESCAPE.sub(_class_of, pattern)
    pieces: list[str] = []
    position = depth = 0
    while position < len(pattern):
        match = PIECE.match(pattern, position)
        if not match:
            rest = pattern[position : position + (2 if pattern[position] in "\\(" else 1)]
            raise UsageError(
                f"the pattern at {place} uses {shown(rest)}, which no grammar has",
                "write it another way: letters, classes such as [0-9], ( ) | * + ? and {2,3} are understood",
            )
        piece, before = match[0], pieces[-1][0] if pieces else ""
        position = match.end()
        if before and before in "*+?{" and piece in "?+":
            if piece == "+":
                raise UsageError(f"the pattern at {place} takes back nothing behind {pieces[-1]}+", "leave the + out")
            # How much is taken first decides nothing where the whole text is matched.
            continue
        piece = "(" if piece == "(?:" else piece
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "|" and not depth:
            raise UsageError(f"the pattern at {place} has alternatives", "put them into parentheses: ^(a|b)$")
        if piece[0] == "{" and any(int(count) > LONGEST_RUN for count in re.findall(r"\d+", piece)):
            raise UsageError(f"{piece} in the pattern at {place} is too much", f"a grammar counts to {LONGEST_RUN}")
        pieces.append(piece)
    return pieces


def _class_of(found: re.Match[str]) -> str:
    """A class, or an escape outside of one, without the escapes that no grammar has."""
    text = found[0]
    if text[0] == "[":
        return re.sub(r"\\(.)", lambda escape: IN_CLASS.get(escape[1], escape[0]), text)
    if text[1] in NOT_IN_CLASS:
        return f"[^{NOT_IN_CLASS[text[1]]}]"
    return f"[{IN_CLASS[text[1]]}]" if text[1] in IN_CLASS else text


def shown(text: str) -> str:
    """`text` as part of one line, its control characters escaped."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)

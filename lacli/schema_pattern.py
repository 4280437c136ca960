"""The regular expressions of JSON schemas: what a grammar can follow, kept from breaking the JSON text.

The translation into a grammar is the converter's. `schema.py` knows the rest of a schema.
"""

from __future__ import annotations

import re
import warnings

from lacli.errors import UsageError

MOST_REPEATS = 1000
"""llama.cpp refuses a grammar with a longer run of optional parts."""

# What the converter translates correctly. It loses the piece before an escape with a quantifier, stops for ever at a
# bare ] or }, and passes on escapes such as \d, which llama.cpp then refuses.
PIECE = re.compile(
    r"\\[\[\](){}|*+?](?![*+?{])"
    r"|\[\^?(?:[^\\\]\x00-\x1f\ud800-\udfff]|\\[\[\]\\nrt-]|\\u[0-9a-fA-F]{4})+\]"
    r"|\{(?:\d+(?:,\d*)?|,\d+)\}|\((?!\?)|[)|*+?.]"
    r'|[^\\\[\](){}|*+?.^$"\x00-\x1f\ud800-\udfff]'
)
UNSAFE = ['"', "\\", *map(chr, range(32))]
FORBIDDEN = r'"\\\x00-\x1F'
SAFE_CHARACTER = f"[^{FORBIDDEN}]"
"""What a JSON string holds as it is, as a class of a grammar."""

ESCAPE = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.", re.DOTALL)
INSIDE = {"d": "0-9", "w": "A-Za-z0-9_", "s": " ", **{mark: mark for mark in ".+*?(){}|$/,:;@#%&=!~<>'"}}
"""What stands in a class for an escape: of the white space only the one that JSON takes as it is."""

HINT = r"write it another way: letters, classes such as [0-9], ( ) | * + ? and {2,3} are understood"


def inside_json(pattern: str, place: str) -> str:
    """A pattern for the whole of a JSON string, which lets no quote, backslash or control character in.

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
    safe = "".join(_safe(piece) for piece in pieces)
    anything = f"{SAFE_CHARACTER}*"
    return f"^{'' if begins else anything}{safe}{'' if ends else anything}$"


def _safe(piece: str) -> str:
    if piece == ".":
        return SAFE_CHARACTER
    return f"{piece[:-1]}{FORBIDDEN}]" if piece.startswith("[^") else piece


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
            raise UsageError(f"the pattern at {place} uses {shown(rest)}, which no grammar has", HINT)
        piece = match[0]
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "|" and not depth:
            raise UsageError(f"the pattern at {place} has alternatives", "put them into parentheses: ^(a|b)$")
        if piece[0] == "{" and any(int(count) > MOST_REPEATS for count in re.findall(r"\d+", piece)):
            raise UsageError(f"{piece} in the pattern at {place} is too much", f"a grammar counts to {MOST_REPEATS}")
        pieces.append(piece)
        position = match.end()
    return pieces


def _class_of(found: re.Match[str]) -> str:
    """A class, or an escape outside of one, without the escapes that no grammar has."""
    text = found[0]
    if text[0] == "[":
        return re.sub(r"\\(.)", lambda escape: INSIDE.get(escape[1], escape[0]), text)
    if text[1] in INSIDE:
        return f"[{INSIDE[text[1]]}]"
    return text


def shown(text: str) -> str:
    """Text as part of one line, whatever it holds."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)

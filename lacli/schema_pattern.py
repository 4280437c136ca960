"""The regular expressions of JSON schemas: what a grammar can follow, and what would break the JSON text.

Only checks; the translation is the converter's. `schema.py` knows the rest of a schema.
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
HINT = r"write [0-9] for \d, [A-Za-z0-9_] for \w, [.] for \. and so on"


def keeps_json_whole(pattern: str, place: str) -> bool:
    """Whether no text of a pattern, given without its anchors, can end the JSON string that it stands in.

    Raises UsageError, naming the place, for a pattern that the converter refuses, translates wrongly or never finishes.
    """
    with warnings.catch_warnings():
        # Python may read brackets inside brackets differently one day, and says so.
        warnings.simplefilter("ignore", FutureWarning)
        wide = [piece for piece in _pieces(pattern, place) if piece[0] in ".["]
        return not any(re.fullmatch(piece, bad) for piece in wide for bad in UNSAFE)


def _pieces(pattern: str, place: str) -> list[str]:
    try:
        re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise UsageError(f"the pattern at {place} is broken: {shown(str(error))}") from error
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


def shown(text: str) -> str:
    """Text as part of one line, whatever it holds."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)

"""Sizes, ages and counts in words, and strangers' text without control characters, for people."""

from __future__ import annotations

MINUTE, HOUR, DAY = 60, 3600, 86400
AGES = ((MINUTE, 1, "second"), (HOUR, MINUTE, "minute"), (DAY, HOUR, "hour"), (14 * DAY, DAY, "day"))
LATER = ((60 * DAY, 7 * DAY, "week"), (730 * DAY, 30 * DAY, "month"))
YEAR = 365 * DAY

SIGNS = {
    **{code: 0x2400 + code for code in range(0x20)},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}
"""What is shown for a character that would steer a terminal, by their code points.

C0 and DEL have Unicode's control pictures; C1, the characters that turn the direction of text, and halves of
surrogate pairs have the replacement character.
"""

SIGNS_IN_LINES = {code: sign for code, sign in SIGNS.items() if chr(code) not in "\n\t"}


def size_in_words(size: int) -> str:
    """Bytes on a disk: 4.7 GB, 320 MB, 12 kB."""
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 100 * unit else f"{size / unit:.0f} {name}"
    return f"{-(-size // 1000)} kB"


def memory_in_words(mebibytes: float) -> str:
    """Memory: 5.4 GiB, 338 MiB, 0.4 MiB."""
    if mebibytes >= 1024:
        return f"{mebibytes / 1024:.1f} GiB"
    return f"{mebibytes:.0f} MiB" if mebibytes >= 10 else f"{mebibytes:.1f} MiB"


def age_in_words(seconds: float) -> str:
    """How long ago: 3 days ago, just now."""
    if seconds < MINUTE:
        return "just now"
    for most, unit, name in (*AGES, *LATER):
        if seconds < most:
            return f"{counted(int(seconds // unit), name)} ago"
    return f"{counted(int(seconds // YEAR), 'year')} ago"


def tokens_in_words(tokens: int) -> str:
    """A context: 2048, 32k, 128k; - where none is known."""
    if not tokens:
        return "-"
    return f"{tokens // 1024}k" if tokens >= 10240 and tokens % 1024 == 0 else str(tokens)


def count_in_words(number: int) -> str:
    """Parameters: 630M, 7.6B."""
    millions = number / 1e6
    if millions < 10:
        return f"{millions:.1f}M"
    return f"{millions:.0f}M" if millions < 1000 else f"{millions / 1000:.1f}B"


def printable(text: str, *, lines: bool = False) -> str:
    """Return `text` of a model, a file or a hub with a sign for each character that would steer a terminal.

    lines: line breaks and tabs stay, and a Windows line break becomes a plain one; else the text is one line.
    """
    return text.replace("\r\n", "\n").translate(SIGNS_IN_LINES) if lines else text.translate(SIGNS)


def counted(count: int, noun: str) -> str:
    """1 question, 2 questions."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")

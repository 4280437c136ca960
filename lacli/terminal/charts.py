"""Charts as text, drawn with block characters, or with ASCII's if a stream takes no others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

IN_ASCII = str.maketrans("█■·…±", "##.~~")
"""A character of ASCII for each that charts and tables draw with."""

COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python itself sets LC_CTYPE to where the locale is C or POSIX (PEP 538)."""


def drawable(text: str, encoding: str) -> str:
    """Return `text` with drawings in ASCII where `encoding` lacks a character of it, or the locale is C or POSIX.

    Python writes UTF-8 in these locales too, so their names decide; without a name the stream is taken at its word.
    """
    said = os.environ.get("LC_CTYPE", "")
    locale = os.environ.get("LC_ALL") or ("" if said in COERCED else said) or os.environ.get("LANG")
    with suppress(UnicodeEncodeError):
        if locale not in ("C", "POSIX"):
            text.encode(encoding)
            return text
    return text.translate(IN_ASCII)


def histogram(counts: Sequence[int], *, width: int = 24) -> str:
    """Counts of steps by the tokens they yielded, a line for each that is not 0; counts[k] is for k+1.

    `width`: of the longest bar.
    """
    most = max(counts, default=0) or 1
    digits = len(str(most))
    return "\n".join(
        f"{length:2} tokens  {count:{digits}} steps  {'█' * round(count / most * width)}".rstrip()
        for length, count in enumerate(counts, start=1)
        if count
    )

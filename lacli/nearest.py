"""What was probably meant by a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that resemble this one, the most similar first; upper and lower case are the same."""
    by_folded: dict[str, str] = {}
    for each in known:
        by_folded.setdefault(each.casefold(), each)
    return [by_folded[found] for found in get_close_matches(name.casefold(), by_folded, n=most, cutoff=0.65)]


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint that offers the nearest names; `otherwise` where nothing is near."""
    found = nearest(name, known)
    return "did you mean " + " or ".join(found) + "?" if found else otherwise

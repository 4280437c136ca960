"""What was probably meant by a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], most: int = 3, least: float = 0.65) -> list[str]:
    """The known names that resemble this one, the most similar first; upper and lower case are the same.

    least: how similar, where 1 is the same.
    """
    by_folded: dict[str, str] = {}
    for each in known:
        by_folded.setdefault(each.casefold(), each)
    return [by_folded[found] for found in get_close_matches(name.casefold(), by_folded, n=most, cutoff=least)]


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint that offers the nearest names; `otherwise` where nothing is near."""
    return offered(nearest(name, known)) or otherwise


def offered(names: Sequence[str]) -> str:
    """The question whether one of these was meant; "" for none."""
    return f"did you mean {' or '.join(names)}?" if names else ""

"""What a benchmark compares: modes and ranges of W, N and G, as the points of their product."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, Literal, TypeVar

from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings, check_rows, fitted
from lacli.settings import MODES, DecodeSettings, ModeName
from lacli.text.format import did_you_mean

Value = TypeVar("Value")

TIED: Literal["W"] = "W"
"""The value of -G that makes G equal to W, as the paper's law needs it."""

Guesses = int | Literal["W"]

RANGE = re.compile(r"(?P<first>\d{1,9})(-(?P<last>\d{1,9})((?P<sign>[+*])(?P<by>\d{1,9}))?)?")
MOST_VALUES = 256
"""Values of one flag; a longer list is a typing mistake."""

LETTERS = {"window": "W", "ngram": "N", "guesses": "G"}


@dataclass(frozen=True)
class Axes:
    """What is compared: modes, and the values of W, N and G where they are swept."""

    modes: tuple[ModeName, ...] = MODES
    windows: tuple[int, ...] = ()
    ngrams: tuple[int, ...] = ()
    guesses: tuple[Guesses, ...] = ()


@dataclass(frozen=True)
class Point:
    """One setting of a sweep. `name`: its label, if it has its own."""

    settings: DecodeSettings
    name: str = ""

    @property
    def label(self) -> str:
        """Mode and sizes in words that no other point of the sweep has."""
        chosen = self.settings
        sizes = _sizes(chosen.mode, chosen.window, chosen.ngram, chosen.guesses)
        return self.name or _label(chosen.mode, sizes)


@dataclass(frozen=True)
class Skipped:
    """A point that cannot run, and why."""

    label: str
    reason: str


def parse_modes(text: str) -> tuple[ModeName, ...]:
    """The modes named in `text`, with commas between them, in the order of MODES. Raises UsageError."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in MODES]:
        raise UsageError(
            f"there is no mode {unknown[0]!r}", did_you_mean(unknown[0], MODES, f"the modes are {', '.join(MODES)}")
        )
    return tuple(mode for mode in MODES if mode in names)


def parse_numbers(text: str, flag: str) -> list[int]:
    """Numbers and ranges as llama-bench takes them, without repetitions: `1,5`, `10-30`, `10-30+10`, `4-64*2`.

    A range holds its first number, and its last where a step hits it. Raises UsageError naming the flag.
    """
    return _values(text, flag, lambda item: _range(item, flag))


def parse_guesses(text: str, flag: str = "-G") -> list[Guesses]:
    """The same, or `W` for as many guesses as the window has columns."""
    return _values(text, flag, lambda item: [TIED] if item.upper() == TIED else _range(item, flag))


def points(
    axes: Axes, base: DecodeSettings | None = None, model_settings: ModelSettings | None = None
) -> tuple[list[Point], list[Skipped]]:
    """Every combination that a mode can tell apart, in order, and those that cannot run.

    Lookahead has W, N and G, jacobi W, plain and lookup none of them. An axis without values keeps what `base` has,
    but for G, which follows W where W has several values. `model_settings`: says how many rows a batch may have.
    """
    base, model_settings = base or DecodeSettings(), model_settings or ModelSettings()
    windows, ngrams = axes.windows or (base.window,), axes.ngrams or (base.ngram,)
    guesses = axes.guesses or (TIED if len(windows) > 1 else base.guesses,)
    found: dict[Point, None] = {}
    skipped: dict[Skipped, None] = {}
    for mode in axes.modes:
        for window, ngram, tied in product(windows, ngrams, guesses):
            sizes = _sizes(mode, window, ngram, window if tied == TIED else tied)
            try:
                settings = fitted(replace(base, mode=mode, **sizes), model_settings)
                check_rows(settings, model_settings)
                found[Point(settings)] = None
            except UsageError as error:
                skipped[Skipped(_label(mode, sizes), error.what)] = None
    return list(found), list(skipped)


def _values(text: str, flag: str, parse: Callable[[str], Sequence[Value]]) -> list[Value]:
    found: dict[Value, None] = {}
    for item in text.split(","):
        found |= dict.fromkeys(parse(item.strip()))
    if len(found) > MOST_VALUES:
        raise UsageError(f"{flag} {text} has more than {MOST_VALUES} values", "fewer values, or a larger step")
    return list(found)


def _range(item: str, flag: str) -> list[int]:
    """The numbers of one item between commas, of a long range a few more than can be compared."""
    example = f"{flag} 5, {flag} 1,5,10 or {flag} 10-30+10 for example"
    match = RANGE.fullmatch(item)
    if not match:
        raise UsageError(f"{flag} {item!r} is neither a number nor a range", example)
    first, last = int(match["first"]), int(match["last"] or match["first"])
    by, sign = int(match["by"] or 1), match["sign"] or "+"
    if last < first:
        raise UsageError(f"the range {flag} {item} ends before it begins", example)
    if by == 0 or (sign == "*" and (by == 1 or first == 0)):
        raise UsageError(f"the range {flag} {item} would never end", example)
    return list(islice(_progression(first, last, by, sign), MOST_VALUES + 1))


def _progression(first: int, last: int, by: int, sign: str) -> Iterator[int]:
    while first <= last:
        yield first
        first = first * by if sign == "*" else first + by


def _sizes(mode: ModeName, window: int, ngram: int, guesses: int) -> dict[str, Any]:
    """The settings among these that the mode has."""
    match mode:
        case "lookahead":
            return {"window": window, "ngram": ngram, "guesses": guesses}
        case "jacobi":
            return {"window": window}
        case _:
            return {}


def _label(mode: ModeName, sizes: Mapping[str, int]) -> str:
    return " ".join([mode, *(f"{LETTERS[name]}={size}" for name, size in sizes.items())])

"""What a benchmark compares: ranges of W, N, G and flash attention as points, and the nine rows of the paper's Table 3.

Settings only; nothing is decoded and no model is known here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, Literal, TypeVar

from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings, check_rows, fitted
from lacli.settings import DecodeSettings, ModeName, Switch

Value = TypeVar("Value")

TIED: Literal["W"] = "W"
"""The value of -G that makes G equal to W, as the paper's law needs it."""

Guesses = int | Literal["W"]

RANGE = re.compile(r"(?P<first>\d{1,9})(-(?P<last>\d{1,9})((?P<sign>[+*])(?P<by>\d{1,9}))?)?")
MOST_VALUES = 256
LETTERS = {"window": "W", "ngram": "N", "guesses": "G"}
SWITCHES: dict[str, Switch] = {"on": "on", "1": "on", "off": "off", "0": "off", "auto": "auto"}


@dataclass(frozen=True)
class Point:
    """One competitor: how it decodes, and flash attention where that is an axis. tag: its row in Table 3."""

    settings: DecodeSettings
    flash_attention: Switch | None = None
    tag: int | None = None

    @property
    def label(self) -> str:
        """A few words that tell it from the other points of its sweep."""
        chosen = self.settings
        sizes = _sizes(chosen.mode, chosen.window, chosen.ngram, chosen.guesses)
        words = _label(chosen.mode, sizes, self.flash_attention)
        if self.tag is None:
            return words
        reference = ", prompt as reference" if chosen.mode == "lookahead" and chosen.pool_prompt else ""
        return f"{self.tag}: {words}{reference}"


@dataclass(frozen=True)
class Skipped:
    """A point that cannot run, and why."""

    label: str
    reason: str


def parse_numbers(text: str, flag: str) -> list[int]:
    """Numbers and ranges as llama-bench takes them, without repetitions: `1,5`, `10-30`, `10-30+10`, `4-64*2`.

    A range holds its first number, and its last where a step hits it. Raises UsageError naming the flag.
    """
    return _values(text, flag, lambda item: _range(item, flag))


def parse_guesses(text: str, flag: str = "-G") -> list[Guesses]:
    """The same, or `W` for as many guesses as the window has columns."""
    return _values(text, flag, lambda item: [TIED] if item.upper() == TIED else _range(item, flag))


def parse_switches(text: str, flag: str = "-fa") -> list[Switch]:
    """Some of on, off and auto; 1 and 0 mean on and off. Raises UsageError naming the flag."""

    def one(item: str) -> list[Switch]:
        if item not in SWITCHES:
            raise UsageError(f"{flag} {item!r} is none of on, off, auto", f"{flag} on,off for example")
        return [SWITCHES[item]]

    return _values(text, flag, one)


def points(
    modes: Sequence[ModeName],
    windows: Sequence[int] = (),
    ngrams: Sequence[int] = (),
    guesses: Sequence[Guesses] = (),
    flash_attentions: Sequence[Switch] = (),
    base: DecodeSettings | None = None,
    loading: ModelSettings | None = None,
) -> tuple[list[Point], list[Skipped]]:
    """Every combination that a mode can tell apart, in order, and those that cannot run.

    Lookahead has W, N and G, jacobi W, plain and lookup none of them. An axis without values keeps what `base` has,
    but for G, which follows W where W has several values. `loading` says how many rows a batch may have.
    """
    base, loading = base or DecodeSettings(), loading or ModelSettings()
    windows, ngrams = windows or [base.window], ngrams or [base.ngram]
    guesses = guesses or [TIED if len(windows) > 1 else base.guesses]
    switches: Sequence[Switch | None] = flash_attentions or [None]
    found: dict[Point, None] = {}
    skipped: dict[Skipped, None] = {}
    for mode in modes:
        for window, ngram, tied, switch in product(windows, ngrams, guesses, switches):
            sizes = _sizes(mode, window, ngram, window if tied == TIED else tied)
            try:
                settings = fitted(replace(base, mode=mode, **sizes), loading)
                check_rows(settings, loading)
                found[Point(settings, switch)] = None
            except UsageError as error:
                skipped[Skipped(_label(mode, sizes, switch), error.what)] = None
    return list(found), list(skipped)


def ablation(
    base: DecodeSettings | None = None, loading: ModelSettings | None = None
) -> tuple[list[Point], list[Skipped]]:
    """The nine rows of the paper's Table 3 (section 5.4), tagged 1 to 9, and those that do not fit into a batch.

    Row 2 is prompt lookup as in transformers 4.37: 10 tokens drafted after a match of at most 2. In the others the
    window starts from prompt tokens drawn at random, and with "prompt as reference" the n-grams of the prompt enter
    the pool, and those of the text as it grows, both as in the authors' program; without it the pool holds what the
    window found. What differs: the authors verify nothing in the first N-2 steps, while their window fills, and their
    greedy loop repeats an accepted run's last token in the n-grams that it takes from the text. Ours starts with a full
    window and takes the text as it is, which is worth most where the window is small, at W = 1.
    """
    base = base or DecodeSettings()
    rows = ((10, 1, 3, True), (5, 1, 10, True), (5, 1, 30, False), (5, 1, 30, True), (5, 30, 1, False),
            (5, 15, 15, False), (5, 15, 15, True))  # fmt: skip
    branches = [
        replace(base, mode="lookahead", ngram=ngram, window=window, guesses=guesses, window_init="prompt",
                pool_prompt=reference, pool_text=reference)
        for ngram, window, guesses, reference in rows
    ]  # fmt: skip
    others = [replace(base, mode="plain"), replace(base, mode="lookup", lookup_draft=10, lookup_match=2)]
    found, skipped = [], []
    for tag, settings in enumerate([*others, *branches], start=1):
        point = Point(settings, tag=tag)
        try:
            check_rows(settings, loading or ModelSettings())
            found.append(point)
        except UsageError as error:
            skipped.append(Skipped(point.label, error.what))
    return found, skipped


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


def _label(mode: ModeName, sizes: Mapping[str, int], switch: Switch | None) -> str:
    words = [mode, *(f"{LETTERS[name]}={size}" for name, size in sizes.items())]
    return " ".join(words) + (f", -fa {switch}" if switch else "")

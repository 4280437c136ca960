"""What a benchmark compares: modes and ranges of W, N and G, as the points of their product."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings, check_rows, fitted
from lacli.settings import MODES, DecodeSettings, ModeName
from lacli.text.format import did_you_mean

RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:([+*])(\d{1,9}))?)?")
MOST_VALUES = 256
"""Values of one flag; a longer list is a typing mistake."""

SIZES: Mapping[ModeName, Sequence[str]] = {"lookahead": ("window", "ngram", "guesses"), "jacobi": ("window",)}
"""The sizes that a mode has, of those that are swept."""


@dataclass(frozen=True)
class Axes:
    """What is compared: modes, and the values of W, N and G if they are swept."""

    modes: tuple[ModeName, ...] = MODES
    windows: tuple[int, ...] = ()
    ngrams: tuple[int, ...] = ()
    guesses: tuple[int, ...] = ()


@dataclass(frozen=True)
class Point:
    """One setting of a sweep. `name`: its label, if it has its own."""

    settings: DecodeSettings
    name: str = ""

    @property
    def mode(self) -> ModeName:
        return self.settings.mode

    @property
    def label(self) -> str:
        """Mode and sizes in words that no other point of the sweep has."""
        return self.name or _label(self.mode, vars(self.settings))


def parse_modes(text: str) -> tuple[ModeName, ...]:
    """The modes named in `text`, with commas between them, in the order of MODES. Raises UsageError."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in MODES]:
        hint = did_you_mean(unknown[0], MODES, f"the modes are {', '.join(MODES)}")
        raise UsageError(f"there is no mode {unknown[0]!r}", hint)
    return tuple(mode for mode in MODES if mode in names)


def parse_numbers(text: str, flag: str) -> list[int]:
    """Numbers and ranges as llama-bench takes them, without repetitions: `1,5`, `10-30`, `10-30+10`, `4-64*2`.

    A range holds its first number, and its last if a step hits it. Raises UsageError naming the flag.
    """
    found: dict[int, None] = {}
    for item in text.split(","):
        for number in _range(item.strip(), flag):
            found[number] = None
            if len(found) > MOST_VALUES:
                raise UsageError(f"{flag} {text} has more than {MOST_VALUES} values", "fewer values, or a larger step")
    return list(found)


def points(axes: Axes, base: DecodeSettings, model_settings: ModelSettings) -> tuple[list[Point], list[str]]:
    """Return plain decoding and every combination that a mode can tell apart, and in words those that cannot run.

    An axis without values keeps what `base` has, but for G, which follows W if W has several values.
    `model_settings`: says how many rows a batch may have.
    """
    windows, ngrams = axes.windows or (base.window,), axes.ngrams or (base.ngram,)
    # G = W if W is swept, as the paper's law needs it.
    guesses = axes.guesses or (None if len(windows) > 1 else base.guesses,)
    # Plain decoding rolls nothing back, and being able to would cost it something.
    found = {Point(replace(base, mode="plain", max_rollback=-1)): None}
    skipped: dict[str, None] = {}
    for mode in axes.modes:
        for window, ngram, own_guesses in product(windows, ngrams, guesses):
            sizes: dict[str, Any] = {
                "window": window,
                "ngram": ngram,
                "guesses": window if own_guesses is None else own_guesses,
            }
            try:
                settings = replace(base, mode=mode, **{name: sizes[name] for name in SIZES.get(mode, ())})
                check_rows(fitted(settings, model_settings), model_settings)
            except UsageError as error:
                skipped[f"{_label(mode, sizes)}: {error.what}"] = None
            else:
                if mode != "plain":
                    found[Point(fitted(settings, model_settings))] = None
    return list(found), list(skipped)


def _label(mode: ModeName, sizes: Mapping[str, Any]) -> str:
    """Return a mode and those of the `sizes` that it has."""
    return " ".join([mode, *(f"{name[0].upper()}={sizes[name]}" for name in SIZES.get(mode, ()))])


def _range(item: str, flag: str) -> Sequence[int]:
    """The numbers of one item between commas."""
    example = f"{flag} 5, {flag} 1,5,10 or {flag} 10-30+10 for example"
    match = RANGE.fullmatch(item)
    if not match:
        raise UsageError(f"{flag} {item!r} is neither a number nor a range", example)
    first, last = int(match[1]), int(match[2] or match[1])
    by, is_factor = int(match[4] or 1), match[3] == "*"
    if last < first:
        raise UsageError(f"the range {flag} {item} ends before it begins", example)
    if by == 0 or (is_factor and (by == 1 or first == 0)):
        raise UsageError(f"the range {flag} {item} would never end", example)
    if not is_factor:
        return range(first, last + 1, by)
    found = [first]
    while found[-1] * by <= last:
        found.append(found[-1] * by)
    return found

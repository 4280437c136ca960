"""Judges where a text parts from plain's: rounding, or a bug.

Plain's tokens are decoded once more in the mode's own batches, with cells and masks that are right by construction
(replay.py). If the model chooses the mode's token there too, the shapes of the batches alone have led to it: rounding,
however small or large the margin. If it does not, the mode had other logits than its batches give: a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lacli.context import Context, Floats
from lacli.engine.engine import Engine, SequenceOptions
from lacli.modes import common_prefix
from lacli.settings import DecodeSettings

PLAIN = DecodeSettings(mode="plain")

Verdict = Literal["rounding", "unclear", "bug"]


@dataclass(frozen=True)
class Difference:
    """Where a text first parts from plain's.

    `at`: index among the generated tokens. `plain`, `other`: the two tokens, None if a text has ended. `margin`:
    plain's logit of its own token less that of the other one. `rounding`: the largest difference between plain's logits
    there and those of the replay. `verdict`: unclear if a replay may have other bits than the run, on a GPU.
    """

    at: int
    plain: int | None
    other: int | None
    margin: float
    rounding: float
    verdict: Verdict


def within(margin: float, rounding: float) -> bool:
    """Whether rounding could close a margin: it may move each of two logits towards the other."""
    return margin <= 2 * rounding


def parting(expected: Sequence[int], tokens: Sequence[int]) -> int | None:
    """The index of the first token that differs, or at which one text ends before the other; None for equal ones."""
    same = common_prefix(expected, tokens)
    return None if same == len(expected) == len(tokens) else same


def largest_difference(logits: Floats, others: Floats) -> float:
    """How far two arrays of logits are apart; equal infinities are equal."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(logits - others)
    return float(np.where(logits == others, 0, apart).max())


def plain_logits(
    context: Context, prompt: Sequence[int], tokens: Sequence[int], settings: DecodeSettings = PLAIN
) -> Floats:
    """Plain's logits, (vocabulary,), after the prompt and tokens that it has generated before; clears the context."""
    given = _Given(tokens)
    for _ in Engine(context, settings).steps(prompt, SequenceOptions(len(tokens) + 1, given)):
        pass
    return given.logits


class _Given:
    """A verifier that chooses the tokens it was given, and keeps the logits behind them."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = iter(tokens)
        self.logits: Floats = np.zeros(0)

    def begin(self, text: Sequence[int]) -> None:
        pass

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        token = next(self._tokens, None)
        if token is None:
            self.logits = logits.copy()
            return int(logits.argmax())
        return token

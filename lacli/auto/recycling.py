"""The recycling source: what the model held most probable after a token when it last decoded that token.

Every row of a step teaches it, rejected ones too. From token recycling (Luo et al. 2024), with the previous token as a
second key and the model's probabilities instead of ranks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from math import exp
from typing import NamedTuple, TypeVar

from lacli.auto.acceptance import AcceptanceEstimate
from lacli.auto.planner import Guess, Source
from lacli.context import Successors
from lacli.tree import Origin

Key = TypeVar("Key", int, tuple[int, int])

MAX_SUCCESSORS = 6
"""Successors remembered of a row. Source: docs/auto.md."""

MAX_KEYS = 12_000
"""Pairs of tokens, and single tokens, that are remembered; the oldest are forgotten first."""

BOUNDS = (0.03, 0.08, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99)
"""Upper ends of the kinds of guesses, by the probability that the model gave them."""

EXPECTED_AFTER_PAIR = (0.035, 0.05, 0.1, 0.1, 0.29, 0.31, 0.38, 0.4, 0.49, 0.56)
EXPECTED_AFTER_TOKEN = (0.03, 0.05, 0.06, 0.09, 0.12, 0.17, 0.2, 0.2, 0.2, 0.27)
"""How often guesses came true elsewhere in a text, by kind: behind the same two tokens, behind the last one only.

Source: answers of Qwen2.5-Coder 0.5B and 1.5B (python -m benchmarks.hit_rates, docs/auto.md).
"""

EXPECTED = EXPECTED_AFTER_PAIR + EXPECTED_AFTER_TOKEN


class Row(NamedTuple):
    """The most probable successors of a row and their kinds."""

    tokens: list[int]
    kinds: list[int]


class RecyclingSource(Source):
    """Guesses from the model's earlier rows."""

    origin = Origin.RECYCLING
    everywhere = True

    def __init__(self, acceptance: AcceptanceEstimate | None = None) -> None:
        super().__init__()
        self.acceptance = acceptance or AcceptanceEstimate(EXPECTED)
        self._after_pair: dict[tuple[int, int], Row] = {}
        self._after_token: dict[int, Row] = {}
        self._scored = 0

    def for_text(self) -> RecyclingSource:
        """Return the source of one of several texts, which learn from each other's rows."""
        other = copy(self)
        other.acceptance = self.acceptance.for_text()
        other._scored = 0
        return other

    def begin(self, text: Sequence[int]) -> None:
        self._scored = len(text)

    def extend(self, text: Sequence[int]) -> None:
        for place in range(max(self._scored, 2), len(text)):
            row, first = self._row(text[place - 2], text[place - 1])
            if row:
                for token, kind in zip(row.tokens, row.kinds, strict=True):
                    self.acceptance.record(first + kind, token == text[place])
        self._scored = len(text)

    def learn(self, befores: Sequence[int], tokens: Sequence[int], successors: Successors) -> None:
        """Learn a step's rows: the token of each, the one before it, and its most probable successors."""
        # Numpy's calls for a few numbers take three times as long, behind a decode with its cold caches.
        rows = zip(befores, tokens, successors.tokens.tolist(), successors.logits.tolist(), strict=True)
        for before, token, following, logits in rows:
            weights = [weight for logit in logits if (weight := exp(logit - logits[0]))]
            whole = sum(weights)
            row = Row(following[: len(weights)], [bisect_left(BOUNDS, weight / whole) for weight in weights])
            _remember(self._after_pair, (before, token), row)
            _remember(self._after_token, token, row)

    def first(self, text: Sequence[int]) -> Sequence[Guess]:
        return self.anywhere(text[-2] if len(text) > 1 else -1, text[-1])

    def after(self, guess: Guess) -> Sequence[Guess]:
        return ()

    def anywhere(self, previous: int, token: int) -> Sequence[Guess]:
        row, first = self._row(previous, token)
        if row is None:
            return ()
        chance = self.acceptance.probability
        return [Guess(token, chance[first + kind], 0) for token, kind in zip(*row, strict=True)]

    def _row(self, previous: int, token: int) -> tuple[Row | None, int]:
        """Return what is remembered behind two tokens, and the first of its kinds."""
        row = self._after_pair.get((previous, token))
        return (row, 0) if row else (self._after_token.get(token), len(EXPECTED_AFTER_PAIR))


def _remember(rows: dict[Key, Row], key: Key, row: Row) -> None:
    """Enter a row as the newest."""
    if rows.pop(key, None) is None and len(rows) >= MAX_KEYS:
        del rows[next(iter(rows))]
    rows[key] = row

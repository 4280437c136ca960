"""The recycling source: what the model itself held most probable after a token, the last time it saw that token.

Every row of a step teaches it, also those whose guesses came to nothing. Source: token recycling (Luo et al. 2024),
with the token before as a second key and the model's own probabilities in the place of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from lacli.auto.belief import Belief
from lacli.auto.source import Guess, Source
from lacli.engine import Successors
from lacli.tree import Origin

Key = TypeVar("Key", int, tuple[int, int])

MOST = 6
"""Successors that are kept of a row."""

KEYS = 12_000
"""Pairs of tokens, and single tokens, that are remembered; the oldest are forgotten first."""

BOUNDS = (0.03, 0.08, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99)
"""Where the kinds of guesses end, by the probability that the model gave them."""

EXPECTED_AFTER_PAIR = (0.006, 0.04, 0.08, 0.12, 0.34, 0.52, 0.66, 0.82, 0.91, 0.955)
EXPECTED_AFTER_TOKEN = (0.03, 0.03, 0.04, 0.07, 0.21, 0.23, 0.26, 0.36, 0.4, 0.45)
"""How often such guesses came true in other places of a text, by kind: after the same two tokens, after the last one.

Source: docs/auto.md.
"""

EXPECTED = EXPECTED_AFTER_PAIR + EXPECTED_AFTER_TOKEN


class Row(NamedTuple):
    """The most probable successors of a row and their kinds."""

    tokens: list[int]
    kinds: list[int]


class Recycling(Source):
    """Guesses from the model's earlier rows."""

    origin = Origin.RECYCLING
    everywhere = True

    def __init__(self, belief: Belief | None = None) -> None:
        self.belief = belief or Belief(EXPECTED)
        self._after_pair: dict[tuple[int, int], Row] = {}
        self._after_token: dict[int, Row] = {}
        self._scored = 0

    def begin(self, text: Sequence[int]) -> None:
        self._scored = len(text)

    def truncate(self, text: Sequence[int], length: int) -> None:
        """The rows were the model's, not the text's, and stay."""
        self._scored = min(self._scored, length)

    def extend(self, text: Sequence[int]) -> None:
        for place in range(max(self._scored, 2), len(text)):
            row, first = self._row(text[place - 2], text[place - 1])
            if row:
                for token, kind in zip(row.tokens, row.kinds, strict=True):
                    self.belief.saw(first + kind, token == text[place])
        self._scored = len(text)

    def learn(self, befores: Sequence[int], tokens: Sequence[int], successors: Successors) -> None:
        """Rows of a step: the token of each and the one before it, and what the model held most probable after it."""
        weights = np.exp(successors.logits - successors.logits[:, :1])
        chances = weights / weights.sum(axis=1, keepdims=True)
        kinds = np.searchsorted(BOUNDS, chances)
        kept = (chances > 0).sum(axis=1).tolist()
        rows = zip(befores, tokens, successors.tokens.tolist(), kinds.tolist(), kept, strict=True)
        for before, token, following, kind, count in rows:
            row = Row(following[:count], kind[:count])
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
        chance = self.belief.probability
        return [Guess(token, chance[first + kind], 0) for token, kind in zip(*row, strict=True)]

    def _row(self, previous: int, token: int) -> tuple[Row | None, int]:
        """What is remembered after a token, and the first of its kinds."""
        row = self._after_pair.get((previous, token))
        return (row, 0) if row else (self._after_token.get(token), len(EXPECTED_AFTER_PAIR))


def _remember(rows: dict[Key, Row], key: Key, row: Row) -> None:
    """Enter a row as the newest one."""
    if rows.pop(key, None) is None and len(rows) >= KEYS:
        del rows[next(iter(rows))]
    rows[key] = row

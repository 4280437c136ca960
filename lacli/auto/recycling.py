"""The recycling source: what the model held most probable after a token when it last decoded that token.

Every row of a step teaches it, rejected ones too. From token recycling (Luo et al. 2024), with the previous token as a
second key and the model's probabilities instead of ranks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import exp
from typing import TypeVar

from lacli.auto.draft import Drafted, HitRates, Source
from lacli.context import Successors
from lacli.tree import Origin

Key = TypeVar("Key", int, tuple[int, int])

MAX_SUCCESSORS, MAX_KEYS = 6, 12_000
"""Successors remembered of a row (docs/auto.md), and rows by two tokens and by one; the oldest are forgotten first."""

BOUNDS = (0.03, 0.08, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99)
"""Upper ends of the kinds of drafts, by the probability that the model gave them."""

EXPECTED_AFTER_PAIR = (0.035, 0.05, 0.1, 0.1, 0.29, 0.31, 0.38, 0.4, 0.49, 0.56)
EXPECTED_AFTER_TOKEN = (0.03, 0.05, 0.06, 0.09, 0.12, 0.17, 0.2, 0.2, 0.2, 0.27)
"""Rates by kind: behind the same two tokens, behind the last one only.

Source: answers of Qwen2.5-Coder 0.5B and 1.5B (benchmarks.hit_rates, docs/auto.md).
"""

EXPECTED, FIRST = EXPECTED_AFTER_PAIR + EXPECTED_AFTER_TOKEN, len(EXPECTED_AFTER_PAIR)


Row = list[tuple[int, int]]
"""The most probable successors of a row and their kinds."""


class RecycledRows:
    """The model's rows by their last two tokens, and by the last one; all sequences of a model share them."""

    def __init__(self) -> None:
        self._after_pair: dict[tuple[int, int], Row] = {}
        self._after_token: dict[int, Row] = {}

    def learn(self, previous: Sequence[int], tokens: Sequence[int], successors: Successors) -> None:
        """Remember rows: the token before each, its own, and its most probable successors."""
        # Numpy's calls for a few numbers take three times as long, behind a decode with its cold caches.
        rows = zip(previous, tokens, successors.tokens.tolist(), successors.logits.tolist(), strict=True)
        for before, token, following, logits in rows:
            weights = [weight for logit in logits if (weight := exp(logit - logits[0]))]
            whole = sum(weights)
            kinds = [bisect_left(BOUNDS, weight / whole) for weight in weights]
            _remember(self._after_pair, (before, token), [*zip(following, kinds, strict=False)])
            _remember(
                self._after_token, token, [(each, FIRST + kind) for each, kind in zip(following, kinds, strict=False)]
            )

    def row(self, previous: int, token: int) -> Row:
        """Return what is remembered behind two tokens, or behind the last one; empty where nothing is."""
        return self._after_pair.get((previous, token)) or self._after_token.get(token, [])


FIRST_PAUSE, PAUSE = 64, 1024
"""Steps before the first trial of recycling, and those in which a trial that has lost its stake gets another one."""

STAKE, MAX_CREDIT = 0.5, 1.5
"""Plain steps that a trial may lose, 1% of an answer of 50 tokens, and that recycling which gains may lose."""


class Trial:
    """Whether recycling pays for its rows and its time. `is_on`: it is asked."""

    def __init__(self) -> None:
        self.is_on = False
        self._credit = STAKE - STAKE / PAUSE * FIRST_PAUSE

    def wait(self) -> None:
        """Count a step without recycling; after a pause a trial begins."""
        self._credit += STAKE / PAUSE
        self.is_on = self._credit >= STAKE

    def record(self, gain: float) -> None:
        """Record the plain steps that a step gained by recycling."""
        self._credit = min(self._credit + gain, MAX_CREDIT)
        if self._credit < 0:
            self.is_on = False


class RecyclingSource(Source):
    """Drafts the successors of remembered rows. `hits`: rates by kind."""

    origin = Origin.RECYCLING

    def __init__(self, rows: RecycledRows) -> None:
        self.hits = HitRates(EXPECTED)
        self._rows = rows
        self._scored = 0

    def begin(self, tokens: Sequence[int]) -> None:
        self._scored = len(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        for place in range(max(self._scored, 2), len(tokens)):
            for token, kind in self._rows.row(tokens[place - 2], tokens[place - 1]):
                self.hits.record(kind, token == tokens[place])
        self._scored = len(tokens)

    def first(self, tokens: Sequence[int]) -> list[Drafted]:
        return self.anywhere(tokens[-2] if len(tokens) > 1 else -1, tokens[-1])

    def anywhere(self, previous: int, token: int) -> list[Drafted]:
        return [Drafted(each, self.hits.rates[kind]) for each, kind in self._rows.row(previous, token)]


def _remember(rows: dict[Key, Row], key: Key, row: Row) -> None:
    """Enter a row as the newest."""
    if rows.pop(key, None) is None and len(rows) >= MAX_KEYS:
        del rows[next(iter(rows))]
    rows[key] = row

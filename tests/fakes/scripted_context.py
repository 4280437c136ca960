"""A model that writes a test's script token by token; the script sees the drafted tokens of each position.

It keeps no cells and checks no rules, so that long answers are quick. Its clock moves when it decodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence, Set

import numpy as np

from lacli.auto.draft import HitRates
from lacli.auto.suffix import RewritingSource, SuffixSource
from lacli.batch import Batch, Ints
from tests.fakes.clock import FakeClock
from tests.fakes.context import FakeContext

Script = Callable[[int, Set[int]], int]
"""Returns the token at a position; the second argument has the tokens that are drafted for this position."""

Cost = Callable[[int, int], float]
"""Seconds of a batch, by its rows and the position of its first row."""


class ScriptedContext(FakeContext):
    """A context that writes `script`; each decode call moves `clock` by `cost`."""

    def __init__(self, script: Script, cost: Cost, clock: FakeClock, *, ids: int = 256) -> None:
        super().__init__(cells=100_000, batch_rows=2048, ids=ids, vocabulary=50)
        self._script, self._cost, self.clock = script, cost, clock
        self._choices: list[int] = []

    def decode(self, batch: Batch) -> bool:
        rows = len(batch)
        tokens, places = batch.tokens[:rows].tolist(), batch.positions[:rows].tolist()
        self.clock.now += self._cost(rows, places[0])
        guessed: defaultdict[int, set[int]] = defaultdict(set)
        for token, place in zip(tokens[1:], places[1:], strict=True):
            guessed[place].add(token)
        text: dict[int, int] = {}
        place, goes_on = places[0], batch.wanted > 0
        while goes_on:
            place += 1
            text[place] = self._script(place, guessed[place])
            goes_on = text[place] in guessed[place]
        outputs = batch.outputs[:rows].tolist()
        self._choices = [text.get(place + 1, 0) for place, wanted in zip(places, outputs, strict=True) if wanted]
        return True

    def greedy(self) -> Ints:
        return np.array(self._choices, np.int32)


class RecordedHits(HitRates):
    """Hit rates with a record. `seen`: the kind of each draft, and whether it was accepted."""

    def __init__(self, expected: Sequence[float]) -> None:
        super().__init__(expected)
        self.seen: list[tuple[int, bool]] = []

    def record(self, kind: int, hit: bool) -> None:
        super().record(kind, hit)
        self.seen.append((kind, bool(hit)))


def chain(source: RewritingSource | SuffixSource, text: list[int], length: int) -> list[tuple[int, float]]:
    """Return tokens and probabilities of at most `length` drafts, each the first after the draft before it."""
    found, drafts = list[tuple[int, float]](), source.first(text)
    while drafts and len(found) < length:
        found.append((drafts[0].token, drafts[0].probability))
        drafts = source.after(drafts[0])
    return found

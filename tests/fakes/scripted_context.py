"""A model that writes what a test says, token by token, and sees what is guessed before it does. No test lives here.

It keeps no cells and no rules, so that long texts are quick. Its clock moves when it decodes.
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
"""The token at a place of the text, where these tokens are guessed for it."""

Cost = Callable[[int, int], float]
"""Seconds of a batch, by its rows and the position of the first."""


class ScriptedContext(FakeContext):
    """Writes `script`, and takes `cost` by `clock`."""

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
    """`seen`: each draft's kind and whether it was accepted."""

    def __init__(self, expected: Sequence[float]) -> None:
        super().__init__(expected)
        self.seen: list[tuple[int, bool]] = []

    def record(self, kind: int, hit: bool) -> None:
        super().record(kind, hit)
        self.seen.append((kind, bool(hit)))


def chain(source: RewritingSource | SuffixSource, text: list[int], length: int) -> list[tuple[int, float]]:
    """The first draft, the first one after it, and so on."""
    found, drafts = list[tuple[int, float]](), source.first(text)
    while drafts and len(found) < length:
        found.append((drafts[0].token, drafts[0].probability))
        drafts = source.after(drafts[0])
    return found

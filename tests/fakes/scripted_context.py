"""A model that writes what a test says, token by token, and sees what is guessed before it does. No test lives here.

It keeps no cells and no rules (engine.py does), so that long texts are quick. Its clock moves when it decodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from lacli.auto.draft import HitRates
from lacli.batch import Batch, Ints
from lacli.context import Floats
from tests.fakes.clock import FakeClock

Script = Callable[[int, Set[int]], int]
"""The token at a place of the text, where these tokens are guessed for it."""

Cost = Callable[[int, int], float]
"""Seconds of a batch, by its rows and the position of the first."""


@dataclass
class ScriptedContext:
    script: Script
    cost: Cost
    clock: FakeClock
    vocabulary: int = 50
    cells: int = 100_000
    batch_rows: int = 2048
    sequences: int = 256
    can_share: bool = True
    passes_all_cells: bool = False
    prefill_rows: int = 512
    mixed_rows: int = 512
    trained_context: int = 4096
    _choices: list[int] = field(default_factory=list)

    def decode(self, batch: Batch) -> bool:
        rows = len(batch)
        tokens, places = batch.tokens[:rows].tolist(), batch.positions[:rows].tolist()
        self.clock.now += self.cost(rows, places[0])
        guessed: defaultdict[int, set[int]] = defaultdict(set)
        for token, place in zip(tokens[1:], places[1:], strict=True):
            guessed[place].add(token)
        text: dict[int, int] = {}
        place, goes_on = places[0], batch.wanted > 0
        while goes_on:
            place += 1
            text[place] = self.script(place, guessed[place])
            goes_on = text[place] in guessed[place]
        outputs = batch.outputs[:rows].tolist()
        self._choices = [text.get(place + 1, 0) for place, wanted in zip(places, outputs, strict=True) if wanted]
        return True

    def greedy(self) -> Ints:
        return np.array(self._choices, np.int32)

    def logits(self) -> Floats:
        raise NotImplementedError

    def row_logits(self, row: int) -> Floats:
        raise NotImplementedError

    def copy(self, source: int, target: int, start: int, end: int) -> None: ...

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return True

    def clear(self) -> None: ...

    def is_end(self, token: int) -> bool:
        return False


class RecordedHits(HitRates):
    """`seen`: each draft's kind and whether it was accepted."""

    def __init__(self, expected: Sequence[float]) -> None:
        super().__init__(expected)
        self.seen: list[tuple[int, bool]] = []

    def record(self, kind: int, hit: bool) -> None:
        super().record(kind, hit)
        self.seen.append((kind, bool(hit)))

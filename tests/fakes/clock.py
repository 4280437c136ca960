"""Clocks that move only when a context decodes, by a cost that the test chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from lacli.batch import Batch
from tests.fakes.context import FakeContext

READERS = ("lacli.bench.rounds", "lacli.engine.cells", "lacli.engine.engine", "lacli.engine.step")
"""Modules that call perf_counter."""


@dataclass
class FakeClock:
    """now: seconds since an arbitrary beginning."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace perf_counter in all READERS by this clock."""
        for module in READERS:
            monkeypatch.setattr(f"{module}.perf_counter", self)


@dataclass
class ClockedContext(FakeContext):
    """A toy context whose decode calls take `cost(rows, outputs)` seconds. `steps`: counts calls with outputs."""

    clock: FakeClock = field(default_factory=FakeClock)
    cost: Callable[[int, int], float] = lambda rows, outputs: 1.0
    steps: int = 0

    def decode(self, batch: Batch) -> bool:
        fits = super().decode(batch)
        if fits:
            self.clock.now += self.cost(len(batch), batch.wanted)
            self.steps += bool(batch.wanted)
        return fits

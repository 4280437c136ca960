"""Hit rates that remember which drafts were scored."""

from __future__ import annotations

from collections.abc import Sequence

from lacli.auto.hit_rates import HitRates


class RecordedHits(HitRates):
    """`seen`: each draft's kind and whether it was accepted."""

    def __init__(self, expected: Sequence[float]) -> None:
        super().__init__(expected)
        self.seen: list[tuple[int, bool]] = []

    def record(self, kind: int, hit: bool) -> None:
        super().record(kind, hit)
        self.seen.append((kind, bool(hit)))

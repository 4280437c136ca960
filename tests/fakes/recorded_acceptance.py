"""An acceptance estimate that remembers which guesses were scored."""

from __future__ import annotations

from collections.abc import Sequence

from lacli.auto.acceptance import AcceptanceEstimate


class RecordedAcceptance(AcceptanceEstimate):
    """seen: each try's kind and whether it came true."""

    def __init__(self, expected: Sequence[float]) -> None:
        super().__init__(expected)
        self.seen: list[tuple[int, bool]] = []

    def record(self, kind: int, hit: bool) -> None:
        super().record(kind, hit)
        self.seen.append((kind, bool(hit)))

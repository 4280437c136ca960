"""A belief that remembers which guesses were scored. No test lives here."""

from __future__ import annotations

from collections.abc import Sequence

from lacli.auto.belief import Belief


class Recorded(Belief):
    """seen: each try's kind and whether it came true."""

    def __init__(self, expected: Sequence[float]) -> None:
        super().__init__(expected)
        self.seen: list[tuple[int, bool]] = []

    def saw(self, kind: int, hit: bool) -> None:
        super().saw(kind, hit)
        self.seen.append((kind, bool(hit)))

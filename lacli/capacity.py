"""What one context must have for several settings that decode in it one after another.

Sizes only; contexts are made in `context.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lacli.settings import DecodeSettings


@dataclass(frozen=True)
class Capacity:
    """What a context must have for several settings that decode in it one after another."""

    sequences: int
    most_outputs: int
    ordered: bool
    back: int = -1
    recycles: bool = False

    @classmethod
    def of(cls, settings: Sequence[DecodeSettings]) -> Capacity:
        """Enough for each of them; they agree about `ordered`, which the model decides."""
        return cls(
            sequences=max(each.sequences for each in settings),
            most_outputs=max(each.most_outputs for each in settings),
            ordered=any(each.ordered for each in settings),
            back=max(each.back for each in settings),
            recycles=any(each.recycles for each in settings),
        )

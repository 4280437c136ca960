"""What two texts have in common at their beginning. Token ids only."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two texts have in common at their beginning."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(left), len(right)))

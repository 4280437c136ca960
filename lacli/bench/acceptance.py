"""How far guesses were accepted: the histogram of a run's steps and the rates by position.

Counts taken from steps; what a step costs lives in `stats.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from lacli.stats import Step

Counts = tuple[int, ...]


@dataclass(frozen=True)
class Acceptance:
    """Steps by how many tokens they brought.

    histogram[k]: steps that brought k+1 tokens. guessed[k]: those among them that had guesses which could be
    accepted, so all but the ones at 0. drafted: such guesses, of all steps together.
    """

    histogram: Counts = ()
    guessed: Counts = ()
    drafted: int = 0

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Acceptance:
        """The acceptance of the steps of one run or of several."""
        steps = list(steps)
        return cls(
            histogram=_counts(len(step.tokens) for step in steps),
            guessed=_counts(len(step.tokens) for step in steps if step.drafted),
            drafted=sum(step.drafted for step in steps),
        )

    @property
    def accepted(self) -> int:
        """Guesses that were accepted: all tokens but the one of each step that is the model's own."""
        return sum(more * steps for more, steps in enumerate(self.histogram))

    @property
    def accepted_share(self) -> float:
        """Accepted guesses over drafted ones; a tree's branches exclude each other, so a wide one has a small share."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def position_rates(self) -> list[float]:
        """The share of the steps with guesses that accepted at least one, at least two and so on, while any did."""
        steps = sum(self.guessed)
        return [sum(self.guessed[depth:]) / steps for depth in range(1, len(self.guessed))]

    @property
    def hit_rate(self) -> float:
        """The share of the steps with guesses that accepted at least one."""
        return self.position_rates[0] if len(self.guessed) > 1 else 0.0


def _counts(lengths: Iterable[int]) -> Counts:
    counted = Counter(lengths)
    return tuple(counted[length] for length in range(1, max(counted, default=0) + 1))

"""Mode auto on a fixed clock, for checks: as on a machine whose rows are nearly free, whatever they cost here.

It takes its largest steps then, and the same ones each time. Where guessing does not pay it would take plain steps, and
a check of those would say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.modes import Mode, Outcome
from lacli.settings import DecodeSettings
from lacli.tree import Tree
from lacli.verify import Verifier

PLAIN_S, ROW_S = 1e-2, 5e-5
"""Seconds of a step of one row, and of each further one."""


def fixed_seconds(rows: int) -> float:
    """Seconds of a step of `rows` rows on the fixed clock."""
    return PLAIN_S + ROW_S * (rows - 1)


COST = Cost((StepCost(0, tuple(Point(rows, fixed_seconds(rows), fixed_seconds(rows)) for rows in (1, 64))),))


class FixedClockDecoder(Decoder):
    """A decoder whose mode is told the times of a fixed clock."""

    def __init__(
        self,
        engine: Engine,
        settings: DecodeSettings,
        verifier: Verifier | None = None,
        *,
        others: Mapping[str, Engine] | None = None,
    ) -> None:
        super().__init__(engine, settings, verifier, cost=COST, others=others)

    def _new_mode(self) -> Mode:
        return FixedClockMode(super()._new_mode())


class FixedClockMode(Mode):
    """Another mode, which is told the times of a fixed clock."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode

    def begin(self, text: Sequence[int]) -> None:
        self._mode.begin(text)

    def truncate(self, text: Sequence[int], length: int) -> None:
        self._mode.truncate(text, length)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        return self._mode.grow(text, room)

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        self._mode.observe(tree, outcome._replace(seconds=fixed_seconds(outcome.rows), clock=float))

"""Mode auto on a fixed clock: as on a machine whose rows are nearly free, whatever they cost here.

It takes its largest steps then, the same ones each time. Where guessing does not pay it would take plain steps, and a
check of those says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from lacli.auto.mode import AutoModes
from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.context import Context
from lacli.modes import Growing, Mode, Outcome
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.tree import Tree

PLAIN_S, ROW_S = 1e-2, 5e-5
"""Seconds of a step of one row, and of each further one."""


def step_seconds(rows: int) -> float:
    """Seconds of a step of `rows` rows."""
    return PLAIN_S + ROW_S * (rows - 1)


COST = Cost((StepCost(0, tuple(Point(rows, step_seconds(rows), step_seconds(rows)) for rows in (1, 64))),))


class FixedClockMode(Mode):
    """Another mode, which is told how long steps of their size take instead of how long they took."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode

    def begin(self, tokens: Sequence[int]) -> None:
        self.mode.begin(tokens)

    def grow(self, tokens: Sequence[int], room: int) -> Tree:
        return self.mode.grow(tokens, room)

    def grow_all(self, texts: Sequence[Growing], room: int, beside: int = 0) -> list[Tree]:
        inner = [text._replace(mode=text.mode.mode) for text in texts if isinstance(text.mode, FixedClockMode)]
        return self.mode.grow_all(inner, room, beside)

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        self.mode.observe(tree, outcome._replace(seconds=step_seconds(outcome.rows), clock=float))

    def without_guesses(self) -> Mode:
        return FixedClockMode(self.mode.without_guesses())


def fixed_clock_modes(settings: DecodeSettings, pool: NgramPool, context: Context, before: Mode | None = None) -> Mode:
    """Make the mode that the settings ask for, on the fixed clock."""
    known = before.mode if isinstance(before, FixedClockMode) else None
    return FixedClockMode(AutoModes(COST)(settings, pool, context, known))

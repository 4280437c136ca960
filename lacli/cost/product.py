"""`lacli cost` as a whole: what is kept of a model, or measured now, shown.

Takes settings; flags are read before, terminals are `ui.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import time

from lacli.cost.cost_json import as_json
from lacli.cost.known import cost_key, cost_of, measure_cost
from lacli.cost.measure import MeasurePlan
from lacli.cost.report import Setup, as_lines
from lacli.cost.store import CostStore
from lacli.errors import Interrupted
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.probe import proven
from lacli.llamacpp.settings import ModelSettings
from lacli.staircase import Cost
from lacli.terminal.screen import Screen, loading_model


@dataclass(frozen=True)
class CostPlan:
    """What is measured, where costs are kept, and how they are shown. fresh: measure also what is kept."""

    measured: MeasurePlan
    folder: Path
    fresh: bool = False
    json: bool = False
    verbose: bool = False


def show_cost(path: Path, loading: ModelSettings, plan: CostPlan, screen: Screen) -> None:
    """Print what steps of a model cost here. Raises Interrupted after Ctrl-C, with nothing printed or kept."""
    loading, fault = proven(loading)
    if fault:
        screen.note(fault)
    store, key = CostStore(plan.folder), cost_key(path, loading, plan.measured)
    measured = partial(_measured, path, loading, plan, screen)
    cost, kept = cost_of(key, plan.measured, store, measured, fresh=plan.fresh, progress=screen.note)
    setup = Setup(str(path), loading, max(time() - cost.measured_at, 0.0) if kept else None)
    shown = json.dumps(as_json(setup, cost), ensure_ascii=False) if plan.json else as_lines(setup, cost)
    screen.line(shown)


def _measured(path: Path, loading: ModelSettings, plan: CostPlan, screen: Screen) -> Cost:
    with loading_model(screen):
        model = LlamaModel(path, loading, verbose=plan.verbose)
    with model:
        try:
            cost = measure_cost(model, loading, plan.measured, screen.note)
        except KeyboardInterrupt:
            raise Interrupted("stopped before everything was measured, so nothing is kept") from None
    return cost

"""The cost of a model: from its file where it was measured before, measured now where it was not.

For every command that has to know what a step costs here; it prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from time import time

from lacli.cost.measure import (
    MeasurePlan,
    drift,
    engine_settings,
    measure,
)
from lacli.cost.store import (
    CostKey,
    CostStore,
    MachineKey,
    content_hash,
)
from lacli.doctor.versions import backend_words, build_words
from lacli.errors import reason_of
from lacli.llamacpp.context import LlamaEngine, most_back
from lacli.llamacpp.devices import CPU, Device, with_threads
from lacli.llamacpp.library import build, devices
from lacli.llamacpp.model import LlamaModel, offloads
from lacli.llamacpp.probe import build_files, proven
from lacli.llamacpp.settings import ModelSettings, Placement
from lacli.session.session import Session
from lacli.staircase import Cost
from lacli.terminal.interrupts import ctrl_c_ends_at_once

Progress = Callable[[str], None]


def device_names(placement: Placement, *, offloaded: bool) -> str:
    """What computes a model, in words: the processor, and what else there is where layers go there."""
    there = _taking_part(placement)
    return ", ".join(device.description.strip() for device in there if offloaded or device.name == CPU)


def build_devices(placement: Placement) -> str:
    """All that this build could compute on here: large batches go to a GPU even where no layer does.

    Where devices are named those alone, and how the model is split between them.
    """
    words = ", ".join(f"{device.name}: {device.description.strip()}" for device in _taking_part(placement))
    split = " ".join(replace(placement, devices=()).flags)
    return f"{words} ({split})" if split else words


def _taking_part(placement: Placement) -> list[Device]:
    """The devices named, in their order, and the processor behind them; all devices where none is named."""
    found = devices()
    if not placement.devices:
        return found
    by_name = {device.name: device for device in found}
    named = [by_name.get(name, Device(name, "on another machine", True)) for name in placement.devices if name != CPU]
    return named + [device for device in found if device.name == CPU]


def room(plan: MeasurePlan, loading: ModelSettings, default_context: int = 0) -> tuple[int, int]:
    """Cells and rows of a batch for a plan: what it needs, or what -c and -b allow. default_context: -c 0; 0: any."""
    batch = min(plan.sizes[-1], loading.batch)
    cells = max(plan.contexts) + batch
    return min(loading.context or default_context or cells, cells), batch


def machine_key(path: Path, loading: ModelSettings) -> MachineKey:
    """A model file with these settings on this machine; no model has to be loaded for it."""
    loading, _ = proven(loading)
    library, files = build(), sha256(repr(build_files()).encode()).hexdigest()[:8]
    return MachineKey(
        model=path.name,
        size=path.stat().st_size,
        content=content_hash(path),
        library="; ".join([build_words(library), *map(backend_words, library.backends), f"files {files}"]),
        devices=build_devices(loading.placement),
        threads=loading.threads,
        threads_batch=loading.threads_batch,
        gpu_layers=loading.gpu_layers if offloads(loading) else 0,
        flash_attention=loading.flash_attention,
        cache_type_k=loading.cache_type_k,
        cache_type_v=loading.cache_type_v,
        repack=loading.repack,
        tiled=loading.tiled,
    )


def cost_key(path: Path, loading: ModelSettings, plan: MeasurePlan) -> CostKey:
    """What the cost of a model file with these settings is kept under."""
    cells, batch = room(plan, loading)
    return CostKey(
        **asdict(machine_key(path, loading)),
        contexts=tuple(sorted(set(plan.contexts))),
        rows=plan.sizes,
        cells=cells,
        batch=batch,
    )


def measure_cost(
    model: LlamaModel, loading: ModelSettings, plan: MeasurePlan, progress: Progress = lambda sentence: None
) -> Cost:
    """Measure a model in a context of its own, which is as small as it can be and closed again.

    Raises ModelLoadError where there is no memory for it.
    """
    # Whoever only asks what is known does without the judges.
    from lacli.check.compare import PROMPTS

    loading = with_threads(loading)
    cost = Cost(
        (),
        description=model.description,
        devices=device_names(model.placement, offloaded=model.offloaded),
        chain_only=model.chain_only,
        measured_at=time(),
        budget=plan.seconds,
    )
    back = most_back(model, loading)
    if not back:
        return cost
    # A step's time depends on the cells in use, not on those that are there.
    cells, batch = room(plan, loading, model.default_context)
    if back > 0:
        plan, cells = _of_chains(plan, back, loading.context or model.default_context)
    largest = max(size for size in plan.sizes if size <= batch)
    with ctrl_c_ends_at_once():
        engine = LlamaEngine(model, replace(loading, context=cells), engine_settings(largest, back))
    with engine:
        found = measure(engine, model.tokenize("\n".join(PROMPTS)) or [0], plan, progress=progress)
    stuck = "its cache cannot go back to what it was before a step" if found.stuck else model.chain_only
    return replace(cost, staircases=found.staircases, notes=found.notes, chain_only=stuck)


def _of_chains(plan: MeasurePlan, back: int, most: int) -> tuple[MeasurePlan, int]:
    """The plan with steps that can be taken back but for their first rows, and its cells: at most so many.

    The text grows by those rows.
    """
    largest = 1 + back
    rows = tuple({min(size, largest) for size in plan.rows})
    contexts = tuple(min(context, max(most - largest - drift(most), 1)) for context in plan.contexts)
    return replace(plan, rows=rows, contexts=contexts), max(contexts) + drift(max(contexts)) + largest


def tell(session: Session, store: CostStore) -> list[str]:
    """Let a session know, for mode auto, what was measured of its model here, with whatever was asked for then.

    Nothing is measured. Files that hold no cost are removed, and the sentences say so.
    """
    # Without a file there is nothing to hash a model for.
    if not store.holds(session.model.path.name):
        return []
    found = store.richest(machine_key(session.model.path, session.model_settings))
    if found.cost and found.cost.staircases:
        session.use_cost(found.cost)
    return [f"{path} holds no measured cost and {_removed(path)}" for path in found.broken]


def _removed(path: Path) -> str:
    """Remove a file; words on that, or on why it stays."""
    try:
        path.unlink()
    except OSError as error:
        return f"cannot be removed: {reason_of(error)}"
    return "is removed; lacli cost measures it again"


def known_cost(key: CostKey, plan: MeasurePlan, store: CostStore) -> Cost | None:
    """What is kept, if it was measured with as much time as the plan gives."""
    cost = store.load(key)
    return cost if cost and cost.budget >= plan.seconds else None


def cost_beside(session: Session, seconds: float, store: CostStore, progress: Progress) -> Cost:
    """What is kept of an open session's model, or measured now, in about so many seconds and a context of its own."""
    plan = MeasurePlan(seconds=seconds)
    model, loading = session.model, session.model_settings
    key = cost_key(model.path, loading, plan)
    return cost_of(key, plan, store, lambda: measure_cost(model, loading, plan, progress), progress=progress)[0]


def keep(key: CostKey, cost: Cost, store: CostStore) -> str:
    """Save a cost for the next time; the reason where that is not possible, or not wise, otherwise ''."""
    if cost.rough:
        return "the times vary too much to be kept: the machine is busy, and fewer threads may help (-t)"
    return store.save(key, cost)


def cost_of(
    key: CostKey,
    plan: MeasurePlan,
    store: CostStore,
    measured: Callable[[], Cost],
    *,
    fresh: bool = False,
    progress: Progress = lambda sentence: None,
) -> tuple[Cost, bool]:
    """What is kept, or `measured` now and kept then; and whether it was kept before. fresh: measured in any case."""
    kept = None if fresh else known_cost(key, plan, store)
    if kept:
        return kept, True
    if store.broken(key):
        progress("what was kept of this model's cost cannot be read, so it is measured again")
    cost = measured()
    if failure := keep(key, cost, store):
        progress(failure)
    return cost, False

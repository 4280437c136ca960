"""What the steps of a model cost on this machine, measured now or kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter, process_time, time
from typing import Any

from lacli.auto.measure import ROWS, SAMPLE, MeasurePlan, drift, engine_settings, measure
from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.ik.choice import open_context
from lacli.llamacpp.context import max_rollback
from lacli.llamacpp.devices import CPU, Device, build_files, with_threads
from lacli.llamacpp.library import devices, version
from lacli.llamacpp.model import LlamaModel, offloads
from lacli.llamacpp.probe import proven
from lacli.llamacpp.settings import ModelSettings
from lacli.text.files import UNREADABLE, Records, model_identity

KIND, PUT_OFF = "cost", "put off"
"""The records' kinds: costs that were measured, and when measuring failed."""

PUT_OFF_S = 3600.0
"""Seconds without another try where the machine was too busy to measure: a server may be started every minute."""

SERVING = MeasurePlan(contexts=(64,), rows=tuple(size for size in ROWS if size <= 32), seconds=20.0, rounds=4)
"""What a server measures once of a new model: the sizes that steps of several texts have.

The 0.5B shape takes 11 s on an EPYC core; of the 3B, 5 s measured steps of one and two rows only.
"""

Progress = Callable[[str], None]
Key = Mapping[str, object]


def machine_key(path: Path, settings: ModelSettings) -> Key:
    """Return all that a step's time depends on: the model file, the build, the devices and the context's settings."""
    settings, _ = proven(settings)
    library = repr((version(), build_files()))
    return {
        **model_identity(path),
        "library": sha256(library.encode()).hexdigest()[:32],
        "devices": build_devices(settings),
        "threads": settings.threads,
        "threads_batch": settings.threads_batch,
        "gpu_layers": settings.gpu_layers if offloads(settings) else 0,
        "flash_attention": settings.flash_attention,
        "cache_type_k": settings.cache_type_k,
        "cache_type_v": settings.cache_type_v,
        "engine": settings.engine,
        "repack": settings.repack,
        "tiled": settings.tiled,
    }


def cost_key(path: Path, settings: ModelSettings, plan: MeasurePlan) -> Key:
    """Return what a measured cost is kept under: the machine, what was asked for, and the room that -c and -b leave."""
    cells, batch = room(plan, settings)
    asked = {"contexts": sorted(set(plan.contexts)), "rows": list(plan.sizes), "cells": cells, "batch": batch}
    return {**machine_key(path, settings), **asked}


def room(plan: MeasurePlan, settings: ModelSettings, default_context: int = 0) -> tuple[int, int]:
    """Return the cells and the rows of a batch that a plan needs, or what -c and -b allow (`default_context`: -c 0)."""
    batch = min(plan.sizes[-1], settings.batch)
    cells = max(plan.contexts) + batch
    return min(settings.context or default_context or cells, cells), batch


def build_devices(settings: ModelSettings) -> str:
    """Return all devices that could take part, and how the model is split: a GPU gets large batches in any case."""
    words = ", ".join(f"{device.name}: {device.description.strip()}" for device in _taking_part(settings.devices))
    split = settings.split_mode, settings.tensor_split, settings.main_gpu
    return f"{words} {split}"


def device_names(named: Sequence[str], *, offloaded: bool) -> str:
    """Return what computes a model, in words: the processor, and the other devices if layers are there."""
    there = _taking_part(named)
    return ", ".join(device.description.strip() for device in there if offloaded or device.name == CPU)


def _taking_part(named: Sequence[str]) -> list[Device]:
    """Return the named devices in their order and the processor behind them; all devices if none is named."""
    found = devices(memory=False)
    if not named:
        return found
    by_name = {device.name.lower(): device for device in found}
    those = [by_name.get(name.lower(), Device(name, "on another machine", True)) for name in named]
    return [device for device in those if device.name != CPU] + [device for device in found if device.name == CPU]


def known_cost(state: Path, path: Path, settings: ModelSettings) -> Cost | None:
    """Return the cost with the most measured steps of a model on this machine, whatever was asked for; or None."""
    found = Records(state).all(KIND)
    kept = [(key, value) for key, value in found if isinstance(key, dict) and key.get("model") == path.name]
    if not kept:
        return None  # without hashing the model's file
    machine = machine_key(path, settings).items()
    costs = [cost for key, value in kept if machine <= key.items() and (cost := _cost(value)) and cost.staircases]
    return max(costs, key=_richness, default=None)


def put_off(state: Path, path: Path, settings: ModelSettings) -> None:
    """Keep that the machine was too busy now to measure the model."""
    Records(state).save(PUT_OFF, machine_key(path, settings), time())


def is_put_off(state: Path, path: Path, settings: ModelSettings) -> bool:
    """True for PUT_OFF_S seconds behind `put_off`."""
    failed_at = Records(state).read(PUT_OFF, machine_key(path, settings))
    return isinstance(failed_at, float) and 0 <= time() - failed_at < PUT_OFF_S


def cost_of(
    key: Key,
    plan: MeasurePlan,
    state: Path,
    measured: Callable[[], Cost],
    *,
    fresh: bool = False,
    progress: Progress = lambda sentence: None,
) -> tuple[Cost, bool]:
    """Return the kept cost if it was measured with the plan's time, else `measured` now and keep it; and which it is.

    `fresh`: measure in any case. `progress`: gets the reason if it cannot or should not be kept.
    """
    records = Records(state)
    kept = None if fresh else _cost(records.read(KIND, key))
    if kept and kept.budget >= plan.seconds:
        return kept, True
    cost = measured()
    if cost.stopped:
        return cost, False
    rough = "the times are too rough to be kept: is the machine busy with other work?"
    if failure := rough if cost.rough else records.save(KIND, key, asdict(cost)):
        progress(failure)
    return cost, False


def cost_beside(
    model: LlamaModel,
    settings: ModelSettings,
    plan: MeasurePlan,
    state: Path,
    progress: Progress,
    opening: AbstractContextManager[None] | None = None,
) -> Cost:
    """Return the kept cost of an open model, or measure and keep it, as `measure_cost` does on a calm machine."""

    def measured() -> Cost:
        return measure_cost(model, settings, plan, progress, opening, only_calm=True)

    return cost_of(cost_key(model.path, settings, plan), plan, state, measured, progress=progress)[0]


def measure_cost(
    model: LlamaModel,
    settings: ModelSettings,
    plan: MeasurePlan,
    progress: Progress = lambda sentence: None,
    opening: AbstractContextManager[None] | None = None,
    *,
    only_calm: bool = False,
) -> Cost:
    """Measure a model in a context of its own, as small as it can be; `opening` is entered while it is made.

    `only_calm`: end soon where other programs keep threads waiting. Raises ModelLoadError if there is no memory for it.
    """
    settings = replace(with_threads(settings), gives_way=False)
    cost = Cost(
        (),
        description=model.description,
        devices=device_names(model.settings.devices, offloaded=model.offloaded),
        chain_only=model.chain_only,
        measured_at=time(),
        budget=plan.seconds,
    )
    back = max_rollback(model, settings)
    if not back:
        return cost
    # A step's time depends on the cells in use, not on those that are there.
    cells, batch = room(plan, settings, model.default_context)
    if back > 0:
        plan, cells = _of_chains(plan, back, settings.context or model.default_context)
    largest = max(size for size in plan.sizes if size <= batch)
    with opening or nullcontext():
        engine = open_context(model, replace(settings, context=cells), engine_settings(largest, back))
    with engine:
        begin, core_begin = perf_counter(), process_time()

        def share() -> float:
            wanted_s = (perf_counter() - begin) * settings.threads
            return 1.0 if model.offloaded else (process_time() - core_begin) / wanted_s

        def worthwhile() -> bool:
            return not (only_calm and replace(cost, core_share=share()).rough)

        found = measure(engine, model.tokenize(SAMPLE) or [0], plan, progress=progress, worthwhile=worthwhile)
        # Of a machine that has become calm in the meantime nothing is kept either.
        core_share = 0.0 if found.is_cut else share()
    stuck = "its cache cannot go back to what it was before a step" if found.stuck else model.chain_only
    return replace(
        cost,
        staircases=found.staircases,
        notes=found.notes,
        chain_only=stuck,
        stopped=found.stopped,
        core_share=core_share,
    )


def _of_chains(plan: MeasurePlan, back: int, cells: int) -> tuple[MeasurePlan, int]:
    """Return the plan for steps that can be taken back but for their first row, and its cells, at most `cells`.

    The text grows by those rows.
    """
    largest = 1 + back
    rows = tuple({min(size, largest) for size in plan.rows})
    contexts = tuple(min(context, max(cells - largest - drift(cells), 1)) for context in plan.contexts)
    return replace(plan, rows=rows, contexts=contexts), max(contexts) + drift(max(contexts)) + largest


def _richness(cost: Cost) -> tuple[int, float, float]:
    """Order costs by the measured steps, then by the time it took, then by age."""
    return sum(len(step_cost.points) for step_cost in cost.staircases), cost.budget, cost.measured_at


def _cost(kept: Any) -> Cost | None:
    """Return a cost as it was saved, None for anything else."""
    try:
        staircases = tuple(
            StepCost(each["context"], tuple(Point(**point) for point in each["points"])) for each in kept["staircases"]
        )
        cost = Cost(**{**kept, "staircases": staircases, "notes": tuple(kept["notes"])})
    except UNREADABLE:
        return None
    return cost if cost.staircases or cost.chain_only else None

"""What the steps of a model cost on this machine: measured now, or as the JSON file of lacli has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any

from lacli.auto.measure import SAMPLE, measure
from lacli.auto.step_cost import ROWS, Cost, MeasurePlan, StepCost
from lacli.ik.choice import open_context
from lacli.llamacpp.devices import CPU, Device, build_files, with_threads
from lacli.llamacpp.library import devices, version
from lacli.llamacpp.model import LlamaModel, offloads
from lacli.llamacpp.probe import proven
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.files import UNREADABLE, Records, model_identity

KIND = "cost"
"""The kind of the records."""

SERVING = MeasurePlan(contexts=(64,), rows=tuple(size for size in ROWS if size <= 32))
"""What a server measures once of a new model: the sizes that steps of several sequences have.

The 0.5B shape takes 11 s on an EPYC core; of the 3B, 5 s measured steps of one and two rows only.
"""

Progress = Callable[[str], None]


def machine_key(path: Path, settings: ModelSettings) -> Mapping[str, object]:
    """Return all that a step's time depends on: the model file, the build, the devices and the context's settings."""
    settings, _ = proven(settings)
    library = repr((version(), build_files()))
    return {
        **model_identity(path),
        "library": sha256(library.encode()).hexdigest()[:32],
        "devices": device_names(settings),
        "split": (settings.split_mode, settings.tensor_split, settings.main_gpu),
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


def device_names(settings: ModelSettings) -> str:
    """Return the devices that can take part: a GPU gets large batches in any case."""
    found = devices(memory=False)
    if settings.devices:
        by_name = {device.name.lower(): device for device in found}
        named = [by_name.get(name.lower(), Device(name, "on another machine", True)) for name in settings.devices]
        found = [each for each in named if each.name != CPU] + [each for each in found if each.name == CPU]
    return ", ".join(f"{device.name}: {device.description.strip()}" for device in found)


def saved_cost(state: Path, path: Path, settings: ModelSettings) -> Cost | None:
    """Return what the steps of a model cost on this machine as the file `state` has it, or None."""
    return _cost(Records(state).read(KIND, machine_key(path, settings)))


def cost_of(
    path: Path,
    settings: ModelSettings,
    plan: MeasurePlan,
    state: Path,
    measured: Callable[[], Cost],
    *,
    fresh: bool = False,
    progress: Progress = lambda sentence: None,
) -> tuple[Cost, bool]:
    """Return the saved cost if it covers the plan, else `measured` now and save it; and which it is.

    `fresh`: measure in any case. `progress`: gets the reason if it cannot be saved.
    """
    saved = saved_cost(state, path, settings)
    if saved and not fresh and saved.plan.covers(fitted(plan, settings)):
        return saved, True
    cost = measured()
    if cost.by_context and (failure := Records(state).save(KIND, machine_key(path, settings), asdict(cost))):
        progress(failure)
    return cost, False


def fitted(plan: MeasurePlan, settings: ModelSettings, cells: int = 0) -> MeasurePlan:
    """Return the part of a plan for which -b and -c, or a context of `cells` tokens, leave room."""
    cells = settings.context or cells or max(plan.contexts) + plan.rows[-1]
    rows = [size for size in plan.rows if size <= min(settings.batch, max(cells // 2, 1))]
    contexts = {max(min(context, cells - max(rows, default=1)), 1) for context in plan.contexts}
    return replace(plan, rows=tuple(sorted({1, *rows})), contexts=tuple(sorted(contexts)))


def measure_cost(
    model: LlamaModel,
    settings: ModelSettings,
    plan: MeasurePlan,
    progress: Progress = lambda sentence: None,
    opening: AbstractContextManager[None] | None = None,
) -> Cost:
    """Measure a model in a context of its own, as small as it can be; `opening` is entered while it is made.

    Nothing is measured of a model with a recurrent state; mode auto learns from its own steps.
    Raises ModelLoadError if there is no memory for the context.
    """
    settings = replace(with_threads(settings), gives_way=False)
    cost = Cost((), None, fitted(plan, settings), model.description, device_names(settings), model.chain_only, time())
    if model.chain_only:
        return cost
    # A step's time depends on the cells in use, not on those that are there.
    asked = fitted(plan, settings, model.default_context)
    largest = asked.rows[-1]
    if not asked.covers(plan):
        progress(f"-b and -c leave room for steps of {largest} rows behind {asked.contexts[-1]:,} tokens at most")
    decode = DecodeSettings(mode="lookup", lookup_draft=largest - 1) if largest > 1 else DecodeSettings(mode="plain")
    with opening or nullcontext():
        context = open_context(model, replace(settings, context=asked.contexts[-1] + largest), decode)
    with context:
        by_context, change_s = measure(context, model.tokenize(SAMPLE) or [0], asked, progress=progress)
    return replace(cost, by_context=by_context, change_s=change_s)


def _cost(found: Any) -> Cost | None:
    """Return a cost as it was saved, None for anything else."""
    try:
        by_context = tuple(
            StepCost(each["context"], {int(rows): float(seconds) for rows, seconds in dict(each["measured"]).items()})
            for each in found["by_context"]
        )
        plan = MeasurePlan(tuple(found["plan"]["contexts"]), tuple(found["plan"]["rows"]), found["plan"]["seconds"])
        cost = Cost(**{**found, "by_context": by_context, "plan": plan})
    except UNREADABLE:
        return None
    return cost if by_context and all(1 in each.measured for each in by_context) else None

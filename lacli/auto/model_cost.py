"""The cost of a model's steps on this machine: measured now, or read from lacli's JSON file.

A clock measures steps of many sizes; their rows form a chain with id 0, as drafts do. Rounds spread the times of a
size over the whole measurement, so a slow phase of the machine concerns all sizes alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter, time
from typing import Any

from lacli.auto.step_cost import LEAST_MEASURED, ROWS, Cost, MeasurePlan, StepCost
from lacli.batch import Batch, from_tokens
from lacli.context import Context
from lacli.ik.context import decoding_library
from lacli.interrupts import ctrl_c_ends_at_once
from lacli.llamacpp.build import build_files
from lacli.llamacpp.context import DecodingContext
from lacli.llamacpp.devices import Device, devices, offloads
from lacli.llamacpp.machine import with_threads
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.probe import working_settings
from lacli.llamacpp.settings import CPU, ContextSize, ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.records import UNREADABLE, Records, model_identity
from lacli.tree import Origin, Tree

KIND = "cost"
"""The kind of the records of step costs in lacli's JSON file."""

DECISIVE = ("threads", "threads_batch", "flash_attention", "cache_type_k", "cache_type_v", "engine", "repack", "tiled")
"""Fields of ModelSettings on whose values a step's time depends."""

SERVING = MeasurePlan(contexts=(64,), rows=tuple(size for size in ROWS if size <= 32))
"""The steps that a server with several slots measures once for a new model."""

WARM_UP = MeasurePlan(contexts=(64,), rows=(1, 2, 4, LEAST_MEASURED), seconds=1.0)
"""The steps that warm up a GPU at loading: an H100's first step of three rows took tens of ms, a plain step 2 ms."""

SAMPLE = (
    "```python\ndef count_words(text):\n    counts = {}\n    for word in text.split():\n        counts[word] += 1\n"
    "A hash table finds an entry by a number that is computed from its key. List ten things for a long walk: water, "
    'bread, a map ... Turn this into JSON: {"name": "Ada", "age": 36, "town": "London"}. Once upon a time a lighthouse '
    "keeper found a letter in a bottle; der Wind kam von Norden, et la mer montait."
)
"""A varied text to measure with: a mixture of experts uses few experts for a monotonous text."""

MIN_ROUNDS, MAX_ROUNDS = 3, 6
"""The fewest rounds planned, and the most. Each round visits each size once; a machine that slows down has fewer."""

VISIT = 3
"""Steps of a size in one visit. The first comes after another size, so llama.cpp builds a new graph for it."""

SURVEY, PREFILL = 0.25, 1 / 3
"""Shares of the time. SURVEY: for one step of some sizes, to see how many fit. PREFILL: the most for a prefill."""

DENSE = 16
"""If time is short, sizes with more rows are left out first: small sizes differ most from each other."""

Say = Callable[[str], None]

OpenContext = Callable[[LlamaModel, ModelSettings, ContextSize], DecodingContext]


def machine_key(path: Path, settings: ModelSettings) -> Mapping[str, object]:
    """Return the key of saved step costs: the model file, the build, the devices, and settings that change times."""
    settings, _ = working_settings(settings)
    library = repr((decoding_library(settings), build_files()))
    return {
        **model_identity(path),
        "library": sha256(library.encode()).hexdigest()[:32],
        "devices": device_names(settings),
        "split": (settings.split_mode, settings.tensor_split, settings.main_gpu),
        "gpu_layers": settings.gpu_layers if offloads(settings) else 0,
        **{name: getattr(settings, name) for name in DECISIVE},
    }


def device_names(settings: ModelSettings) -> str:
    """Return the devices in use, as one text: if `settings.devices` is empty, all; else these devices and the CPUs."""
    found = devices(memory=False)
    if settings.devices:
        by_name = {device.name.lower(): device for device in found}
        named = [by_name.get(name.lower(), Device(name, "on another machine", True)) for name in settings.devices]
        found = [each for each in named if each.name != CPU] + [each for each in found if each.name == CPU]
    return ", ".join(f"{device.name}: {device.description.strip()}" for device in found)


def saved_cost(state: Path, path: Path, settings: ModelSettings) -> Cost | None:
    """Return the step costs of the model `path` on this machine from the file `state`; None if the file has none."""
    return _cost(Records(state).read(KIND, machine_key(path, settings)))


def cost_of(
    path: Path,
    settings: ModelSettings,
    plan: MeasurePlan,
    state: Path,
    measure_now: Callable[[], Cost],
    *,
    fresh: bool = False,
    progress: Say = lambda sentence: None,
) -> tuple[Cost, bool]:
    """Return the step costs of the model `path`, and whether the file `state` had them.

    If the file's costs do not cover `plan`, or with `fresh`, `measure_now` is called, and a usable result is
    saved. `progress`: called with the reason if it cannot be saved, which is no error.
    """
    saved = saved_cost(state, path, settings)
    if saved and not fresh and saved.plan.covers(fit_plan(plan, settings)):
        return saved, True
    cost = measure_now()
    is_enough = cost.by_context and (cost.is_usable or plan.rows[-1] < LEAST_MEASURED)
    if is_enough and (failure := Records(state).save(KIND, machine_key(path, settings), asdict(cost))):
        progress(failure)
    return cost, False


def fit_plan(plan: MeasurePlan, settings: ModelSettings, cells: int = 0) -> MeasurePlan:
    """Return the part of a plan that fits -b and -c. `cells`: the limit if -c is not set, 0 for no limit."""
    cells = settings.context or cells or max(plan.contexts) + plan.rows[-1]
    rows = [size for size in plan.rows if size <= min(settings.batch, max(cells // 2, 1))]
    contexts = {max(min(context, cells - max(rows, default=1)), 1) for context in plan.contexts}
    return replace(plan, rows=tuple(sorted({1, *rows})), contexts=tuple(sorted(contexts)))


def measure_cost(
    model: LlamaModel,
    settings: ModelSettings,
    plan: MeasurePlan,
    open_context: OpenContext,
    progress: Say = lambda sentence: None,
) -> Cost:
    """Open the smallest context for `plan`, measure the step costs in it, and close it.

    `open_context`: opens a context of the library that loaded the model. `progress`: called with a sentence before each
    slow part. A model with a recurrent state is not measured: the result has no step costs. Ctrl-C while the context
    opens ends the process. Raises ModelLoadError if there is no memory for the context.
    """
    settings = replace(with_threads(settings), gives_way=False)
    cost = Cost((), None, fit_plan(plan, settings), model.description, device_names(settings), model.chain_only, time())
    if model.chain_only:
        return cost
    # A step's time depends on the cells in use, not on all cells.
    asked = fit_plan(plan, settings, model.default_limit)
    largest = asked.rows[-1]
    if not asked.covers(plan):
        progress(f"-b and -c limit steps to {largest} rows after {asked.contexts[-1]:,} tokens")
    decode = DecodeSettings(mode="lookup", lookup_draft=largest - 1) if largest > 1 else DecodeSettings(mode="plain")
    with ctrl_c_ends_at_once():
        context = open_context(model, replace(settings, context=asked.contexts[-1] + largest), ContextSize.of(decode))
    with context:
        by_context, change_s = measure(context, model.tokenize(SAMPLE) or [0], asked, progress=progress)
    return replace(cost, by_context=by_context, change_s=change_s)


def measure(
    context: Context,
    tokens: Sequence[int],
    plan: MeasurePlan,
    *,
    clock: Callable[[], float] = perf_counter,
    progress: Say = lambda sentence: None,
) -> tuple[tuple[StepCost, ...], float]:
    """Time the steps of `plan`. Return their costs by ascending context, and the extra seconds of a change of rows.

    A change is a step after a step with a different number of rows. `context`: with cells for the plan; its cache is
    cleared. `tokens`: what is decoded, repeated as needed. `progress`: called with a sentence before each slow part. If
    time is short, contexts and large steps are left out.
    """
    timer, found, changes, end = _Timer(context, tokens, clock), list[StepCost](), list[float](), clock() + plan.seconds
    for left, length in zip(range(len(plan.contexts), 0, -1), plan.contexts, strict=True):
        begin = clock()
        seconds = max(end - begin, 0.0) / left
        if found:
            token_s = found[-1].seconds(found[-1].max_rows) / found[-1].max_rows
            if (length - found[-1].context) * token_s > PREFILL * seconds:
                break
        progress(f"timing steps of 1 to {plan.rows[-1]} rows after {length} tokens")
        timer.prefill(length)
        for again in (True, False):
            times, first = timer.times(plan.rows, begin + seconds)
            # Other work only ever adds to a time.
            timed = StepCost(length, {size: min(each) for size, each in times.items()})
            if timed.is_plausible:
                found.append(timed)
                changes += [min(first[size]) - least_s for size, least_s in timed.measured.items()]
                break
            progress("these times make no sense" + (", measuring once more" if again else ""))
            begin = clock()
    return tuple(found), max(median(changes or [0.0]), 0.0)


class _Timer:
    """Times steps of many sizes, each after the same tokens in the cache."""

    def __init__(self, context: Context, tokens: Sequence[int], clock: Callable[[], float]) -> None:
        self._context, self._tokens, self._clock = context, cycle(tokens), clock
        self._batch, self._past = Batch(context.batch_rows), 0
        context.clear()

    def prefill(self, length: int) -> None:
        while more := min(length - self._past, self._context.batch_rows, self._context.prefill_rows):
            fits = self._context.decode(from_tokens(list(islice(self._tokens, more)), self._past))
            assert fits, "the context has room for the plan"
            self._past += more

    def times(self, sizes: Sequence[int], end: float) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
        """Time steps of `sizes` rows. Return their seconds by size: after a step of equal size, after another size.

        `end`: when to stop, a time of the clock. Sizes that cannot be timed often enough by then are left out.
        """
        begin, survey = self._clock(), dict[int, float]()
        for size in _doubled(sizes):
            if len(survey) > 1 and self._clock() > begin + SURVEY * (end - begin):
                break
            survey[size] = self._step(size)
        expected = StepCost(self._past, survey)
        chosen = _chosen(sizes, expected, end - self._clock())
        times, first = [{size: list[float]() for size in chosen} for _ in range(2)]
        round_s = VISIT * sum(map(expected.seconds, chosen))
        for number in range(MAX_ROUNDS):
            if number and self._clock() + round_s > end:
                break
            for size in chosen:
                first[size].append(self._step(size))
                times[size] += [self._step(size) for _ in range(VISIT - 1)]
        return times, first

    def _step(self, size: int) -> float:
        """Decode a step of `size` rows, read its tokens, and return the seconds of both. The cache is as before."""
        tree = Tree(next(self._tokens))
        tree.add_path(list(islice(self._tokens, size - 1)), 0, Origin.CHAIN)
        batch = self._batch.set_tree(tree, self._past)
        begin = self._clock()
        fits = self._context.decode(batch)
        self._context.greedy()
        seconds = self._clock() - begin
        assert fits, "the context has room for the plan"
        self._context.remove(0, self._past, -1)
        return seconds


def _doubled(sizes: Iterable[int]) -> list[int]:
    """Return the smallest size, each further size of at least twice the last returned one, and the largest size."""
    found = list[int]()
    for size in (ordered := sorted(sizes)):
        if not found or size >= 2 * found[-1] or size == ordered[-1]:
            found.append(size)
    return found


def _chosen(sizes: Sequence[int], survey: StepCost, seconds: float) -> list[int]:
    """Return the sizes to time in `seconds`, by the times of `survey`: all, fewer large ones, or the two smallest."""
    known = [size for size in sizes if size <= survey.max_rows]
    doubled = _doubled(known)
    smallest = [doubled[:count] for count in range(len(doubled), 2, -1)]
    for chosen in (known, [size for size in known if size <= DENSE or size in doubled], *smallest):
        if MIN_ROUNDS * VISIT * sum(map(survey.seconds, chosen)) <= seconds:
            return chosen
    return doubled[:2]


def _cost(found: Any) -> Cost | None:
    """Return the Cost of a saved record, None if the record is damaged or its times make no sense."""
    try:
        by_context = tuple(
            StepCost(each["context"], {int(rows): float(seconds) for rows, seconds in dict(each["measured"]).items()})
            for each in found["by_context"]
        )
        plan = MeasurePlan(tuple(found["plan"]["contexts"]), tuple(found["plan"]["rows"]), found["plan"]["seconds"])
        cost = Cost(**{**found, "by_context": by_context, "plan": plan})
    except UNREADABLE:
        return None
    is_sound = by_context and all(1 in each.measured and each.is_plausible for each in by_context)
    return cost if is_sound else None

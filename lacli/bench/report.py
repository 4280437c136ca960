"""Results of a benchmark: a verdict in words, a table in Markdown, and rows for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from statistics import fmean, stdev
from typing import Any, Literal

from lacli.bench.results import LEAST_PROMPTS, LEAST_TOKENS, Result, overall
from lacli.bench.tasks import ALL
from lacli.engine.load import ModelEngine
from lacli.llamacpp.devices import peak_memory
from lacli.llamacpp.library import devices, version
from lacli.report import describe_sampling
from lacli.text.format import counted, markdown

Format = Literal["text", "md", "json"]

LEGEND = (
    "x plain: plain decoding's time a token over the mode's, prompt by prompt, geometric mean; 95%: its interval; "
    f"both from {LEAST_PROMPTS} prompts and {LEAST_TOKENS} tokens on. S: tokens a step. rows: of a step. "
    "1st ms: to the first token."
)

MOST_COMPARED = 4
"""Settings up to which the best is no matter of luck: of more, one may look best by chance."""

WHAT_TELLS = (
    f"It takes {LEAST_PROMPTS} prompts, {LEAST_TOKENS} tokens of each mode and an interval without 1 to tell: "
    "give more --seconds, more prompts or longer answers (-n)."
)


@dataclass(frozen=True)
class Machine:
    """What the numbers were measured on and with, as `columns` of every row and in `words`.

    `comparable`: whether all modes draw the same random numbers, so that texts should agree.
    """

    columns: Mapping[str, Any]
    words: str
    comparable: bool


def machine_of(engine: ModelEngine) -> Machine:
    """What is measured on and with, as of now."""
    model, settings, found = engine.model, engine.model_settings, devices()
    gpus = [device.description for device in found if device.is_gpu]
    processors = [device.description for device in found if device.name == "CPU"]
    copies = list(engine.weights.names) if len(engine.weights.names) > 1 else []
    shared = {
        "build_number": version(),
        "test_time": datetime.now(UTC).isoformat(timespec="seconds"),
        "backends": ",".join(dict.fromkeys(device.name.rstrip("0123456789") for device in found)),
        "cpu_info": ", ".join(processors),
        "gpu_info": ", ".join(gpus),
        "replicas": copies,
        "model_filename": str(model.path),
        "model_type": model.description,
        "model_size": model.size,
        "model_n_params": model.parameters,
        "n_ctx": engine.context.cells,
        "n_batch": settings.batch,
        "n_threads": settings.threads,
        "n_threads_batch": settings.threads_batch,
        "n_gpu_layers": settings.gpu_layers,
        "flash_attn": settings.flash_attention,
        "type_k": settings.cache_type_k,
        "type_v": settings.cache_type_v,
        "sampling": describe_sampling(engine.sampling),
        "peak_memory_mib": round(peak_memory(), 1),
    }
    together = f", copies on {', '.join(copies)}" if copies else ""
    words = f"{model.description} on {', '.join([*gpus, *processors])}, {settings.thread_words}{together}"
    return Machine(shared, words, comparable=not engine.sampling.draws_otherwise)


def as_json(found: Sequence[Result], machine: Machine) -> str:
    """The rows as JSON, each on a line, without a last newline."""
    lines = (f"  {json.dumps(_row(each, machine), ensure_ascii=False)}" for each in found)
    return "[\n" + ",\n".join(lines) + "\n]"


def _row(result: Result, machine: Machine) -> dict[str, Any]:
    """A result for programs; docs/benchmarks.md explains the names, which are llama-bench's if it has one."""
    settings, ratio, speeds = result.by.point.settings, result.speedup, result.speeds
    told, one = result.is_enough or result.is_plain, [each.trials[0] for each in result.answered]
    return {
        **machine.columns,
        "class": result.kind,
        "mode": settings.mode,
        "setting": result.label,
        "window": settings.window if settings.mode in ("lookahead", "jacobi") else None,
        "ngram": settings.ngram if settings.mode == "lookahead" else None,
        "guesses": settings.guesses if settings.mode == "lookahead" else None,
        "strict": settings.strict,
        "prompts": result.prompts,
        "repetitions": len(speeds),
        "n_prompt": sum(len(each.exchange.prompt) for each in result.answered),
        "n_gen": sum(len(trial.ids) for trial in one),
        "avg_ts": round(fmean(speeds), 3),
        "stddev_ts": round(stdev(speeds), 3) if speeds[1:] else 0.0,
        "samples_ts": [round(each, 3) for each in speeds],
        "median_ts": round(result.speed, 3),
        "speedup": round(ratio.value, 4) if told else None,
        "speedup_low": _rounded(ratio.low) if told else None,
        "speedup_high": _rounded(ratio.high) if told else None,
        "first_token_ms": round(result.first_token_s * 1e3, 3),
        "tokens": result.tokens,
        "steps": result.steps,
        "tokens_per_step": round(result.compression, 4),
        "ms_per_step": round(result.step_s * 1e3, 4),
        "rows_per_step": round(result.rows, 4),
        "draft_n": result.drafted,
        "draft_n_accepted": result.accepted,
        "identical": result.identical == result.prompts if machine.comparable else None,
        "identical_n": result.identical if machine.comparable else None,
    }


def _rounded(value: float | None) -> float | None:
    """Four digits; JSON has no word for what is not a finite number."""
    return round(value, 4) if value is not None and isfinite(value) else None


def table(found: Sequence[Result], machine: Machine) -> str:
    """What was measured on, and a row for each class and contender, in Markdown."""
    header = ("class", "mode", "tokens/s", "x plain", "95%", "S", "rows", "accepted", "ms/step", "1st ms",
              "identical")  # fmt: skip
    rows = []
    for before, result in zip(["", *(each.kind for each in found)], found, strict=False):
        identical = f"{result.identical} of {result.prompts}" if machine.comparable else ""
        rows.append((result.kind if result.kind != before else "", result.label, *_numbers(result), identical))
    heading = (
        "{words}, llama-cpp-python {build_number}; {n_ctx} cells, -fa {flash_attn} -ctk {type_k} -ctv {type_v}; "
        "{sampling}; at most {peak_memory_mib:.0f} MiB in memory"
    ).format(words=machine.words, **machine.columns)
    return f"{heading}\n\n{markdown(header, rows, 2)}\n\n{LEGEND}"


def _numbers(result: Result) -> tuple[str, ...]:
    ratio = result.speedup
    told = result.is_enough and not result.is_plain
    # Three digits, or all of those before the point.
    places = 0 if result.speed >= 100 else 1 if result.speed >= 10 else 2
    return (
        f"{result.speed:.{places}f}",
        "1" if result.is_plain else f"{ratio.value:.2f}" if told else "",
        f"{ratio.low:.2f}-{ratio.high:.2f}" if told else "",
        f"{result.compression:.2f}",
        f"{result.rows:.1f}",
        f"{result.accepted / result.drafted:.0%}" if result.drafted else "",
        f"{result.step_s * 1e3:.2f}",
        f"{result.first_token_s * 1e3:.1f}",
    )


def summary(found: Sequence[Result], machine: Machine, unfinished: Sequence[str] = ()) -> str:
    """What was compared, a verdict on each setting by class, what would tell more, and whether the texts are plain's.

    `unfinished`: the labels of settings without an answer.
    """
    plain, kinds = overall(found)[0], {result.kind for result in found} - {ALL}
    of = f" of {len(kinds)} classes" if len(kinds) > 1 else ""
    lines = [
        machine.words,
        f"{counted(plain.prompts, 'prompt')}{of}, {counted(plain.tokens, 'token')} decoded plainly: "
        f"plain decoding has {plain.speed:.1f} tokens/s.",
        "",
    ]
    compared = [result for result in found if not result.is_plain]
    # What can be told comes first, the fastest at its head.
    whole = sorted(overall(compared), key=lambda each: -each.speedup.value if each.verdict != "cannot tell" else 0.0)
    for result in whole:
        lines += _setting(result, [each for each in compared if each.number == result.number and each.kind != ALL])
    lines += [f"{label}: cannot tell, no answer was finished" for label in unfinished]
    if len(whole) > MOST_COMPARED and whole[0].verdict == "faster":
        luck = "which is partly luck: measure it alone"
        lines += ["", f"{whole[0].label} is the best of {len(whole)} settings, {luck}."]
    if unfinished or any(each.verdict == "cannot tell" for each in whole):
        lines += ["", WHAT_TELLS]
    known = [each for each in compared if each.kind != ALL]
    if machine.comparable and (answers := sum(each.prompts for each in known)):
        same = sum(each.identical for each in known)
        judged = f"{same} of {answers} texts are plain decoding's; lacli check judges why others are not."
        lines += ["", "All texts are plain decoding's." if same == answers else judged]
    return "\n".join(lines)


def _setting(whole: Result, by_class: Sequence[Result]) -> list[str]:
    """A line on a setting over all classes, and one on those of several classes that can be told."""
    ratio, said = whole.speedup, whole.verdict
    interval = f" ({ratio.low:.2f}x to {ratio.high:.2f}x)" if whole.is_enough else ""
    value = f"{ratio.value:.2f}x, " if said != "cannot tell" else ""
    lines = [f"{whole.label}: {value}{said}{interval}"]
    told = sorted((each for each in by_class if each.verdict != "cannot tell"), key=lambda each: -each.speedup.value)
    if len(by_class) > 1 and told:
        parts = []
        for word in ("faster", "slower"):
            if own := [f"{each.kind} ({each.speedup.value:.2f}x)" for each in told if each.verdict == word]:
                parts.append(f"{word} on {', '.join(own)}")
        parts += ["cannot tell on the rest"] if len(told) < len(by_class) else []
        lines.append(f"    {'; '.join(parts)}")
    return lines

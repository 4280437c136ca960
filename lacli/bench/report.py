"""Reports of a benchmark (words, Markdown table, rows for programs) and of measured step costs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Literal

from lacli.auto.step_cost import LEAST_MEASURED, Cost, StepCost
from lacli.bench.plan import ALL, LEAST_PROMPTS, LEAST_TOKENS
from lacli.bench.results import BenchResult, overall
from lacli.engine.load import ModelEngine
from lacli.ik.context import decoding_library
from lacli.llamacpp.devices import devices
from lacli.llamacpp.library import version
from lacli.llamacpp.settings import ModelSettings
from lacli.report import describe_sampling
from lacli.settings import DecodeSettings
from lacli.terminal.input import PAGE, terminal_columns
from lacli.terminal.screen import wrapped
from lacli.text.format import age_in_words, align_columns, counted, markdown

Format = Literal["text", "md", "json"]

LEGEND = (
    "x plain: how many times as fast as plain decoding, geometric mean over prompts; 95%: its interval; "
    f"both need {LEAST_PROMPTS} prompts and {LEAST_TOKENS} tokens. S: tokens a step. rows: rows a step. "
    "1st ms: time to the first token."
)

WHAT_TELLS = (
    f"A verdict needs {LEAST_PROMPTS} prompts, {LEAST_TOKENS} tokens a mode and an interval that excludes 1: "
    "give more --seconds, more prompts or longer answers (-n)."
)

CHEAP, DEAR = 1.5, 2.5
"""Limits for a step of LEAST_MEASURED rows, in plain steps: up to CHEAP rows are cheap, above DEAR they are dear."""


@dataclass(frozen=True)
class Machine:
    """The model, library and hardware, as JSON `columns` and in `words`. `comparable`: modes should answer equally."""

    columns: Mapping[str, Any]
    words: str
    comparable: bool


def machine_of(engine: ModelEngine) -> Machine:
    model, settings, found = engine.model, engine.model_settings, devices()
    gpus = [device.description for device in found if device.is_gpu]
    processors = [device.description for device in found if device.name == "CPU"]
    copies, library = engine.weights.names, decoding_library(settings)
    shared = {
        "build_number": version(),
        **library,
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
    }
    words = f"{model.description} with {' '.join(library.values())} on {', '.join([*gpus, *processors])}"
    words += f", {settings.thread_words}" + (f", copies on {', '.join(copies)}" if copies else "")
    return Machine(shared, words, comparable=not engine.sampling.draws_otherwise)


def as_json(found: Sequence[BenchResult], machine: Machine) -> str:
    return json.dumps([_row(each, machine) for each in found], ensure_ascii=False)


def _row(result: BenchResult, machine: Machine) -> dict[str, Any]:
    """Return a result as a JSON object. docs/internals/benchmarks.md explains the names; most are llama-bench's."""
    settings, ratio, speeds, sums = result.point.settings, result.speedup, result.speeds, result.sums
    has_ratio = result.is_enough or result.is_plain
    return {
        **machine.columns,
        "class": result.kind,
        "mode": settings.mode,
        "setting": result.point.label,
        "window": settings.window if settings.mode in ("lookahead", "jacobi") else None,
        "ngram": settings.ngram if settings.mode == "lookahead" else None,
        "guesses": settings.guesses if settings.mode == "lookahead" else None,
        "strict": settings.strict,
        "prompts": len(result.answered),
        "repetitions": len(speeds),
        "n_prompt": sum(len(each.exchange.prompt) for each in result.answered),
        "n_gen": sum(len(each.trials[0].ids) for each in result.answered),
        "avg_ts": round(fmean(speeds), 3),
        "stddev_ts": round(stdev(speeds), 3) if speeds[1:] else 0.0,
        "samples_ts": [round(each, 3) for each in speeds],
        "median_ts": round(median(speeds), 3),
        "speedup": round(ratio.value, 4) if has_ratio else None,
        "speedup_low": round(ratio.low, 4) if has_ratio and ratio.low is not None else None,
        "speedup_high": round(ratio.high, 4) if has_ratio and ratio.high is not None else None,
        "first_token_ms": round(median(trial.first_token_s for trial in result.trials) * 1e3, 3),
        "tokens": sums.tokens,
        "steps": sums.steps,
        "tokens_per_step": round(sums.tokens_per_step, 4),
        "ms_per_step": round(sum(trial.seconds for trial in result.trials) / sums.steps * 1e3, 4),
        "rows_per_step": round(sums.rows_mean, 4),
        "draft_n": sums.drafted,
        "draft_n_accepted": sums.accepted,
        "identical": result.identical == len(result.answered) if machine.comparable else None,
        "identical_n": result.identical if machine.comparable else None,
    }


def table(found: Sequence[BenchResult], machine: Machine) -> str:
    """Return a line about the machine, a Markdown table with a row for each result, and the table's legend."""
    rows = [
        {
            "class": row["class"],
            "mode": row["setting"],
            "engine": row["engine"],
            "tokens/s": f"{row['median_ts']:.{1 if row['median_ts'] >= 10 else 2}f}",
            "x plain": "" if row["speedup"] is None else f"{row['speedup']:.2f}",
            "95%": "" if row["speedup_low"] is None else f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}",
            "S": f"{row['tokens_per_step']:.2f}",
            "rows": f"{row['rows_per_step']:.1f}",
            "accepted": f"{row['draft_n_accepted'] / row['draft_n']:.0%}" if row["draft_n"] else "",
            "ms/step": f"{row['ms_per_step']:.2f}",
            "1st ms": f"{row['first_token_ms']:.1f}",
            "identical": "" if row["identical"] is None else f"{row['identical_n']} of {row['prompts']}",
        }
        for row in (_row(each, machine) for each in found)
    ]
    cells = markdown([*rows[0]], [[*row.values()] for row in rows], 3)
    heading = "{n_ctx} cells, -fa {flash_attn} -ctk {type_k} -ctv {type_v}; {sampling}".format(**machine.columns)
    return f"{machine.words}; {heading}\n\n{cells}\n\n{LEGEND}"


def summary(found: Sequence[BenchResult], machine: Machine, unanswered: Sequence[str] = ()) -> str:
    """Return a summary in words: the verdict on each setting and its classes, and the number of identical answers.

    `unanswered`: labels of settings without an answer.
    """
    plain, kinds = overall(found)[0], {result.kind for result in found} - {ALL}
    of = f" of {len(kinds)} classes" if len(kinds) > 1 else ""
    lines = [
        machine.words,
        f"{counted(len(plain.answered), 'prompt')}{of}, {counted(plain.sums.tokens, 'token')} decoded plainly: "
        f"plain decoding has {median(plain.speeds):.1f} tokens/s.",
        "",
    ]
    compared = [result for result in found if not result.is_plain]
    # Settings with a verdict come first, the fastest at the top.
    whole = sorted(overall(compared), key=lambda each: -each.speedup.value if each.verdict != "cannot tell" else 0.0)
    for result in whole:
        lines += _setting(result, [each for each in compared if each.number == result.number and each.kind != ALL])
    lines += [f"{label}: cannot tell, the time was up before it answered" for label in unanswered]
    if unanswered or any(each.verdict == "cannot tell" for each in whole):
        lines += ["", WHAT_TELLS]
    known = [each for each in compared if each.kind != ALL]
    if machine.comparable and (answers := sum(len(each.answered) for each in known)):
        same = sum(each.identical for each in known)
        if same < answers:
            lines += ["", f"{same} of {answers} texts are plain decoding's; lacli check tells why the others differ."]
        elif not unanswered and all(any(trial.is_whole for trial in each.trials) for each in overall(found)):
            lines += ["", "All texts are plain decoding's."]
    return "\n".join(lines)


def _setting(whole: BenchResult, by_class: Sequence[BenchResult]) -> list[str]:
    """Return a line with a setting's verdict over all classes, and a second line if single classes have a verdict."""
    ratio, verdict = whole.speedup, whole.verdict
    interval = f" ({ratio.low:.2f}x to {ratio.high:.2f}x)" if whole.is_enough else ""
    value = f"{ratio.value:.2f}x, " if verdict != "cannot tell" else ""
    lines = [f"{whole.point.label}: {value}{verdict}{interval}"]
    parts = []
    for word in ("faster", "slower"):
        told = sorted((each for each in by_class if each.verdict == word), key=lambda each: -each.speedup.value)
        if told:
            parts.append(f"{word} on {', '.join(f'{each.kind} ({each.speedup.value:.2f}x)' for each in told)}")
    if len(by_class) > 1 and parts:
        parts += ["cannot tell on the rest"] if any(each.verdict == "cannot tell" for each in by_class) else []
        lines.append(f"    {'; '.join(parts)}")
    return lines


def cost_json(path: Path, settings: ModelSettings, cost: Cost, *, is_saved: bool) -> dict[str, Any]:
    """Return step costs as JSON data (docs/internals/benchmarks.md). `path`: the model. `is_saved`: measured before."""
    return {
        "model": str(path),
        "description": cost.description,
        "devices": cost.devices,
        **decoding_library(settings),
        **settings.by_name,
        "measured_at": datetime.fromtimestamp(cost.measured_at, UTC).isoformat(timespec="seconds"),
        "seconds": cost.plan.seconds,
        "cached": is_saved,
        "change_ms": None if cost.change_s is None else round(cost.change_s * 1e3, 4),
        "chain_only": cost.chain_only or None,
        "summary": " ".join(words for _, words in findings(cost)),
        "staircases": [
            {
                "context": each.context,
                "rows": [*each.measured],
                "ms": [round(seconds * 1e3, 4) for seconds in each.measured.values()],
                "relative": [round(each.relative(rows), 4) for rows in each.measured],
            }
            for each in cost.by_context
        ],
    }


def cost_lines(settings: ModelSettings, cost: Cost, age: float | None = None) -> str:
    """Return a report of step costs: a heading, a table for each number of tokens before a step, and the findings.

    `age`: seconds since the measurement, None for just now.
    """
    when = datetime.fromtimestamp(cost.measured_at).strftime("%Y-%m-%d %H:%M")
    heading = [
        ("model", cost.description),
        ("library", " ".join(decoding_library(settings).values())),
        ("machine", f"{cost.devices}, {settings.thread_words}"),
        ("context", settings.flags),
        ("measured", when if age is None else f"{when}, {age_in_words(age)} (--fresh measures again)"),
    ]
    titled = [
        wrapped("\n".join(f"{name:9} {text}" for name, text in lines), terminal_columns() or PAGE)
        for lines in (heading, findings(cost))
    ]
    return "\n\n".join([titled[0], *map(_cost_table, cost.by_context), titled[1]])


def findings(cost: Cost) -> list[tuple[str, str]]:
    """Return what the step costs mean, as pairs of a subject (rows, kind, lookahead, auto) and a sentence."""
    if not cost.by_context:
        return [("rows", f"Not measured: {cost.chain_only}. Mode auto learns what rows cost from its own steps.")]
    wide = cost.by_context[0]
    if not cost.is_usable:
        most = counted(wide.max_rows, "row")
        what = f"Steps of at most {most} were timed, and a finding needs {LEAST_MEASURED}"
        return [("rows", f"{what}: give more --rows. Mode auto learns from its own steps.")]
    costs = f"A step of {wide.max_rows} rows costs {_number(wide.relative(wide.max_rows))} plain ones."
    if (free := max(rows for rows in wide.measured if wide.relative(rows) <= 1.1)) > 1:
        costs = f"Steps of up to {free} rows cost hardly more than a step of one row. {costs}"
    eight = wide.relative(LEAST_MEASURED)
    kind = "cheap" if eight <= CHEAP else "dear" if eight > DEAR else "middle"
    kinds = f"Rows are {kind} here: {LEAST_MEASURED} of them cost {eight:.2f} plain steps."
    return [("rows", costs), ("kind", kinds), ("lookahead", _on_lookahead(wide)), ("auto", _on_auto(wide))]


def _on_lookahead(step_cost: StepCost) -> str:
    """Return a sentence: how many tokens per step make lookahead, at default sizes, as fast as plain decoding."""
    settings = DecodeSettings(mode="lookahead")
    name = f"W={settings.window} N={settings.ngram} G={settings.guesses}"
    # Costs are extrapolated as far as twice the largest measured step.
    if settings.max_rows > 2 * step_cost.max_rows:
        return f"Whether {name} saves time is not known: steps of its {settings.max_rows} rows were not measured."
    needed = step_cost.relative(settings.max_rows)
    return f"{name} needs {needed:.1f} tokens a step to break even; it can bring at most {settings.max_step_tokens}."


def _on_auto(step_cost: StepCost) -> str:
    """Return a sentence: when mode auto drafts at these step costs."""
    least = [(rows, step_cost.relative(rows)) for rows in (2, 4, 8, 16, 32) if rows <= step_cost.max_rows]
    named = [f"{_number(max(cost, 1.0))} for {rows} rows" for rows, cost in least if cost < rows]
    if not named:
        return "Mode auto, the default, decodes plainly here: rows cost at least a plain step each."
    return f"Mode auto, the default, drafts only if it expects more tokens a step than: {', '.join(named)}."


def _cost_table(step_cost: StepCost) -> str:
    """Return a table with the time of a step by its number of rows, and with the time that each further row adds."""
    points = step_cost.measured.items()
    further = ["", *(f"{(far - near) / (more - few) * 1e3:.3g}" for (few, near), (more, far) in pairwise(points))]
    rows = [
        (str(size), f"{seconds * 1e3:.4g}", f"{step_cost.relative(size):.2f}", row)
        for (size, seconds), row in zip(points, further, strict=True)
    ]
    shown = align_columns(("rows", "ms", "plain steps", "ms a row"), rows, range(4))
    return "\n".join([f"after {step_cost.context} tokens", *shown])


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"

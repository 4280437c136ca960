"""Results of a benchmark: a verdict in words, a table in Markdown, and rows for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean, median, stdev
from typing import Any, Literal

from lacli.bench.results import LEAST_PROMPTS, LEAST_TOKENS, Result, overall
from lacli.bench.tasks import ALL
from lacli.engine.load import ModelEngine
from lacli.llamacpp.library import devices, version
from lacli.report import describe_sampling
from lacli.text.format import counted, markdown

Format = Literal["text", "md", "json"]

LEGEND = (
    "x plain: plain decoding's time a token over the mode's, prompt by prompt, geometric mean; 95%: its interval; "
    f"both from {LEAST_PROMPTS} prompts and {LEAST_TOKENS} tokens on. S: tokens a step. rows: of a step. "
    "1st ms: to the first token."
)

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
    """Return what is measured on and with, as of now."""
    model, settings, found = engine.model, engine.model_settings, devices()
    gpus = [device.description for device in found if device.is_gpu]
    processors = [device.description for device in found if device.name == "CPU"]
    copies = engine.weights.names
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
    }
    together = f", copies on {', '.join(copies)}" if copies else ""
    words = f"{model.description} on {', '.join([*gpus, *processors])}, {settings.thread_words}{together}"
    return Machine(shared, words, comparable=not engine.sampling.draws_otherwise)


def as_json(found: Sequence[Result], machine: Machine) -> str:
    return json.dumps([_row(each, machine) for each in found], ensure_ascii=False)


def _row(result: Result, machine: Machine) -> dict[str, Any]:
    """Return a result for programs; docs/benchmarks.md explains the names, which are llama-bench's if it has one."""
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


def table(found: Sequence[Result], machine: Machine) -> str:
    """Return what was measured on, and a row for each class and point, in Markdown."""
    header = ("class", "mode", "tokens/s", "x plain", "95%", "S", "rows", "accepted", "ms/step", "1st ms",
              "identical")  # fmt: skip
    rows = [
        (
            row["class"],
            row["setting"],
            f"{row['median_ts']:.{1 if row['median_ts'] >= 10 else 2}f}",
            "" if row["speedup"] is None else f"{row['speedup']:.2f}",
            "" if row["speedup_low"] is None else f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}",
            f"{row['tokens_per_step']:.2f}",
            f"{row['rows_per_step']:.1f}",
            f"{row['draft_n_accepted'] / row['draft_n']:.0%}" if row["draft_n"] else "",
            f"{row['ms_per_step']:.2f}",
            f"{row['first_token_ms']:.1f}",
            "" if row["identical"] is None else f"{row['identical_n']} of {row['prompts']}",
        )
        for row in (_row(each, machine) for each in found)
    ]
    heading = (
        "{words}, llama-cpp-python {build_number}; {n_ctx} cells, -fa {flash_attn} -ctk {type_k} -ctv {type_v}; "
        "{sampling}"
    ).format(words=machine.words, **machine.columns)
    return f"{heading}\n\n{markdown(header, rows, 2)}\n\n{LEGEND}"


def summary(found: Sequence[Result], machine: Machine, unanswered: Sequence[str] = ()) -> str:
    """Return what was compared, a verdict on each setting by class, and whether the texts are plain decoding's.

    `unanswered`: the labels of settings without an answer.
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
    # What can be told comes first, the fastest at its head.
    whole = sorted(overall(compared), key=lambda each: -each.speedup.value if each.verdict != "cannot tell" else 0.0)
    for result in whole:
        lines += _setting(result, [each for each in compared if each.number == result.number and each.kind != ALL])
    lines += [f"{label}: cannot tell, there was no time for it" for label in unanswered]
    if unanswered or any(each.verdict == "cannot tell" for each in whole):
        lines += ["", WHAT_TELLS]
    known = [each for each in compared if each.kind != ALL]
    if machine.comparable and (answers := sum(len(each.answered) for each in known)):
        same = sum(each.identical for each in known)
        judged = f"{same} of {answers} texts are plain decoding's; lacli check judges why others are not."
        lines += ["", "All texts are plain decoding's." if same == answers else judged]
    return "\n".join(lines)


def _setting(whole: Result, by_class: Sequence[Result]) -> list[str]:
    """Return a line on a setting over all classes, and one on those of several classes that can be told."""
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

"""A benchmark as flat rows, one for each class and contender, and their formats for programs: JSON, JSON lines, CSV.

Names are llama-bench's where it has one; docs/benchmarks.md explains each. Tables for people are `report.py`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from typing import Any, Literal

from lacli.bench.ceiling import Ceiling, Ceilings
from lacli.bench.judging import Judged
from lacli.bench.results import Result, overall
from lacli.bench.rounds import Contender
from lacli.bench.statistics import stddev
from lacli.check.compare import Run
from lacli.check.judge import Difference
from lacli.llamacpp.settings import ModelSettings

Format = Literal["md", "json", "jsonl", "csv"]
Row = dict[str, Any]

NANO = 1e9

TEXT = (
    *("identical", "identical_n", "first_diff", "first_diff_prompt", "first_diff_margin", "first_diff_rounding"),
    "verdict",
)
"""Columns on whether the texts are plain's."""


@dataclass(frozen=True)
class Machine:
    """What the numbers were measured on and with.

    time: UTC, ISO 8601. comparable: whether all modes draw the same numbers, so that texts should agree. model_memory,
    peak_memory: MiB, of the weights and of the process. flash_attention: as asked for, several values with commas.
    replicas: names of the copies that answer together, where there are several.
    """

    time: str
    version: str
    backends: str
    cpu: str
    gpu: str
    model: str
    description: str
    model_size: int
    parameters: int
    loading: ModelSettings
    flash_attention: str
    context: int
    sampling: str
    comparable: bool
    model_memory: float
    peak_memory: float
    replicas: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The devices that compute, the GPU first."""
        return ", ".join(part for part in (self.gpu, self.cpu) if part)


def as_rows(
    found: Sequence[Result],
    contenders: Sequence[Contender],
    machine: Machine,
    judged: Judged,
    ceilings: Ceilings | None = None,
    extras: Mapping[int, Mapping[str, Any]] | None = None,
) -> list[Row]:
    """A row a result. extras: more columns by contender, for its row over all classes."""
    rows, whole = [], overall(found)
    for result in found:
        contender = contenders[result.contender]
        row = _machine(machine, contender) | _speed(result) | _contender(contender, result) | _guesses(result)
        row |= _ceiling(result, (ceilings or {}).get((result.contender, result.kind)))
        more = (extras or {}).get(result.contender, {}) if result in whole else {}
        text = _text(result, judged) if machine.comparable else dict.fromkeys(TEXT)
        rows.append(row | text | dict(more))
    return rows


def as_text(rows: Sequence[Row], form: Format) -> str:
    """The rows in a format for programs, without a last newline."""
    if form == "jsonl":
        return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    if form == "json":
        lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
        return f"[\n{lines}\n]" if rows else "[]"
    out = StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return out.getvalue().removesuffix("\n")


def _machine(machine: Machine, contender: Contender) -> Row:
    loading, point = machine.loading, contender.point
    return {
        "build_number": machine.version,
        "test_time": machine.time,
        "backends": machine.backends,
        "cpu_info": machine.cpu,
        "gpu_info": machine.gpu,
        "replicas": list(machine.replicas),
        "model_filename": machine.model,
        "model_type": machine.description,
        "model_size": machine.model_size,
        "model_n_params": machine.parameters,
        "n_ctx": machine.context,
        "n_batch": loading.batch,
        "n_threads": loading.threads,
        "n_threads_batch": loading.threads_batch,
        "n_gpu_layers": loading.gpu_layers,
        "flash_attn": (point and point.flash_attention) or loading.flash_attention,
        "type_k": loading.cache_type_k,
        "type_v": loading.cache_type_v,
        "sampling": machine.sampling,
        "model_memory_mib": round(machine.model_memory, 1),
        "context_memory_mib": round(contender.memory, 1) if point else None,
        "peak_memory_mib": round(machine.peak_memory, 1),
    }


def _speed(result: Result) -> Row:
    """llama-bench's columns: a sample is one repetition, all prompts of the class taken together."""
    repetition = [trials for each in result.answered for trials in each.trials[:1]]
    tokens = sum(trial.tokens for trial in repetition)
    nanoseconds = [tokens * NANO / speed for speed in result.speeds]
    ratio = result.speedup
    return {
        "n_prompt": result.prompt_tokens,
        "n_gen": tokens,
        "avg_ns": round(sum(nanoseconds) / len(nanoseconds)),
        "stddev_ns": round(stddev(nanoseconds)),
        "avg_ts": round(sum(result.speeds) / len(result.speeds), 3),
        "stddev_ts": round(stddev(result.speeds), 3),
        "samples_ns": [round(each) for each in nanoseconds],
        "samples_ts": [round(each, 3) for each in result.speeds],
        "median_ts": round(result.speed, 3),
        "speedup": round(ratio.value, 4),
        "speedup_low": _rounded(ratio.low),
        "speedup_high": _rounded(ratio.high),
        "first_token_ms": round(result.first_token_s * 1e3, 3),
    }


def _contender(contender: Contender, result: Result) -> Row:
    settings = contender.point.settings if contender.point else None
    mode = settings.mode if settings else ""
    return {
        "class": result.kind,
        "mode": contender.mode,
        "setting": contender.label,
        "window": settings.window if settings and mode in ("lookahead", "jacobi") else None,
        "ngram": settings.ngram if settings and mode == "lookahead" else None,
        "guesses": settings.guesses if settings and mode == "lookahead" else None,
        "strict": settings.strict if settings else None,
        "prompts": result.prompts,
        "repetitions": len(result.speeds),
        "tokens": result.tokens,
        "steps": result.steps,
        "tokens_per_step": round(result.compression, 4),
        "ms_per_step": round(result.seconds_per_step * 1e3, 4),
        "rows_per_step": _rounded(result.rows_per_step),
    }


def _guesses(result: Result) -> Row:
    accepted = result.acceptance
    if not accepted.histogram:
        # Another program's steps are not known one by one.
        unknown = dict.fromkeys(("draft_hit_rate", "accept_hist", "accept_rates"))
        return {"draft_n": result.drafted, "draft_n_accepted": result.accepted, **unknown}
    return {
        "draft_n": result.drafted,
        "draft_n_accepted": result.accepted,
        "draft_hit_rate": round(accepted.hit_rate, 4),
        "accept_hist": list(accepted.histogram),
        "accept_rates": [round(rate, 4) for rate in accepted.position_rates],
    }


def _ceiling(result: Result, ceiling: Ceiling | None) -> Row:
    """What an oracle reached, and how much of it this is."""
    return {
        "ceiling": _rounded(ceiling.ratio.value) if ceiling else None,
        "ceiling_rows": ceiling.rows if ceiling else None,
        "ceiling_share": _rounded(ceiling.share(result.speedup.value)) if ceiling else None,
    }


def _text(result: Result, judged: Judged) -> Row:
    """Whether the texts are plain's; of the first that is not where it parts, and what the judge says about it."""
    first = next(iter(result.parted), None)
    run = judged.get((result.contender, first.number)) if first else None
    margin, rounding = distances(run.difference if run else None)
    return {
        "identical": None if result.identical is None else not result.parted,
        "identical_n": result.identical,
        "first_diff": first.parting.at if first and first.parting else None,
        "first_diff_prompt": first.exchange.name if first else None,
        "first_diff_margin": _rounded(margin),
        "first_diff_rounding": _rounded(rounding),
        "verdict": verdict(run) if first else None if result.identical is None else "identical",
    }


def distances(difference: Difference | None) -> tuple[float | None, float | None]:
    """How far a token is from plain's, and how far rounding moves that: in logits, or of a draw in probability."""
    if difference is None:
        return None, None
    if difference.draw:
        return difference.draw.distance, difference.draw.movement
    return difference.margin, difference.rounding


def verdict(run: Run | None) -> str:
    """The judge's word about an answer that is not plain's; an answer that was not decoded again has none."""
    if run is None:
        return "not judged"
    return "not repeated" if run.identical else run.verdict


def _rounded(value: float | None) -> float | None:
    """Four digits; JSON has no word for what is not a finite number."""
    return round(value, 4) if value is not None and isfinite(value) else None


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | bool) else value

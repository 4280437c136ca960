"""Results for programs: a flat row for each class and contender, as JSON.

Names are llama-bench's where it has one; docs/benchmarks.md explains each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal

from lacli.bench.results import Result, overall
from lacli.bench.rounds import Contender
from lacli.bench.statistics import stddev
from lacli.llamacpp.devices import peak_memory
from lacli.llamacpp.library import devices, version
from lacli.session.report import describe_sampling
from lacli.session.session import Session

Format = Literal["text", "md", "json"]
ResultRow = dict[str, Any]

NANO = 1e9

TEXT = ("identical", "identical_n", "first_diff", "first_diff_prompt")
"""Columns on whether the texts are plain's."""


@dataclass(frozen=True)
class Machine:
    """What the numbers were measured on and with; all but the last two are columns of a row, under their names.

    `replicas`: names of the copies that decode one answer together, where there are several. *_mib: of the weights, of
    a contender's context, and the most that the process had. `comparable`: whether all modes draw the same random
    numbers, so that texts should agree.
    """

    build_number: str
    test_time: str
    backends: str
    cpu_info: str
    gpu_info: str
    replicas: list[str]
    model_filename: str
    model_type: str
    model_size: int
    model_n_params: int
    n_ctx: int
    n_batch: int
    n_threads: int
    n_threads_batch: int
    n_gpu_layers: int
    flash_attn: str
    type_k: str
    type_v: str
    sampling: str
    model_memory_mib: float
    context_memory_mib: float | None
    peak_memory_mib: float
    comparable: bool
    thread_words: str

    @property
    def where(self) -> str:
        """The devices that compute, the GPU first."""
        return ", ".join(part for part in (self.gpu_info, self.cpu_info) if part)

    @property
    def threads_and_copies(self) -> str:
        """The threads, and the copies that decode together where there are several."""
        return self.thread_words + (f", copies on {', '.join(self.replicas)}" if self.replicas else "")

    def columns(self, contender: Contender) -> ResultRow:
        """The columns for one contender."""
        row, point = asdict(self), contender.point
        row["context_memory_mib"] = round(contender.memory, 1) if point else None
        del row["comparable"], row["thread_words"]
        return row


def machine_of(session: Session) -> Machine:
    """What is measured on and with, as of now."""
    model, model_settings, found = session.model, session.model_settings, devices()
    return Machine(
        build_number=version(),
        test_time=datetime.now(UTC).isoformat(timespec="seconds"),
        backends=",".join(dict.fromkeys(device.name.rstrip("0123456789") for device in found)),
        cpu_info=", ".join(device.description for device in found if device.name == "CPU"),
        gpu_info=", ".join(device.description for device in found if device.is_gpu),
        replicas=list(session.copies.names) if len(session.copies.names) > 1 else [],
        model_filename=str(model.path),
        model_type=model.description,
        model_size=model.size,
        model_n_params=model.parameters,
        n_ctx=session.engine.cells,
        n_batch=model_settings.batch,
        n_threads=model_settings.threads,
        n_threads_batch=model_settings.threads_batch,
        n_gpu_layers=model_settings.gpu_layers,
        flash_attn=model_settings.flash_attention,
        type_k=model_settings.cache_type_k,
        type_v=model_settings.cache_type_v,
        sampling=describe_sampling(session.sampling),
        model_memory_mib=round(model.memory, 1),
        context_memory_mib=None,
        peak_memory_mib=round(peak_memory(), 1),
        comparable=not session.sampling.draws_otherwise,
        thread_words=model_settings.thread_words,
    )


def as_rows(
    found: Sequence[Result], machine: Machine, extras: Mapping[int, Mapping[str, Any]] | None = None
) -> list[ResultRow]:
    """A row a result. `extras`: more columns by contender, for its row over all classes."""
    rows, whole = [], overall(found)
    for result in found:
        row = machine.columns(result.by) | _speed(result) | _contender(result) | _guesses(result)
        more = (extras or {}).get(result.number, {}) if result in whole else {}
        text = _text(result) if machine.comparable else dict.fromkeys(TEXT)
        rows.append(row | text | dict(more))
    return rows


def as_text(rows: Sequence[ResultRow]) -> str:
    """The rows as JSON, each on a line, without a last newline."""
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    return f"[\n{lines}\n]" if rows else "[]"


def _speed(result: Result) -> ResultRow:
    """llama-bench's columns: a sample is one repetition, all prompts of the class taken together."""
    repetition = [trials for each in result.answered for trials in each.trials[:1]]
    tokens = sum(trial.tokens for trial in repetition)
    nanoseconds = [tokens * NANO / speed for speed in result.speeds]
    ratio, told = result.speedup, result.is_enough or result.by.mode == "plain"
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
        "speedup": round(ratio.value, 4) if told else None,
        "speedup_low": _rounded(ratio.low) if told else None,
        "speedup_high": _rounded(ratio.high) if told else None,
        "first_token_ms": round(result.first_token_s * 1e3, 3),
    }


def _contender(result: Result) -> ResultRow:
    contender = result.by
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


def _guesses(result: Result) -> ResultRow:
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


def _text(result: Result) -> ResultRow:
    """Whether the texts are plain's, and where the first that is not parts from it."""
    first = next(iter(result.parted), None)
    return {
        "identical": None if result.identical is None else not result.parted,
        "identical_n": result.identical,
        "first_diff": first.parts_at if first else None,
        "first_diff_prompt": first.exchange.name if first else None,
    }


def _rounded(value: float | None) -> float | None:
    """Four digits; JSON has no word for what is not a finite number."""
    return round(value, 4) if value is not None and isfinite(value) else None

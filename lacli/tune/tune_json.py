"""What a search has found, as one JSON object for a program. Formats records; measures and prints nothing."""

from __future__ import annotations

from typing import Any

from lacli.bench.results import Result
from lacli.bench.statistics import Ratio
from lacli.tune.candidates import flags
from lacli.tune.report import conclusion, last_rows
from lacli.tune.store import chosen
from lacli.tune.tuning import Tuning


def as_json(tuning: Tuning) -> dict[str, Any]:
    """One object; what it holds is described in docs/benchmarks.md. null: there is no such number."""
    setup, confirmed, best = tuning.setup, tuning.confirmed, tuning.best
    return {
        "model": setup.model,
        "description": setup.description,
        "devices": setup.devices,
        **setup.loading.by_name,
        "sampling": setup.sampling,
        "prompts": setup.asked,
        "seconds": round(tuning.seconds, 1),
        "interrupted": tuning.interrupted,
        "settings": chosen(best) if best else None,
        "flags": flags(best) if best else None,
        "remembered": best is not None and not tuning.trouble,
        "trouble": tuning.trouble or None,
        "speedup": _value(confirmed.used.speedup) if confirmed else None,
        "over_auto": _value(confirmed.used_over_auto) if confirmed else None,
        "summary": conclusion(tuning),
        "last_round": [_row(name, result) for name, result in last_rows(confirmed)] if confirmed else [],
        "search": [
            {"rounds": each.rounds, **_row(each.contender.label, each.result)} for each in tuning.ranked if each.result
        ],
        "ruled_out": tuning.lost,
    }


def _row(name: str, result: Result) -> dict[str, Any]:
    rows, ratio = result.rows_per_step, result.speedup
    return {
        "setting": name,
        "speedup": _value(ratio),
        "low": None if ratio.low is None else round(ratio.low, 4),
        "high": None if ratio.high is None else round(ratio.high, 4),
        "tokens_per_second": round(result.speed, 2),
        "tokens_per_step": round(result.compression, 4),
        "rows_per_step": None if rows is None else round(rows, 4),
        "answers": len(result.trials),
    }


def _value(ratio: Ratio) -> float:
    return round(ratio.value, 4)

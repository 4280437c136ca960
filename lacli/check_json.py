"""What a check found, as one JSON object for a program. Formats records; measures nothing and prints nothing."""

from __future__ import annotations

import math
from typing import Any

from lacli.check import Result
from lacli.check_report import Setup, conclusion, token_text
from lacli.compare import Run
from lacli.invariance import Probe
from lacli.settings import Mode


def as_json(setup: Setup, result: Result) -> dict[str, Any]:
    """One object; what it holds is described in docs/exactness.md.

    Differences are of logits, distances and movements are parts of the cumulative distribution. null: there is no
    such number.
    """
    decoding, advice = setup.decoding, result.advice
    return {
        "model": setup.model,
        "description": setup.description,
        "backend": setup.backend,
        "context": setup.context,
        **setup.loading.by_name,
        "window": decoding.window,
        "ngram": decoding.ngram,
        "guesses": decoding.guesses,
        "strict": decoding.strict,
        "temperature": setup.sampling.temp,
        "sampling": setup.sampled,
        "seed": None if setup.greedy else setup.sampling.seed,
        "prompts": setup.prompts,
        "predict": setup.predict,
        "verdict": result.verdict,
        "answers": result.answers,
        "identical": result.identical,
        "rounding": result.rounding,
        "bugs": result.bugs,
        "summary": conclusion(setup, result),
        "failure": result.failure or None,
        "batch_invariant": all(probe.exact for probe in result.probes) if result.probes else None,
        "invariance": [_probe_json(probe) for probe in result.probes],
        "modes": [
            {
                "mode": mode.settings.mode,
                "answers": len(mode.runs),
                "identical": mode.identical,
                "rounding": mode.rounding,
                "bugs": mode.bugs,
                "tokens": sum(len(run.tokens) for run in mode.runs),
                "tokens_per_step": round(mode.tokens_per_step, 4),
            }
            for mode in result.modes
        ],
        "differences": [_parting_json(setup, *parting) for parting in result.partings],
        "advice_flags": advice.flags if advice else None,
        "advice_batch_invariant": advice.exact if advice else None,
        "advice_invariance": [_probe_json(probe) for probe in advice.probes] if advice else [],
    }


def _probe_json(probe: Probe) -> dict[str, Any]:
    return {
        "context": probe.context,
        "batch_invariant": probe.exact,
        "rows": list(probe.differences),
        "logit_differences": [_finite(difference) for difference in probe.differences.values()],
        "agreeing_rows": probe.groups,
    }


def _parting_json(setup: Setup, mode: Mode, number: int, run: Run) -> dict[str, Any]:
    parting = run.difference
    draw = parting.draw if parting else None
    return {
        "mode": mode,
        "prompt": number,
        "position": parting.at if parting else len(run.tokens),
        "plain_token": parting.plain if parting else None,
        "plain_text": token_text(setup, parting.plain if parting else None),
        "token": parting.other if parting else None,
        "text": token_text(setup, parting.other if parting else None),
        "margin": _finite(parting.margin) if parting else None,
        "logit_difference": _finite(parting.rounding) if parting else None,
        "draw_distance": draw.distance if draw else None,
        "draw_movement": draw.movement if draw else None,
        "verdict": run.verdict,
        "failure": run.failure or None,
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None

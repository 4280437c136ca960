"""What steps cost and what pays, as one JSON object for a program. Formats records; measures and prints nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lacli.cost.payoff import Payoff, best, payoffs
from lacli.cost.report import Setup, conclusion
from lacli.staircase import Cost, Staircase


def as_json(setup: Setup, cost: Cost) -> dict[str, Any]:
    """One flat object; what it holds is described in docs/benchmarks.md.

    *ms: milliseconds. relative, break_even and row_cost: in plain steps, t(1). null: there is no such number.
    """
    # What W, N and G bring is of lookahead, which a model of chains alone does not have.
    wide = [each for each in cost.staircases if each.most_rows > 1 and not cost.chain_only]
    chosen = best(payoffs(wide[0])) if wide else None
    return {
        "model": setup.model,
        "description": cost.description,
        "devices": cost.devices,
        **setup.loading.by_name,
        "measured_at": datetime.fromtimestamp(cost.measured_at, UTC).isoformat(timespec="seconds"),
        "seconds": cost.budget,
        "cached": setup.age is not None,
        "chain_only": cost.chain_only or None,
        "notes": list(cost.notes),
        "summary": conclusion(cost),
        "best_window": chosen.window if chosen else None,
        "best_ngram": chosen.ngram if chosen else None,
        "best_guesses": chosen.guesses if chosen else None,
        "best_speedup": _rounded(chosen.speedup) if chosen else None,
        "staircases": [_staircase_json(staircase) for staircase in cost.staircases],
        "settings": [_payoff_json(staircase, each) for staircase in wide for each in payoffs(staircase)],
    }


def _staircase_json(staircase: Staircase) -> dict[str, Any]:
    points = staircase.points
    rows, speedup = staircase.ceiling
    return {
        "context": staircase.context,
        "rows": [point.rows for point in points],
        "ms": [_ms(point.every) for point in points],
        "one_read_ms": [_ms(point.first) for point in points],
        "relative": [round(staircase.relative(point.rows), 4) for point in points],
        "spread": [round(point.spread, 4) for point in points],
        "repeats": [point.repeats for point in points],
        "row_cost": round(staircase.row, 4),
        "nearly_free_rows": staircase.nearly_free_rows,
        "ceiling_rows": rows,
        "ceiling_speedup": round(speedup, 4),
    }


def _payoff_json(staircase: Staircase, found: Payoff) -> dict[str, Any]:
    return {
        "context": staircase.context,
        "window": found.window,
        "ngram": found.ngram,
        "guesses": found.guesses,
        "rows": found.rows,
        "outputs": found.outputs,
        "break_even": _rounded(found.break_even),
        "most_tokens": found.most_tokens,
        "most_speedup": _rounded(found.most_speedup),
        "expected_tokens": _rounded(found.expected),
        "expected_speedup": _rounded(found.speedup),
        "extrapolated": found.extrapolated,
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 4)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)

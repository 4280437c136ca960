"""What `lacli cost` found: the steps' times in a table, what follows from them in plain words, and all as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from lacli.auto.step_cost import Cost, StepCost
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.terminal.screen import wrapped
from lacli.text.files import PAGE
from lacli.text.format import age_in_words, columns

SIZES = (2, 4, 8, 16, 32)
"""Rows of the steps whose least tokens are named."""


def as_json(path: Path, settings: ModelSettings, cost: Cost, *, is_kept: bool) -> dict[str, Any]:
    """Return what was measured as one object, described in docs/benchmarks.md."""
    return {
        "model": str(path),
        "description": cost.description,
        "devices": cost.devices,
        **settings.by_name,
        "measured_at": datetime.fromtimestamp(cost.measured_at, UTC).isoformat(timespec="seconds"),
        "seconds": cost.budget,
        "cached": is_kept,
        "change_ms": None if cost.change_s is None else round(cost.change_s * 1e3, 4),
        "chain_only": cost.chain_only or None,
        "notes": list(cost.notes),
        "summary": " ".join(words for _, words in findings(cost)),
        "staircases": [
            {
                "context": each.context,
                "rows": [point.rows for point in each.points],
                "ms": [round(point.every * 1e3, 4) for point in each.points],
                "one_read_ms": [round(point.first * 1e3, 4) for point in each.points],
                "relative": [round(each.relative(point.rows), 4) for point in each.points],
                "spread": [round(point.spread, 4) for point in each.points],
                "repeats": [point.repeats for point in each.points],
            }
            for each in cost.staircases
        ],
    }


def as_lines(settings: ModelSettings, cost: Cost, age: float | None = None, *, width: int = 0) -> str:
    """Return a heading, a table of each context, and what follows in words.

    `age`: seconds since it was measured, None for just now. `width`: columns of the terminal, 0 without one.
    """
    when = datetime.fromtimestamp(cost.measured_at).strftime("%Y-%m-%d %H:%M")
    heading = [
        ("model", cost.description),
        ("machine", f"{cost.devices}, {settings.thread_words}"),
        ("context", settings.flags),
        ("measured", when if age is None else f"{when}, {age_in_words(age)} (--fresh measures again)"),
        *(("note", note) for note in cost.notes),
    ]
    titled = [
        wrapped("\n".join(f"{name:9} {text}" for name, text in lines), width or PAGE)
        for lines in (heading, findings(cost))
    ]
    return "\n\n".join([titled[0], *map(_table, cost.staircases), titled[1]])


def findings(cost: Cost) -> list[tuple[str, str]]:
    """Return subjects with what follows from a cost: of rows, of lookahead and of mode auto."""
    if not cost.staircases:
        return [("rows", f"There is nothing to choose: {cost.chain_only}.")]
    wide = next((each for each in cost.staircases if each.max_rows > 1), None)
    if not wide:
        return [("rows", "Only steps of a single row were measured, which says nothing about larger ones.")]
    if cost.rough:
        return [("rough", "The times are too rough to say what follows: measure again on a calm machine, or -t 1.")]
    costs = f"A step of {wide.max_rows} rows costs {_number(wide.relative(wide.max_rows))} plain ones."
    if (free := wide.nearly_free_rows) > 1:
        costs = f"Steps of up to {free} rows cost hardly more than one of a single row. {costs}"
    chain = "Lookahead is not for this model, which can go back along a chain of guesses only."
    return [
        ("rows", costs),
        ("lookahead", chain if cost.chain_only else _on_lookahead(wide)),
        ("auto", _on_auto(wide)),
    ]


def _on_lookahead(step_cost: StepCost) -> str:
    """Say how many tokens a step lookahead's default needs."""
    settings = DecodeSettings(mode="lookahead")
    name = f"W={settings.window} N={settings.ngram} G={settings.guesses}"
    needed = step_cost.break_even(settings)
    if needed is None:
        return f"Whether {name} pays is not known: its steps have {settings.max_rows} rows."
    return f"{name} needs {needed:.1f} tokens a step to break even; it can bring {settings.max_step_tokens} at most."


def _on_auto(step_cost: StepCost) -> str:
    """Say what mode auto does with these costs."""
    least = [(rows, step_cost.relative(rows)) for rows in SIZES if rows <= step_cost.max_rows]
    named = [f"{_number(max(cost, 1.0))} for {rows} rows" for rows, cost in least if cost < rows]
    if not named:
        return "Mode auto, the default, decodes plainly here: no step can bring what it costs."
    return f"Mode auto, the default, drafts only if it expects more tokens a step than: {', '.join(named)}."


def _table(step_cost: StepCost) -> str:
    """Return a line a size: its time, and what its rows beyond those of the line before cost."""
    points = step_cost.points
    further = ["", *(f"{(b.every - a.every) / (b.rows - a.rows) * 1e3:.3g}" for a, b in pairwise(points))]
    rows = [
        (str(point.rows), f"{point.every * 1e3:.4g}", f"{step_cost.relative(point.rows):.2f}", row)
        for point, row in zip(points, further, strict=True)
    ]
    shown = columns(("rows", "ms", "plain steps", "ms a row"), rows, range(4))
    return "\n".join([f"behind {step_cost.context} tokens", *shown])


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"

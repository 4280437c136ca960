"""What `lacli cost` found: the steps' times in a table, what follows from them in plain words, and all as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from lacli.auto.step_cost import LEAST_MEASURED, Cost, StepCost
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.terminal.screen import wrapped
from lacli.text.files import PAGE
from lacli.text.format import age_in_words, columns

SIZES = (2, 4, 8, 16, 32)
"""Rows of the steps whose least tokens are named."""

NEARLY_FREE = 1.1
"""Cost in plain steps up to which a step is called nearly free."""

REACH = 2
"""Multiple of the largest measured step up to which a cost is extrapolated."""


def as_json(path: Path, settings: ModelSettings, cost: Cost, *, is_saved: bool) -> dict[str, Any]:
    """Return what was measured as one object, described in docs/benchmarks.md."""
    return {
        "model": str(path),
        "description": cost.description,
        "devices": cost.devices,
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
    ]
    titled = [
        wrapped("\n".join(f"{name:9} {text}" for name, text in lines), width or PAGE)
        for lines in (heading, findings(cost))
    ]
    return "\n\n".join([titled[0], *map(_table, cost.by_context), titled[1]])


def findings(cost: Cost) -> list[tuple[str, str]]:
    """Return subjects with what follows from a cost: of rows, of lookahead and of mode auto."""
    if not cost.by_context:
        return [("rows", f"Not measured: {cost.chain_only}. Mode auto learns what rows cost from its own steps.")]
    wide = cost.by_context[0]
    if not cost.is_usable:
        what = f"Steps of {LEAST_MEASURED} rows were too slow to be timed, and fewer say too little"
        return [("rows", f"{what}: give more --seconds, on a calmer machine. Mode auto learns from its own steps.")]
    costs = f"A step of {wide.max_rows} rows costs {_number(wide.relative(wide.max_rows))} plain ones."
    if (free := max(rows for rows in wide.measured if wide.relative(rows) <= NEARLY_FREE)) > 1:
        costs = f"Steps of up to {free} rows cost hardly more than one of a single row. {costs}"
    return [("rows", costs), ("lookahead", _on_lookahead(wide)), ("auto", _on_auto(wide))]


def _on_lookahead(step_cost: StepCost) -> str:
    """Say how many tokens a step lookahead's default needs."""
    settings = DecodeSettings(mode="lookahead")
    name = f"W={settings.window} N={settings.ngram} G={settings.guesses}"
    if settings.max_rows > REACH * step_cost.max_rows:
        return f"Whether {name} pays is not known: its steps have {settings.max_rows} rows."
    needed = step_cost.relative(settings.max_rows)
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
    points = step_cost.measured.items()
    further = ["", *(f"{(far - near) / (more - few) * 1e3:.3g}" for (few, near), (more, far) in pairwise(points))]
    rows = [
        (str(size), f"{seconds * 1e3:.4g}", f"{step_cost.relative(size):.2f}", row)
        for (size, seconds), row in zip(points, further, strict=True)
    ]
    shown = columns(("rows", "ms", "plain steps", "ms a row"), rows, range(4))
    return "\n".join([f"behind {step_cost.context} tokens", *shown])


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"

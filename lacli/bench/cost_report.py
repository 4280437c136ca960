"""What `lacli cost` found: the steps' times in a table, what follows from them in plain words, and all as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from pathlib import Path
from time import time
from typing import Any

from lacli.auto.experience import Experience
from lacli.auto.shared_step import CHEAP_ROW, PROMISING
from lacli.auto.step_cost import Cost, StepCost
from lacli.llamacpp.settings import ModelSettings
from lacli.session.report import SOURCE_WORDS
from lacli.settings import PRESETS, DecodeSettings, decode_settings
from lacli.terminal.charts import curve
from lacli.terminal.screen import wrapped
from lacli.text.files import PAGE
from lacli.text.format import age_in_words, columns, listed

SOURCES = {origin.value: words for origin, words in SOURCE_WORDS.items()} | {"rewriting": "changed copies"}
"""Where guesses came from in words, by the names of what mode auto has learned."""

Learned = tuple[Experience, float]
"""An experience, and when it was learned in seconds since 1970."""

CLEARLY_LESS = 0.95
"""Ratio of two times from which they may only have been measured at another moment."""

SELDOM_MORE = 5.0
"""Tokens a step that W=15 N=5 G=15 seldom passes.

It brought 1.5 to 4.7 on ten classes of prompts (docs/benchmarks.md).
"""

SIZES = (2, 4, 8, 16, 32)
"""Rows of the steps whose least tokens are named."""

GAP = 4
"""Columns between two tables side by side."""


def as_json(
    path: Path, settings: ModelSettings, cost: Cost, known: Sequence[Learned] = (), *, is_kept: bool
) -> dict[str, Any]:
    """Return what was measured as one object, described in docs/benchmarks.md."""
    return {
        "model": str(path),
        "description": cost.description,
        "devices": cost.devices,
        **settings.by_name,
        "measured_at": _iso(cost.measured_at),
        "seconds": cost.budget,
        "cached": is_kept,
        "chain_only": cost.chain_only or None,
        "notes": list(cost.notes),
        "summary": conclusion(cost),
        "staircases": [
            {
                "context": each.context,
                "rows": [point.rows for point in each.points],
                "ms": [round(point.every * 1e3, 4) for point in each.points],
                "one_read_ms": [round(point.first * 1e3, 4) for point in each.points],
                "relative": [round(each.relative(point.rows), 4) for point in each.points],
                "spread": [round(point.spread, 4) for point in each.points],
                "repeats": [point.repeats for point in each.points],
                "row_cost": round(each.row, 4),
                "nearly_free_rows": each.nearly_free_rows,
                "ceiling_rows": each.ceiling[0],
                "ceiling_speedup": round(each.ceiling[1], 4),
            }
            for each in cost.staircases
        ],
        "learned": [_learned_json(*each) for each in known],
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def as_lines(
    settings: ModelSettings,
    cost: Cost,
    age: float | None = None,
    known: Sequence[Learned] = (),
    *,
    width: int = 0,
    chart: bool = False,
) -> str:
    """Return a heading, a table, a `chart` if wanted, and what follows in words.

    `age`: seconds since it was measured, None for just now. `width`: columns of the terminal, 0 without one.
    """
    parts = [_titled(_heading(settings, cost, age, known), width)]
    if cost.staircases:
        parts.append(_table(cost.staircases, width))
    wide = [each for each in cost.staircases if each.max_rows > 1]
    if wide and chart:
        series = {
            f"behind {each.context} tokens": [(point.rows, each.relative(point.rows)) for point in each.points]
            for each in wide
        }
        labels = {"x_label": "rows a step", "y_label": "plain steps that a step costs"}
        # The last number of the axis may stand out.
        parts.append(curve(series, width=(width or PAGE) - 2, height=16, **labels))
    return "\n\n".join([*parts, _titled(findings(cost), width)])


def conclusion(cost: Cost) -> str:
    """Return what follows from a cost as one text."""
    return " ".join(words for _, words in findings(cost))


def findings(cost: Cost) -> list[tuple[str, str]]:
    """Return subjects with what follows from a cost: of rows, fixed settings, mode auto and the ceiling."""
    if not cost.staircases:
        return [("rows", f"There is nothing to choose: {cost.chain_only}.")]
    wide = [each for each in cost.staircases if each.max_rows > 1]
    if not wide:
        return [("rows", "Only steps of a single row were measured, which says nothing about larger ones.")]
    fixed = "Lookahead is not for this model, which can go back along a chain of guesses only."
    if cost.rough:
        todo = "measure again on a calm machine, with one thread (-t 1) or for longer (--seconds)"
        return [("rough", f"The times are too rough to say what follows: {todo}.")]
    return [
        ("rows", " ".join(filter(None, [_on_rows(wide[0]), _on_dips(wide[0])]))),
        ("fixed", fixed if cost.chain_only else _on_lookahead(wide[0])),
        ("auto", _on_auto(wide[0])),
        ("at most", _on_ceiling(wide)),
    ]


def _on_rows(step_cost: StepCost) -> str:
    free, rows, row = step_cost.nearly_free_rows, step_cost.max_rows, step_cost.row
    if free == rows > 1:
        return f"Up to the {rows} rows measured they are nearly free: a step costs hardly more than a plain one."
    cheap = f"Steps of up to {free} rows cost hardly more than one of a single row. " if free > 1 else ""
    share = f"{row:.0%}" if row >= 0.1 else f"{row:.1%}"
    part = f"{row:.1f} times a plain step" if row >= 1.1 else f"{share} of a plain step"
    step = f"A step of {rows} rows costs {_number(step_cost.relative(rows))} plain ones"
    return f"{cheap}{step}, {part} for each further row."


def _on_dips(step_cost: StepCost) -> str:
    """Name the sizes that cost less than the one before: kernels take rows in groups, and a full group is cheapest."""
    pairs = pairwise(step_cost.points)
    dips = [str(point.rows) for before, point in pairs if point.every < before.every * CLEARLY_LESS]
    if not dips:
        return ""
    return f"Steps of {listed(dips)} rows cost less than the next smaller ones measured."


def _on_lookahead(step_cost: StepCost) -> str:
    """Say whether lookahead's default can pay, and which preset can where that one cannot."""
    settings = DecodeSettings(mode="lookahead")
    name = f"W={settings.window} N={settings.ngram} G={settings.guesses}"
    rows, most, largest = settings.max_rows, settings.max_step_tokens, step_cost.max_rows
    needed = step_cost.break_even(settings)
    if needed is None:
        full = f"its full steps have {rows} rows"
        if (already := step_cost.relative(largest)) <= most:
            return f"Whether {name} pays is not known: {full}, and the largest measured has {largest}."
        # More rows never cost less.
        dear = f"{largest} cost {_number(already)} plain steps already, and it can bring {most} tokens at most"
        return f"Do not use {name} here: {full}; {dear}."
    about = "about " if rows > largest else ""
    needs = f"it needs {about}{needed:.1f} tokens a step to break even and can bring {most} at most"
    if needed <= SELDOM_MORE:
        return f"{name} may pay here: {needs}; lacli bench tells whether it does."
    if needed <= most:
        seldom = f"it seldom brings more than {SELDOM_MORE:g} tokens a step, though it can bring {most}"
        needs = f"it needs {about}{needed:.1f} to break even"
        return f"{name} will hardly pay here: {needs}, and {seldom}. {_on_presets(step_cost)}"
    return f"Do not use {name} here: {needs}. {_on_presets(step_cost)}"


def _on_presets(step_cost: StepCost) -> str:
    """Name the presets whose steps can bring what they cost."""
    able = []
    for name in PRESETS:
        settings = decode_settings(name)
        needed = step_cost.break_even(settings)
        if needed is not None and needed <= min(settings.max_step_tokens, SELDOM_MORE):
            able.append(f"--preset {name} (it needs {needed:.1f} tokens a step)")
    return f"These presets may pay: {', '.join(able)}." if able else "No --preset is likely to pay either."


def _on_auto(step_cost: StepCost) -> str:
    """Say what mode auto does with these costs."""
    least = [(rows, step_cost.relative(rows)) for rows in SIZES if rows <= step_cost.max_rows]
    named = [f"{_number(max(cost, 1.0))} for {rows} rows" for rows, cost in least if cost < rows]
    if not named:
        return "Mode auto, the default, will decode plainly here: no step can bring what it costs."
    pays = f"Mode auto, the default, guesses only where it expects more tokens a step than: {', '.join(named)}"
    cheap = any(step_cost.relative(rows) < tokens for rows, tokens in PROMISING.items() if rows <= step_cost.max_rows)
    if cheap or step_cost.relative(2) - 1 <= CHEAP_ROW:
        return f"{pays}. Rows are cheap here, so it will ask all its sources for guesses."
    return f"{pays}. Rows are dear here, so it will mostly copy text that repeats, and decode plainly elsewhere."


def _on_ceiling(wide: Sequence[StepCost]) -> str:
    rows, speedup = max((each.ceiling for each in wide), key=lambda ceiling: ceiling[1])
    if round(speedup, 1) <= 1:
        return "At the sizes measured, even guesses that all come true would not pay."
    gain = f"Steps whose guesses all come true would be {speedup:.1f} times as fast at most"
    return f"{gain}, with {rows} rows, the best of the sizes measured."


def _learned_json(experience: Experience, at: float) -> dict[str, Any]:
    steps = experience.cost_model.seen
    return {
        "sampled": experience.sampled,
        "learned_at": _iso(at),
        "sources": {
            name: {"tries": round(tries, 1), "accepted": round(share, 4)}
            for name, (share, tries) in experience.hit_rates.items()
        },
        "plain_ms": round(steps.plain_s * 1e3, 4) or None,
        "rows": [rows for rows, _, _ in steps.sizes],
        "relative": [cost for _, cost, _ in steps.sizes],
    }


def _learned_words(experience: Experience, at: float) -> str:
    steps, rates = experience.cost_model.seen, experience.hit_rates
    came = ", ".join(f"{share:.0%} of {tries:,.0f} from {SOURCES[name]}" for name, (share, tries) in rates.items())
    parts = [f"from {'sampled' if experience.sampled else 'greedy'} answers, {age_in_words(time() - at)}"]
    parts += [f"guesses that came true: {came}"] if came else []
    if steps.plain_s:
        sizes = ", ".join(f"{rows} rows {cost:.2f}" for rows, cost, _ in steps.sizes)
        times = f"; steps of {sizes} times as long" if sizes else ""
        parts.append(f"a plain step took {_milliseconds([steps.plain_s])[0]} ms{times}")
    return "; ".join(parts)


def _heading(settings: ModelSettings, cost: Cost, age: float | None, known: Sequence[Learned]) -> list[tuple[str, str]]:
    when = datetime.fromtimestamp(cost.measured_at).strftime("%Y-%m-%d %H:%M")
    return [
        ("model", cost.description),
        ("machine", f"{cost.devices}, {settings.all_thread_words}"),
        ("context", settings.flags),
        ("measured", when if age is None else f"{when}, {age_in_words(age)} (--fresh measures again)"),
        *(("learned", _learned_words(*each)) for each in known),
        *(("note", note) for note in cost.notes),
    ]


def _titled(lines: Sequence[tuple[str, str]], width: int) -> str:
    """Return a line a subject, wrapped beside the subjects."""
    return wrapped("\n".join(f"{name:9} {text}" for name, text in lines), width or PAGE)


def _table(step_costs: Sequence[StepCost], width: int) -> str:
    """Return a line a size, with four columns for each context: side by side where there is room."""
    blocks = [_one_table(each) for each in step_costs]
    sizes = [max(map(len, block)) for block in blocks]
    title = "Steps by rows: ms, times a plain step, ms a further row"
    title = wrapped(title, width or PAGE)
    if width and sum(sizes) + GAP * (len(sizes) - 1) > width:
        return "\n\n".join([title, *("\n".join(block) for block in blocks)])
    lines = zip_longest(*blocks, fillvalue="")
    beside = [(" " * GAP).join(f"{part:{size}}" for part, size in zip(line, sizes, strict=True)) for line in lines]
    return "\n".join([title, *(line.rstrip() for line in beside)])


def _one_table(step_cost: StepCost) -> list[str]:
    points = step_cost.points
    cells = [
        [str(point.rows) for point in points],
        _milliseconds([point.every for point in points]),
        [f"{step_cost.relative(point.rows):.2f}" for point in points],
        ["", *_milliseconds([(b.every - a.every) / (b.rows - a.rows) for a, b in pairwise(points)])],
    ]
    rows = list(zip(*cells, strict=True))
    return [f"behind {step_cost.context} tokens", *columns(("rows", "ms", "times", "a row"), rows, range(4))]


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _milliseconds(times: Sequence[float]) -> list[str]:
    """Return seconds as milliseconds, with the decimals that the smallest needs for three digits, at most three."""
    least = min((abs(seconds) * 1e3 for seconds in times), default=0.0)
    places = 3 if least < 1 else 2 if least < 10 else 1 if least < 100 else 0
    return [f"{seconds * 1e3:.{places}f}" for seconds in times]

"""`lacli cost`: what steps of many rows cost, measured or from the records, and what mode auto has learned here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from io import StringIO
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lacli.cli import options
from lacli.cli.groups import with_groups
from lacli.cli.options import model_group
from lacli.errors import Interrupted, UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.format import age_in_words

if TYPE_CHECKING:
    from rich.table import Table

    from lacli.auto.experience import Experience
    from lacli.auto.measure import MeasurePlan
    from lacli.auto.model_cost import ModelRecords
    from lacli.auto.step_cost import Cost, StepCost
    from lacli.terminal.screen import Screen

    Learned = tuple[Experience, float]
    """An experience, and when it was learned in seconds since 1970."""

COST = "Cost"
MAX_ROWS, MAX_CONTEXT = 4096, 2**20

WIDTH = 96
"""Columns of the conclusion and the chart; the table is about as wide."""

CLEARLY_LESS = 0.95
"""Ratio of two times from which they may only have been measured at another moment."""


def sizes(text: str, flag: str, most: int) -> tuple[int, ...]:
    """Return numbers and ranges, written as llama-bench takes them, in order; each from 1 to `most`."""
    from lacli.bench.sweep import parse_numbers

    numbers = sorted(parse_numbers(text, flag))
    for number in numbers:
        if not 1 <= number <= most:
            raise UsageError(f"{flag} takes numbers from 1 to {most}, not {number}")
    return tuple(numbers)


Contexts = Annotated[
    str,
    typer.Option("--contexts", metavar="TOKENS,..", help="Tokens before the steps.", rich_help_panel=COST),
]
Rows = Annotated[
    str | None,
    typer.Option("--rows", metavar="ROWS,..", show_default=False, rich_help_panel=COST,
                 help="Sizes of the steps, also ranges: 1-16,32-128*2. (default: 24 sizes from 1 to 128)"),
]  # fmt: skip
Seconds = Annotated[
    float,
    typer.Option("--seconds", min=0.1, help="About how long to measure; slow models get fewer sizes.",
                 rich_help_panel=COST),
]  # fmt: skip
Fresh = Annotated[
    bool,
    typer.Option("--fresh", rich_help_panel=COST,
                 help="Measure again what was measured before, and forget what mode auto has learned here."),
]  # fmt: skip


@with_groups(model=options.model_name, model_settings=model_group)
def cost(
    model: str | None,
    contexts: Contexts = "64,2048",
    rows: Rows = None,
    seconds: Seconds = 20,
    fresh: Fresh = False,
    *,
    model_settings: ModelSettings,
    offline: options.Offline = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Measure what steps of many rows cost here.

    It says what lookahead must bring to pay for itself. A model is measured once on a machine and for its flags; the
    numbers are kept in the user's cache directory.

    Beside them stands what mode auto has learned from answers.
    """
    from json import dumps

    from lacli.auto.measure import ROWS, MeasurePlan
    from lacli.auto.model_cost import ModelRecords, cost_key, cost_of
    from lacli.llamacpp.probe import proven
    from lacli.terminal.screen import Screen
    from lacli.text.records import state_file

    plan = MeasurePlan(
        contexts=sizes(contexts, "--contexts", MAX_CONTEXT),
        rows=sizes(rows, "--rows", MAX_ROWS) if rows is not None else ROWS,
        seconds=seconds,
    )
    screen = Screen(color=color, quiet=quiet)
    path = options.model_path(model, screen, offline)
    settings, fault = proven(model_settings)
    if fault:
        screen.note(fault)
    found, is_kept = cost_of(
        cost_key(path, settings, plan),
        plan,
        state_file(),
        lambda: _measured(path, settings, plan, screen, verbose=verbose),
        fresh=fresh,
        progress=screen.note,
    )
    records = ModelRecords(state_file(), path, settings)
    if fresh:
        records.forget()
    known = learned(records)
    if json:
        screen.line(dumps(as_json(path, settings, found, known, is_kept=is_kept), ensure_ascii=False))
    else:
        screen.line(as_lines(settings, found, time() - found.measured_at if is_kept else None, known))


def _measured(path: Path, settings: ModelSettings, plan: MeasurePlan, screen: Screen, *, verbose: bool) -> Cost:
    """Open the model and measure it. Raises Interrupted after Ctrl-C."""
    from lacli.auto.model_cost import measure_cost
    from lacli.llamacpp.model import LlamaModel
    from lacli.terminal.interrupts import ctrl_c_ends_at_once
    from lacli.terminal.screen import loading_model

    with loading_model(screen, verbose=verbose) as loading:
        model = LlamaModel(path, settings, verbose=verbose, loading=loading)
    with model:
        try:
            return measure_cost(model, settings, plan, screen.note, opening=ctrl_c_ends_at_once())
        except KeyboardInterrupt:
            raise Interrupted("stopped before everything was measured, so nothing is kept") from None


def learned(records: ModelRecords) -> list[Learned]:
    """Return what mode auto begins with here, in greedy answers and in sampled ones, and when it was learned."""
    from lacli.auto.experience import Experience

    experiences = [Experience(DecodeSettings(), sampled=sampled) for sampled in (False, True)]
    return [(each, at) for each in experiences if (at := records.go_on(each))]


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


def as_lines(settings: ModelSettings, cost: Cost, age: float | None = None, known: Sequence[Learned] = ()) -> str:
    """Return a heading, a table, a chart and a conclusion; `age`: seconds since it was measured, None for just now."""
    parts = [_heading(settings, cost, age, known)]
    if cost.staircases:
        parts.append(_table(cost.staircases))
    if wide := [each for each in cost.staircases if each.max_rows > 1]:
        from lacli.terminal.charts import curve

        series = {
            f"behind {each.context} tokens": [(point.rows, each.relative(point.rows)) for point in each.points]
            for each in wide
        }
        labels = {"x_label": "rows a step", "y_label": "plain steps that a step costs"}
        parts.append(curve(series, width=WIDTH, height=16, log2_x=True, log2_y=True, y_from=1, **labels))
    return "\n\n".join([*parts, fill(conclusion(cost), WIDTH)])


def conclusion(cost: Cost) -> str:
    """Return what a row costs here, whether the default lookahead can pay, and the ceiling, in plain words."""
    if not cost.staircases:
        return f"There is nothing to choose: {cost.chain_only}."
    wide = [each for each in cost.staircases if each.max_rows > 1]
    if not wide:
        return "Only steps of a single row were measured, which says nothing about larger ones."
    sentences = [_on_rows(wide[0]), _on_dips(wide[0])]
    if cost.chain_only:
        sentences.append("Lookahead is not for this model, which can go back along a chain of guesses only.")
    else:
        sentences.append(_on_lookahead(wide[0]))
    sentences.append(_on_ceiling(wide))
    if cost.rough:
        sentences.append("All this is rough, because the times vary much: is the machine busy with other work?")
    return " ".join(sentence for sentence in sentences if sentence)


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
    return f"A step of {' or '.join(dips)} rows costs less than the next smaller one measured: aim at these sizes."


def _on_lookahead(step_cost: StepCost) -> str:
    settings = DecodeSettings(mode="lookahead")
    name = f"W={settings.window} N={settings.ngram} G={settings.guesses}"
    full, most = f"its full steps have {settings.max_rows} rows", settings.max_step_tokens
    needed = step_cost.break_even(settings)
    if needed is None:
        known = f"{full}, and the largest measured has {step_cost.max_rows}"
        if (already := step_cost.relative(step_cost.max_rows)) <= most:
            return f"Whether {name} pays is not known: {known}."
        # More rows never cost less.
        dearer = f"which costs {_number(already)} plain ones already, and it can bring at most {most} tokens a step"
        return f"{name} cannot pay: {known}, {dearer}."
    about = "about " if settings.max_rows > step_cost.max_rows else ""
    must = f"To be as fast as plain decoding {name} must bring {about}{needed:.1f} tokens a step where {full}"
    if most < needed:
        return f"{must}, and can bring at most {most}: it cannot pay."
    return f"{must}; lacli bench tells whether it does."


def _on_ceiling(wide: Sequence[StepCost]) -> str:
    rows, speedup = max((each.ceiling for each in wide), key=lambda ceiling: ceiling[1])
    if rows == 1:
        return "At the sizes measured, even guesses that all come true would not pay."
    gain = f"Guesses that all come true would be {speedup:.1f} times as fast at most"
    return f"{gain}, with {rows} rows a step, the best of the sizes measured."


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
    came = ", ".join(f"{name} {share:.0%} of {tries:.0f} tries" for name, (share, tries) in rates.items())
    parts = [f"from {'sampled' if experience.sampled else 'greedy'} answers, {age_in_words(time() - at)}"]
    parts += [f"guesses that came true: {came}"] if came else []
    if steps.plain_s:
        sizes = [f", {rows} rows {cost:.2f} plain ones" for rows, cost, _ in steps.sizes]
        parts.append(f"a plain step {_milliseconds([steps.plain_s])[0]} ms{''.join(sizes)}")
    return "; ".join(parts)


def _heading(settings: ModelSettings, cost: Cost, age: float | None, known: Sequence[Learned]) -> str:
    when = datetime.fromtimestamp(cost.measured_at).strftime("%Y-%m-%d %H:%M")
    lines = [
        ("model", cost.description),
        ("machine", f"{cost.devices}, {settings.all_thread_words}"),
        ("context", settings.flags),
        ("measured", when if age is None else f"{when}, {age_in_words(age)} (--fresh measures again)"),
        *(("learned", _learned_words(*each)) for each in known),
        *(("note", note) for note in cost.notes),
    ]
    return "\n".join(
        fill(text, WIDTH, initial_indent=f"{name:9} ", subsequent_indent=" " * 10, break_long_words=False)
        for name, text in lines
    )


def _table(step_costs: Sequence[StepCost]) -> str:
    """Return a line a size, with four columns for each context."""
    from rich.console import Console
    from rich.table import Table

    side_by_side = Table.grid(padding=(0, 3, 0, 0))
    side_by_side.add_row(*map(_one_table, step_costs))
    console = Console(file=StringIO(), width=10 * WIDTH, color_system=None)
    with console.capture() as printed:
        console.print(side_by_side)
    title = "Steps by rows: ms, times a plain step, ms a further row, ms where one choice alone is read"
    return "\n".join([title, *(line.rstrip() for line in printed.get().splitlines())])


def _one_table(step_cost: StepCost) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), title=f"behind {step_cost.context} tokens", title_style="")
    points = step_cost.points
    columns = {
        "rows": [str(point.rows) for point in points],
        "ms": _milliseconds([point.every for point in points]),
        "times": [f"{step_cost.relative(point.rows):.2f}" for point in points],
        "a row": ["", *_milliseconds([(b.every - a.every) / (b.rows - a.rows) for a, b in pairwise(points)])],
        "one read": _milliseconds([point.first for point in points]),
    }
    for name in columns:
        table.add_column(name, justify="right")
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _milliseconds(times: Sequence[float]) -> list[str]:
    """Return seconds as milliseconds, with the decimals that the smallest needs for three digits, at most three."""
    least = min((abs(seconds) * 1e3 for seconds in times), default=0.0)
    places = 3 if least < 1 else 2 if least < 10 else 1 if least < 100 else 0
    return [f"{seconds * 1e3:.{places}f}" for seconds in times]

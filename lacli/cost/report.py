"""What steps cost and what pays, as tables, a chart and a conclusion for a person; `cost_json.py` is for programs.

Formats records; measures nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from textwrap import fill

from lacli.cost.payoff import (
    NGRAMS,
    Payoff,
    best,
    payoff,
    payoffs,
)
from lacli.law import PAPER
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.staircase import REACH, Cost, Staircase
from lacli.terminal.charts import curve
from lacli.text.format import counted

WIDTH = 96
"""Columns of the conclusion and the chart; the tables are about as wide."""

CLEARLY_LESS = 0.95
"""Times that differ by less than this may only have been measured at another moment."""

SHORT, HOUR, DAY = 90, 3600, 86400
"""Seconds: ages up to the first are in seconds, up to the second in minutes, and so on."""


@dataclass(frozen=True)
class Setup:
    """What was measured and shown. model: the file's path. age: seconds since it was measured, None: just now."""

    model: str
    loading: ModelSettings
    age: float | None = None


def as_lines(setup: Setup, cost: Cost) -> str:
    """What was measured, a table a question, a chart, and a conclusion."""
    parts = [_heading(setup, cost)]
    if cost.staircases:
        parts.append(_steps_table(cost))
    if wide := _wide(cost):
        parts += [_chart(wide), *([] if cost.chain_only else map(_payoff_table, wide))]
    return "\n\n".join([*parts, fill(conclusion(cost), WIDTH)])


def conclusion(cost: Cost) -> str:
    """What a row costs here, whether the usual W, N and G pay, and which could, in plain words."""
    if not cost.staircases:
        return f"There is nothing to choose: {cost.chain_only}."
    if not (wide := _wide(cost)):
        return "Only steps of a single row were measured, which says nothing about larger ones."
    first, *others = wide
    sentences = [_on_rows(first), _on_dips(first)]
    if cost.chain_only:
        sentences.append("Lookahead is not for this model, which can go back along a chain of guesses only.")
    else:
        sentences += [_on_lookahead(first), _on_best(first), _on_no_window(first)]
        sentences += [_on_best(staircase, first) for staircase in others]
    sentences.append(_on_ceiling(wide))
    if cost.rough:
        sentences.append("All this is rough, because the times vary much: is the machine busy with other work?")
    return " ".join(sentence for sentence in sentences if sentence)


def _wide(cost: Cost) -> list[Staircase]:
    """The staircases from which something follows."""
    return [staircase for staircase in cost.staircases if staircase.most_rows > 1]


def _on_rows(staircase: Staircase) -> str:
    free, rows = staircase.nearly_free_rows, staircase.most_rows
    if free == rows > 1:
        return f"Up to the {rows} rows measured they are nearly free: such a step costs hardly more than a plain one."
    cheap = f"Steps of up to {free} rows cost hardly more than one of a single row. " if free > 1 else ""
    step = f"A step of {rows} rows costs {_number(staircase.relative(rows))} plain ones"
    return f"{cheap}{step}, {_part(staircase.row)} for each further row."


def _on_dips(staircase: Staircase) -> str:
    """Sizes that cost less than the one before: kernels take rows in groups, and a full group is cheapest."""
    pairs = pairwise(staircase.points)
    dips = [str(point.rows) for before, point in pairs if point.every < before.every * CLEARLY_LESS]
    if not dips:
        return ""
    return f"A step of {' or '.join(dips)} rows costs less than the next smaller one measured: aim at such sizes."


def _on_no_window(staircase: Staircase) -> str:
    """What guesses from the text alone must bring; the law says nothing about them."""
    choices = [
        payoff(staircase, DecodeSettings(mode="lookahead", window=0, ngram=ngram, guesses=1)) for ngram in NGRAMS
    ]
    known = [each for each in choices if each.break_even and not each.extrapolated]
    if not known:
        return ""
    found = max(known, key=lambda each: each.most_speedup or 0.0)
    return (
        f"Without a window, on guesses from the text alone, {found.name} must bring {found.break_even:.1f} tokens a "
        "step: lacli bench tells whether it does on texts like yours."
    )


def _on_lookahead(staircase: Staircase) -> str:
    found = payoff(staircase, DecodeSettings(mode="lookahead"))
    if found.break_even is None or found.speedup is None:
        known = f"its full steps have {found.rows} rows, and the largest measured has {staircase.most_rows}"
        if (already := staircase.relative(staircase.most_rows)) > found.most_tokens:
            # More rows never cost less.
            dearer = f"which costs {_number(already)} plain ones already, and it can bring at most {found.most_tokens}"
            return f"{found.name} cannot pay: {known}, {dearer} tokens a step."
        return f"Whether {found.name} pays is not known: {known}."
    about = "about " if found.extrapolated else ""
    must = f"Where its steps are full ({found.rows} rows), {found.name} must bring {about}{found.break_even:.1f} tokens"
    must += " a step to be as fast as plain decoding"
    if found.most_tokens < found.break_even:
        return f"{must}, and can bring at most {found.most_tokens}: it cannot pay."
    verdict = f"{found.speedup:.2f} times as fast" if found.speedup > 1 else "it does not pay"
    return f"{must}; the paper's law expects {found.expected:.1f}: {verdict}."


def _on_best(staircase: Staircase, first: Staircase | None = None) -> str:
    """What the law expects to be fastest of the sizes that were measured; `first`: in short, after that one's."""
    choices = payoffs(staircase)
    found = best(choices)
    begin = f"Behind {staircase.context} tokens the best" if first else "The best by the paper's law"
    at_most = f"of at most {staircase.most_rows} rows"
    if found is None or found.speedup is None:
        return f"{begin} is not known: no window in the table has steps {at_most}."
    among, none = "", "no window pays"
    if any(each.extrapolated for each in choices):
        told = first is not None and first.most_rows == staircase.most_rows
        among, none = "" if told else f" among steps {at_most}", "none of them pays"
    what = f"{begin}{among} is {found.name}, {found.speedup:.2f} times plain's speed"
    if first or found.speedup > 1:
        return f"{what}."
    return f"{what}: {none}, unless the text repeats itself far more than the paper's."


def _on_ceiling(staircases: Sequence[Staircase]) -> str:
    rows, speedup = max((staircase.ceiling for staircase in staircases), key=lambda ceiling: ceiling[1])
    if rows == 1:
        return "At the sizes measured, even guesses that all come true would not pay."
    gain = f"Guesses that all come true would be {speedup:.1f} times as fast at most"
    return f"{gain}, with {rows} rows a step, the best of the sizes measured."


def _heading(setup: Setup, cost: Cost) -> str:
    lines = [
        ("model", cost.description),
        ("machine", f"{cost.devices}, {setup.loading.all_thread_words}"),
        ("context", setup.loading.flags),
    ]
    when = datetime.fromtimestamp(cost.measured_at).strftime("%Y-%m-%d %H:%M")
    lines.append(("measured", when if setup.age is None else f"{when}, {_age(setup.age)} ago (--fresh measures again)"))
    lines += [("note", note) for note in cost.notes]
    return "\n".join(
        fill(text, WIDTH, initial_indent=f"{name:9} ", subsequent_indent=" " * 10, break_long_words=False)
        for name, text in lines
    )


def _steps_table(cost: Cost) -> str:
    """A line a size; below each context's name its four columns."""
    sizes = sorted({point.rows for staircase in cost.staircases for point in staircase.points})
    blocks = [_block(staircase, sizes) for staircase in cost.staircases]
    labels = ["", "rows", *map(str, sizes)]
    width = max(map(len, labels))
    lines = [
        "  ".join([f"  {label:>{width}}", *(block[index] for block in blocks)]).rstrip()
        for index, label in enumerate(labels)
    ]
    title = "Steps of so many rows: ms, times a plain step, ms a further row, ms where one choice alone is read"
    return "\n".join([title, *lines])


def _block(staircase: Staircase, sizes: Sequence[int]) -> list[str]:
    """A title, the columns' names, and a line a size, all equally wide."""
    points = {point.rows: point for point in staircase.points}
    further = [
        (point.every - before.every) / (point.rows - before.rows) for before, point in pairwise(staircase.points)
    ]
    columns = [
        ["ms", *_milliseconds([point.every for point in staircase.points])],
        ["times", *(f"{staircase.relative(size):.2f}" for size in points)],
        ["a row", "", *_milliseconds(further)],
        ["one read", *_milliseconds([point.first for point in staircase.points])],
    ]
    widths = [max(map(len, column)) for column in columns]
    found = iter(zip(*columns, strict=True))
    rows = [next(found), *(next(found) if size in points else ("",) * len(columns) for size in sizes)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    title = f"behind {staircase.context} tokens"
    return [f" {line}" for line in [title.center(len(lines[0])), *lines]]


def _payoff_table(staircase: Staircase) -> str:
    """A line a window: for each N the S that is needed, and the speed that the law expects."""
    found = payoffs(staircase)
    ngrams = sorted({each.ngram for each in found})
    head = ["W", "G", *(f"N={ngram}" for ngram in ngrams), "|", *(f"N={ngram}" for ngram in ngrams)]
    rows = [head]
    for window, group in groupby(found, key=lambda each: each.window):
        choices = list(group)
        needed = [_known(each.break_even, 1, each) for each in choices]
        expected = [_known(each.speedup, 2, each) for each in choices]
        rows.append([str(window), str(choices[0].guesses), *needed, "|", *expected])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    title = (
        f"Behind {staircase.context} tokens: the S that makes lookahead as fast as plain decoding | its speed against\n"
        f"plain's if S is what the paper's law expects (alpha {PAPER.alpha}, f {PAPER.f})"
    )
    if any(each.extrapolated for each in found):
        most = staircase.most_rows
        lines.append(f"  ~ more than the {most} rows measured, - more than {REACH * most}, or no window: not known")
    return "\n".join([title, *lines])


def _known(number: float | None, places: int, found: Payoff) -> str:
    """A number of a table: ~ before one that was not measured at that size, - for none."""
    return "-" if number is None else f"{'~' if found.extrapolated else ''}{number:.{places}f}"


def _chart(staircases: Sequence[Staircase]) -> str:
    series = {
        f"behind {staircase.context} tokens": [
            (point.rows, staircase.relative(point.rows)) for point in staircase.points
        ]
        for staircase in staircases
    }
    labels = {"x_label": "rows a step", "y_label": "plain steps that a step costs"}
    return curve(series, width=WIDTH, height=16, log2_x=True, log2_y=True, y_from=1, **labels)


def _part(row: float) -> str:
    """How much of a plain step a row is."""
    if row >= 0.9:
        return "nearly as much as a plain step" if row < 1.1 else f"{row:.1f} times a plain step"
    return f"{row:.0%} of a plain step" if row >= 0.1 else f"{row:.1%} of a plain step"


def _age(seconds: float) -> str:
    for most, unit, name in ((SHORT, 1, "second"), (SHORT * 60, 60, "minute"), (2 * DAY, HOUR, "hour")):
        if seconds < most:
            return counted(int(seconds // unit), name)
    return counted(int(seconds // DAY), "day")


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _milliseconds(times: Sequence[float]) -> list[str]:
    """Seconds as milliseconds, with as many places as the smallest needs for three digits, and three at most."""
    least = min((abs(seconds) * 1e3 for seconds in times), default=0.0)
    places = 3 if least < 1 else 2 if least < 10 else 1 if least < 100 else 0
    return [f"{seconds * 1e3:.{places}f}" for seconds in times]

"""A benchmark's pictures: what goes into the file of --plot, and the same as charts in the terminal.

Chooses what is drawn; the drawing is `lacli.plots` and `lacli.terminal.charts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lacli import plots
from lacli.bench.ceiling import Ceilings
from lacli.bench.results import Result, overall
from lacli.bench.rounds import Contender
from lacli.law import (
    PAPER,
    Law,
    Measured,
    fit,
)
from lacli.staircase import Cost
from lacli.terminal import charts

LEAST_FOR_A_CURVE = 3
"""Points of a sweep; fewer are a table."""

MOST_BY_CLASS = 5
"""Contenders that are told apart by colour."""


def compression_points(found: Sequence[Result], contenders: Sequence[Contender]) -> list[plots.CompressionPoint]:
    """S and the rows of a step of every lookahead setting, over all classes."""
    points = []
    for result in overall(found):
        point, rows = contenders[result.contender].point, result.rows_per_step
        if point and point.settings.mode == "lookahead" and rows is not None:
            chosen = point.settings
            points.append(plots.CompressionPoint(chosen.window, chosen.ngram, chosen.guesses, rows, result.compression))
    return points


def law_of(points: Sequence[plots.CompressionPoint]) -> Law | None:
    """The paper's law fitted to the settings with G = W, which it is about; None where they do not tell."""
    return fit(_tied(points))


def _tied(points: Sequence[plots.CompressionPoint]) -> list[Measured]:
    """What the law is about: gamma, sequences and S of the settings with G = W."""
    return [(each.ngram - 1, each.window, each.compression) for each in points if 0 < each.window == each.guesses]


def speedups(
    found: Sequence[Result], contenders: Sequence[Contender], ceilings: Ceilings | None = None
) -> list[plots.Speedup]:
    """The speed-up of everyone but plain decoding, class by class; of a sweep's many only over all classes."""
    guessing = [result for result in found if contenders[result.contender].mode != "plain"]
    if len({result.contender for result in guessing}) <= MOST_BY_CLASS:
        return [
            _speedup(result, result.kind, contenders[result.contender].label, ceilings or {}) for result in guessing
        ]
    whole = overall(guessing)
    return [
        _speedup(result, contenders[result.contender].label, f"prompts: {result.kind}", ceilings or {})
        for result in whole
    ]


def _speedup(result: Result, group: str, name: str, ceilings: Ceilings) -> plots.Speedup:
    ratio, ceiling = result.speedup, ceilings.get((result.contender, result.kind))
    return plots.Speedup(group, name, ratio.value, ratio.low, ratio.high, ceiling.ratio.value if ceiling else None)


def staircases(cost: Cost | None) -> list[plots.Staircase]:
    """What a step of b rows costs, in plain steps, for each length of context."""
    return [
        plots.Staircase(
            f"{each.context} tokens of context",
            [(point.rows, each.relative(point.rows)) for point in each.points],
        )
        for each in (cost.staircases if cost else ())
    ]


def save(
    path: Path,
    found: Sequence[Result],
    contenders: Sequence[Contender],
    cost: Cost | None,
    title: str,
    caption: str,
    ceilings: Ceilings | None = None,
) -> bool:
    """Write the picture; it has the panels for which there is something to draw, and without any there is none."""
    points, ratios = compression_points(found, contenders), speedups(found, contenders, ceilings)
    stairs = staircases(cost)
    panels: list[plots.Panel] = []
    if len(points) >= LEAST_FOR_A_CURVE:
        panels.append(partial(plots.compression, points=points, law=law_of(points)))
    if ratios:
        panels.append(partial(plots.speedups, results=ratios))
    if stairs:
        panels.append(partial(plots.stairs, staircases=stairs))
    if panels:
        plots.save(path, panels, title=title, caption=caption)
    return bool(panels)


def as_charts(found: Sequence[Result], contenders: Sequence[Contender], cost: Cost | None) -> str:
    """The same for a terminal."""
    parts = []
    points, ratios, stairs = compression_points(found, contenders), speedups(found, contenders), staircases(cost)
    if len(points) >= LEAST_FOR_A_CURVE:
        series = {f"N = {ngram}": [(each.rows, each.compression) for each in points if each.ngram == ngram]
                  for ngram in dict.fromkeys(each.ngram for each in points)}  # fmt: skip
        parts.append(charts.curve(series, x_label="rows a step", y_label="S, tokens a step", log2_x=True, y_from=1))
    if ratios:
        names, groups = [each.mode for each in ratios], [each.prompt_class for each in ratios]
        if len(set(names)) == 1:
            names, groups = groups, names
        parts.append(
            charts.bars(
                names,
                [each.ratio for each in ratios],
                low=[each.ratio if each.low is None else each.low for each in ratios],
                high=[each.ratio if each.high is None else each.high for each in ratios],
                groups=groups,
                mark=1.0,
                unit="x",
            )
        )
    if stairs:
        lines = {each.label: list(each.points) for each in stairs}
        parts.append(charts.curve(lines, x_label="rows", y_label="times a plain step", log2_x=True, y_from=1))
    return "\n\n".join(parts)


def law_sentence(points: Sequence[plots.CompressionPoint]) -> str:
    """What the fit says, beside the paper's; empty where there is none."""
    law = law_of(points)
    if not law:
        return ""
    return (
        f"The paper's law (Equations 5 and 7) fits the settings with G = W at alpha {law.alpha:.3f} and f {law.f:.2f}, "
        f"with {law.error(_tied(points)):.2f} tokens a step of error (root mean square); "
        f"the paper's own example has {PAPER.alpha:.3f} and {PAPER.f:.2f}."
    )

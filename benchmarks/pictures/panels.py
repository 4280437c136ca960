"""The panels about rows: the tokens that a step of b rows brings, and what it costs.

Each draws on axes it is given and returns the height it needs, in inches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.insight.law import SweepPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from benchmarks.insight.law import Law

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#000000")
"""Okabe and Ito's palette, which readers with any colour vision tell apart."""

QUIET = "#777777"
"""Reference lines and their words."""

LEGEND_LINE = 15
"""Points that a line of a legend takes."""

MARKERS = "os^Dv<>P"
HEIGHT = 4.8
"""Inches of a panel of curves."""

MOST_SIZES = 6
"""Points of a line up to which its name lists them."""


@dataclass(frozen=True)
class Staircase:
    """What steps cost: points are (rows, t(rows) / t(1)); label: '200 tokens of context', for example."""

    label: str
    points: Sequence[tuple[float, float]]


def compression(axes: Axes, points: Sequence[SweepPoint], law: Law | None = None) -> float:
    """S against the rows of a step, a line per N (the paper's Figure 4).

    law: its curve is drawn through the rows of the points that it is about, those with G = W.
    """
    drawn = False
    for index, ngram in enumerate(sorted({point.ngram for point in points})):
        own = sorted((point for point in points if point.ngram == ngram), key=lambda point: point.rows)
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        rows, values = [point.rows for point in own], [point.compression for point in own]
        curve = _law_curve(own, law) if law else None
        axes.plot(rows, values, color=color, marker=marker, linestyle="none" if curve else "-", label=_sizes(own))
        if curve:
            axes.plot(*curve, color=color, linestyle="--")
            drawn = True
    axes.axhline(1, color=QUIET, linestyle=":", label="plain decoding")
    if law and drawn:
        axes.plot([], [], color=QUIET, linestyle="--", label=f"the law, α = {law.alpha:.3f}, f = {law.f:.3f}")
    axes.set_ylabel("S, tokens a step")
    axes.set_ylim(bottom=min(0.9, *(point.compression for point in points)))
    _rows_axis(axes, [point.rows for point in points])
    finish_panel(axes, "Tokens a step", columns=1 if len(axes.get_lines()) < 5 else 2)
    return HEIGHT


def stairs(axes: Axes, staircases: Sequence[Staircase]) -> float:
    """What a step of b rows costs in steps of one row, between `free` and `as dear as b steps`."""
    rows = sorted({row for staircase in staircases for row, _ in staircase.points})
    highest = max(cost for staircase in staircases for _, cost in staircase.points)
    for index, staircase in enumerate(staircases):
        across, up = zip(*staircase.points, strict=True)
        axes.plot(across, up, color=COLORS[index % len(COLORS)], marker=MARKERS[index % len(MARKERS)],
                  label=staircase.label)  # fmt: skip
    dense = np.geomspace(rows[0], rows[-1], 100)
    axes.plot(dense, dense, color=QUIET, linestyle="--", label="as dear as b steps of one row")
    axes.axhline(1, color=QUIET, linestyle=":", label="rows are free")
    if highest > 4:
        axes.set_yscale("log", base=2)
        _plain_numbers(axes.yaxis)
        axes.set_ylim(0.8, 1.3 * highest)
    else:
        axes.set_ylim(0, 1.2 * highest)
    axes.set_ylabel("t(b) / t(1)")
    _rows_axis(axes, rows)
    finish_panel(axes, "What a step of b rows costs", columns=2)
    return HEIGHT


def finish_panel(axes: Axes, title: str, columns: int) -> None:
    """Show only the axes that are read, a light grid behind the numbers, and the legend where nothing is drawn."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    entries = len(axes.get_legend_handles_labels()[1])
    legend = axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns)
    for text in legend.get_texts():
        text.set_parse_math(False)
    axes.set_title(title, pad=12 + LEGEND_LINE * -(-entries // columns))


def _sizes(points: Sequence[SweepPoint]) -> str:
    """A line's name: its N, and what W and G are from left to right where that is short."""
    ngram = f"N = {points[0].ngram}"
    if len(points) > MOST_SIZES:
        return ngram
    windows = ", ".join(dict.fromkeys(str(point.window) for point in points))
    guesses = {point.guesses for point in points}
    if all(point.guesses == point.window for point in points):
        return f"{ngram}, W = G = {windows}"
    return f"{ngram}, G = {guesses.pop()}, W = {windows}" if len(guesses) == 1 else ngram


def _law_curve(points: Sequence[SweepPoint], law: Law) -> tuple[list[float], list[float]] | None:
    """Rows and S of the law between the points with G = W, whose rows tell how G becomes rows; None without any."""
    tied = sorted((point for point in points if point.window == point.guesses > 0), key=lambda point: point.guesses)
    if not tied:
        return None
    logs = np.log2([point.guesses for point in tied])
    dense = np.linspace(logs[0], logs[-1], 60)
    rows = np.exp2(np.interp(dense, logs, np.log2([point.rows for point in tied])))
    return rows.tolist(), [law.compression(tied[0].ngram - 1, 2.0**log) for log in dense.tolist()]


def _rows_axis(axes: Axes, rows: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    first, last = min(rows) / 1.2, max(rows) * 1.25
    if last < 4 * first:
        # So few rows may lie between two powers of two.
        first, last = 2.0 ** math.floor(math.log2(first)), 2.0 ** math.ceil(math.log2(last))
    axes.set_xlim(first, last)
    _plain_numbers(axes.xaxis)
    axes.set_xlabel("rows a step")


def _plain_numbers(axis: Axis) -> None:
    """Powers of two as numbers, which more readers know by heart than their exponents."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    axis.set_major_locator(LogLocator(base=2))
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.minorticks_off()

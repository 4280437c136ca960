"""Speed-ups by class, as the picture of --plot.

matplotlib is an extra, so it is imported where a picture is made; only its Figure objects are used, which leave its
own state alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from lacli.bench.oracle import Ceilings
from lacli.bench.results import Result, overall
from lacli.errors import LacliError, UsageError, reason_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""File types, and what matplotlib would write into the file that changes without the picture."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#000000")
"""Okabe and Ito's palette, which readers with any colour vision tell apart."""

QUIET = "#777777"
"""Reference lines and their words."""

WIDTH = 7.0
"""Inches of a panel."""

BAR = 0.21
"""Inches that a bar takes."""

LETTERS = 13
"""Letters of a caption in an inch."""

LEGEND_LINE = 15
"""Points that a line of a legend takes."""

DOTS_PER_INCH = 150

MOST_BY_CLASS = 5
"""Contenders that are told apart by colour."""

CEILING = "D"
MOST_BESIDE = 3
"""Times the longest bar that the axis of speed-ups reaches at most."""


@dataclass(frozen=True)
class Speedup:
    """How many times as fast as plain decoding a contender was. `group`: its class. `low`, `high`: the 95% interval."""

    group: str
    name: str
    ratio: float
    low: float | None = None
    high: float | None = None
    ceiling: float | None = None


def speedups(found: Sequence[Result], ceilings: Ceilings | None = None) -> list[Speedup]:
    """The speed-up of everyone but plain decoding, class by class; of a sweep's many only over all classes."""

    def one(result: Result, group: str, name: str) -> Speedup:
        ratio, ceiling = result.speedup, (ceilings or {}).get((result.number, result.kind))
        return Speedup(group, name, ratio.value, ratio.low, ratio.high, ceiling.ratio.value if ceiling else None)

    guessing = [result for result in found if result.by.mode != "plain"]
    if len({result.number for result in guessing}) <= MOST_BY_CLASS:
        return [one(result, result.kind, result.by.label) for result in guessing]
    return [one(each, each.by.label, f"prompts: {each.kind}") for each in overall(guessing)]


def save(path: Path, bars: Sequence[Speedup], title: str, caption: str) -> None:
    """Write the picture; the file's ending says which type. Raises what `check_plot_path` raises."""
    check_plot_path(path)
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    height = draw_speedups(figure.add_subplot(), bars)
    finish(figure, WIDTH, height, title, caption)
    write(path, figure)


def finish(figure: Figure, width: float, height: float, title: str, caption: str) -> None:
    """Put a title above and a caption below the panels. `width`, `height`: of the panels, in inches."""
    if title:
        figure.suptitle(title, fontsize=14, fontweight="bold", parse_math=False)
    lines = wrap(caption, int(LETTERS * width))
    if lines:
        figure.supxlabel("\n".join(lines), fontsize=9, color="#555555", parse_math=False)
    figure.set_size_inches(width, height + 0.5 * bool(title) + 0.2 * len(lines))


def write(path: Path, figure: Figure) -> None:
    """Write a figure. Raises LacliError where the file cannot be written."""
    try:
        with warnings.catch_warnings():
            # A class of a user's own prompts may be named in letters that the font lacks.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(path, dpi=DOTS_PER_INCH, metadata=ENDINGS[path.suffix.lower()])
    except OSError as error:
        raise LacliError(f"cannot write {path}: {reason_of(error)}", "name another file") from error


def draw_speedups(axes: Axes, bars: Sequence[Speedup]) -> float:
    """Draw a group of horizontal bars a class, a colour a mode, and a line at plain's speed; returns inches needed."""
    groups = list(dict.fromkeys(each.group for each in bars))
    names = list(dict.fromkeys(each.name for each in bars))
    thickness = 0.84 / len(names)
    limit = _limit(bars)
    for index, name in enumerate(names):
        own = [each for each in bars if each.name == name]
        places = [groups.index(each.group) + (index - (len(names) - 1) / 2) * thickness for each in own]
        ratios = [each.ratio for each in own]
        axes.barh(places, ratios, thickness * 0.92, color=COLORS[index % len(COLORS)], label=name)
        for place, each in zip(places, own, strict=True):
            _draw_interval(axes, place, each, limit)
            if each.ceiling:
                # An arrow where it is out of the picture.
                marker = CEILING if each.ceiling < limit else ">"
                axes.plot(min(each.ceiling, limit), place, color=QUIET, marker=marker, clip_on=False)
    axes.axvline(1, color="black", linewidth=1, label="plain decoding")
    if any(each.ceiling for each in bars):
        axes.plot([], [], color=QUIET, marker=CEILING, linestyle="none", label="ceiling")
    axes.set_yticks(range(len(groups)), groups, parse_math=False)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlim(0, limit)
    axes.set_xlabel("times as fast as plain decoding")
    finish_panel(axes, "Speed-up over plain decoding, by class", columns=4)
    axes.grid(visible=False, axis="y")
    return max(2.8, 1.6 + BAR * len(groups) * (len(names) + 0.6))


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


def check_plot_path(path: Path) -> None:
    """Raise now what would keep a picture from being written there after a long measurement.

    UsageError for a file type that is none of ENDINGS, LacliError where matplotlib is missing or the file cannot be
    written. Leaves no file behind that was not there.
    """
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"cannot write {path.name!r}", "name a file that ends in " + ", ".join(ENDINGS))
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise LacliError("pictures need matplotlib", "in lacli's folder: pip install '.[plot]'") from error
    try:
        existed = path.exists()
        path.open("ab").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise LacliError(f"cannot write {path}: {reason_of(error)}", "name another file") from error


def _limit(bars: Sequence[Speedup]) -> float:
    """Where the axis ends: the bars should be seen beside a wide interval or a ceiling that is far away."""
    highest = max(1.0, *(each.ratio for each in bars))
    reached = max(1.0, *(max(each.high or each.ratio, each.ceiling or 0.0) for each in bars))
    return 1.1 * min(reached, MOST_BESIDE * highest)


def _draw_interval(axes: Axes, place: float, bar: Speedup, limit: float) -> None:
    low, high = bar.low or bar.ratio, min(bar.high or bar.ratio, limit / 1.1)
    if low < high:
        axes.errorbar(bar.ratio, place, xerr=[[bar.ratio - low], [high - bar.ratio]], color="black",
                      linewidth=1, capsize=2)  # fmt: skip
    axes.annotate(f"{bar.ratio:.2f}", (high, place), xytext=(4, 0), textcoords="offset points", va="center",
                  fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip

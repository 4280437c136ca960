"""The panel of an attention mask: which row of a step sees which, as in the paper's Figure 2 (b)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lacli.cli.mask import Mask, Row
from lacli.engine import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Color = tuple[float, float, float]

INPUT, CANDIDATE, UNSEEN = "#0072B2", "#56B4E9", "#f2f2f2"
WINDOW = ("#fdd0a2", "#8c2d04")
"""The window's first and last row; those between are mixed from them."""

SQUARE = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])

MOST_DRAWN = 300
"""Rows of a picture whose cells are still told apart."""

MOST_NAMED = 42
"""Rows up to which each has its position written beside it."""

MOST_VECTORS = 256
"""Rows up to which a vector format holds each cell as a shape."""

MOST_ENTRIES = 6
"""Window rows up to which the legend names each."""


def mask_picture(axes: Axes, mask: Mask) -> float:
    """Rows see columns: a cell has the colour of what is seen there. Dots at the right: rows whose logits are wanted.

    The numbers are positions after the input's, as the paper writes them on the tokens, or where there are too many
    rows for that, rows.
    """
    from matplotlib.collections import PolyCollection

    rows = len(mask.rows)
    colors = np.array([_color(row, mask.settings.ngram) for row in mask.rows])
    seen = np.argwhere(mask.visible)
    squares = SQUARE[None, :, :] + seen[:, None, ::-1]
    axes.set_facecolor(UNSEEN)
    axes.add_collection(
        PolyCollection(list(squares), facecolors=colors[seen[:, 1]], edgecolors="none", rasterized=rows > MOST_VECTORS)
    )
    if rows <= MOST_VECTORS:
        axes.hlines(range(rows + 1), 0, rows, color="white", linewidth=0.5)
        axes.vlines(range(rows + 1), 0, rows, color="white", linewidth=0.5)
    wanted = [row.index + 0.5 for row in mask.rows if row.logits]
    axes.plot([rows + 0.6] * len(wanted), wanted, ".", color="black", markersize=_dot_size(rows), clip_on=False)
    axes.set(xlim=(0, rows), ylim=(rows, 0), aspect="equal")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("a row sees the columns that are coloured in it")
    axes.set_ylabel("position after the input's" if rows <= MOST_NAMED else f"row, in the {mask.order}'s order")
    _name_rows(axes, mask, colors)
    settings = mask.settings
    axes.set_title(f"Who sees whom: W = {settings.window}, N = {settings.ngram}, G = {settings.guesses}", pad=12)
    _legend(axes, mask)
    return 7.6


def _name_rows(axes: Axes, mask: Mask, colors: Floats) -> None:
    rows = len(mask.rows)
    if rows > MOST_NAMED:
        step = next(step for step in (10, 50, 100, 250) if rows <= 20 * step)
        numbers = list(range(0, rows, step))
        axes.set_xticks([number + 0.5 for number in numbers], [str(number) for number in numbers], fontsize=8)
        axes.set_yticks([number + 0.5 for number in numbers], [str(number) for number in numbers], fontsize=8)
        return
    places = [row.index + 0.5 for row in mask.rows]
    names = [str(row.position) for row in mask.rows]
    axes.set_xticks(places, names)
    axes.set_yticks(places, names)
    for label, color in zip([*axes.get_xticklabels(), *axes.get_yticklabels()], [*colors, *colors], strict=True):
        label.set_bbox({"boxstyle": "round,pad=0.15", "facecolor": tuple(color), "edgecolor": "none"})
        label.set(color="white" if color.mean() < 0.5 else "black", fontsize=8)


def _legend(axes: Axes, mask: Mask) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ngram, kinds = mask.settings.ngram, {row.kind for row in mask.rows}
    entries: list[Patch | Line2D] = [Patch(color=INPUT, label="input")]
    if "V" in kinds:
        entries.append(Patch(color=CANDIDATE, label="candidates"))
    window_rows = sorted({row.window_row for row in mask.rows if row.window_row is not None})
    if len(window_rows) > MOST_ENTRIES:
        window_rows = [window_rows[0], window_rows[-1]]
    entries += [Patch(color=_window_color(row, ngram), label=f"window row {row}") for row in window_rows]
    entries.append(Line2D([], [], marker=".", linestyle="none", color="black", label="logits wanted"))
    axes.legend(handles=entries, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=4, frameon=False, fontsize=9)


def _color(row: Row, ngram: int) -> Color:
    match row.kind:
        case "I":
            return _rgb(INPUT)
        case "V":
            return _rgb(CANDIDATE)
        case "L":
            return _window_color(row.window_row or 0, ngram)


def _window_color(row: int, ngram: int) -> Color:
    share = row / max(ngram - 2, 1)
    red, green, blue = (
        (1 - share) * first + share * last for first, last in zip(_rgb(WINDOW[0]), _rgb(WINDOW[1]), strict=True)
    )
    return red, green, blue


def _rgb(name: str) -> Color:
    """#rrggbb as three shares."""
    red, green, blue = bytes.fromhex(name[1:])
    return red / 255, green / 255, blue / 255


def _dot_size(rows: int) -> float:
    return min(6.0, max(1.0, 240 / rows))

"""One figure of one to four panels, and the file it goes into."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from lacli.errors import LacliError, UsageError, reason_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panel = Callable[["Axes"], float]
"""Draws on axes and returns the height that it needs, in inches."""

MOST_PANELS = 4

ENDINGS = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""File types, and what matplotlib would write into the file that changes without the picture."""

WIDTH = 7.0
"""Inches of a panel."""

LETTERS = 13
"""Letters of a caption in an inch."""

DOTS_PER_INCH = 150


def save(path: Path, panels: Sequence[Panel], *, title: str = "", caption: str = "") -> None:
    """Write a picture of one to four panels; the file's ending says which type.

    caption: machine and model, below. Raises what `check_plot_path` raises.
    """
    check_plot_path(path)
    write(path, figure(panels, title=title, caption=caption))


def figure(panels: Sequence[Panel], *, title: str = "", caption: str = "") -> Figure:
    """The picture itself: two panels side by side; of three the highest stands beside the others, four are a square."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    assert 1 <= len(panels) <= MOST_PANELS, "a figure has one to four panels"
    drawn = Figure(layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    axes = [drawn.add_subplot() for _ in panels]
    heights = [panel(each) for panel, each in zip(panels, axes, strict=True)]
    places = _places(heights)
    rows, columns = (1 + max(place[axis].stop - 1 for place in places) for axis in (0, 1))
    needed = [
        max(heights[i] for i, place in enumerate(places) if place[0] == slice(row, row + 1)) for row in range(rows)
    ]
    grid = drawn.add_gridspec(rows, columns, height_ratios=needed)
    for each, place in zip(axes, places, strict=True):
        each.set_subplotspec(grid[place])
    finish(drawn, WIDTH * columns, max(sum(needed), *heights), title, caption)
    return drawn


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
            # A model may be named in letters that the font lacks.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(path, dpi=DOTS_PER_INCH, metadata=ENDINGS[path.suffix.lower()])
    except OSError as error:
        raise LacliError(f"cannot write {path}: {reason_of(error)}", "name another file") from error


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
        raise LacliError("pictures need matplotlib", "in lacli's folder: pip install '.[test]'") from error
    try:
        existed = path.exists()
        path.open("ab").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise LacliError(f"cannot write {path}: {reason_of(error)}", "name another file") from error


def _places(heights: Sequence[float]) -> list[tuple[slice, slice]]:
    """The rows and columns of the grid that each panel takes."""
    first, second, both = slice(0, 1), slice(1, 2), slice(0, 2)
    match len(heights):
        case 1 | 2:
            return [(first, first), (first, second)][: len(heights)]
        case 3:
            highest = heights.index(max(heights))
            places = [(first, second), (second, second)]
            places.insert(highest, (both, first))
            return places
        case _:
            return [(first, first), (first, second), (second, first), (second, second)]

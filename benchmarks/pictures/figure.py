"""One figure of one to four panels, and the file it goes into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lacli.bench.plot import WIDTH, check_plot_path, finish, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panel = Callable[["Axes"], float]
"""Draws on axes and returns the height that it needs, in inches."""

MOST_PANELS = 4


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

"""What matplotlib's axes show, read back as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    assert found
    return [text.get_text() for text in found.get_texts()]


def points_of(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The lines of a picture by their name in the legend."""
    return {str(line.get_label()): [(x, y) for x, y in places(line)] for line in axes.get_lines()}


def places(line: Line2D) -> npt.NDArray[np.float64]:
    """(points, 2)."""
    return np.asarray(line.get_xydata(), np.float64)

"""Pictures in files, drawn with matplotlib: what is to be drawn, the panels, and the file.

Records in, a file out: nothing is measured here, and charts in the terminal are `charts.py`. matplotlib is an extra,
so it is imported where a picture is made, and only its Figure objects are used, which leave its own state alone.
"""

from lacli.plots.figure import (
    Panel,
    check_plot_path,
    has_matplotlib,
    save,
)
from lacli.plots.mask import mask_picture
from lacli.plots.panels import (
    CompressionPoint,
    Speedup,
    Staircase,
    compression,
    speedups,
    stairs,
)

__all__ = [
    "CompressionPoint",
    "Panel",
    "Speedup",
    "Staircase",
    "check_plot_path",
    "compression",
    "has_matplotlib",
    "mask_picture",
    "save",
    "speedups",
    "stairs",
]

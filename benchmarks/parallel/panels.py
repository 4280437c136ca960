"""The pictures of several devices: speed by their number, and by the latency between them.

Plain numbers in, axes drawn; `simulate_lp.py` has the numbers, `pictures/figure.py` makes the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.pictures.panels import COLORS, HEIGHT, MARKERS, QUIET, finish_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER_POINTS = ((1, 1.78, "paper, 7B on MT-Bench"), (8, 4.0, "paper, the most it says (ClassEval)"))
"""Devices and speed-up that the paper's text gives for Figure 6."""


def by_number(axes: Axes, devices: Sequence[int], lines: Mapping[str, Sequence[float]], auto: Sequence[float]) -> float:
    """A line for each W/N/G and for mode auto, and what the paper says."""
    for index, (name, speeds) in enumerate(lines.items()):
        axes.plot(devices, speeds, color=COLORS[index % len(COLORS)], marker=MARKERS[index % len(MARKERS)], label=name)
    axes.plot(devices, auto, color="black", marker=".", label="auto")
    for (number, speed, words), marker in zip(PAPER_POINTS, "x*", strict=True):
        axes.plot(number, speed, color="black", marker=marker, markersize=9, linestyle="none", label=words)
    axes.axhline(1, color=QUIET, linestyle=":", label="plain decoding, one device")
    axes.set_xticks(devices)
    axes.set_xlabel("devices in one machine")
    axes.set_ylim(bottom=0)
    _finish(axes, "By number of devices")
    return HEIGHT


def by_latency(
    axes: Axes,
    devices: Sequence[int],
    shown: Sequence[int],
    alone: float,
    over: Mapping[str, Mapping[float, Sequence[float]]],
) -> float:
    """The best lookahead by milliseconds there and back: a colour for each number of devices, dashes by what travels.

    shown: which of the devices. over: speeds for each number of devices, by what travels and seconds.
    """
    for (travels, rows), dashes in zip(over.items(), ("-", "--"), strict=True):
        across = [1e3 * latency for latency in rows]
        for index, number in enumerate(number for number in shown if number > 1):
            speeds = [each[devices.index(number)] for each in rows.values()]
            axes.plot(across, speeds, color=COLORS[index], linestyle=dashes, marker=".", label=f"{number}, {travels}")
    axes.axhline(alone, color=QUIET, label="one device")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("milliseconds there and back")
    _finish(axes, "By latency, the best lookahead")
    return HEIGHT


def _finish(axes: Axes, title: str) -> None:
    axes.set_ylabel("times as fast as plain decoding")
    finish_panel(axes, title, columns=2)

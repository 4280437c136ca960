"""Pictures: what a figure holds, the file it becomes, and what is said where it cannot be made."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from lacli.cli.mask import mask_of
from lacli.errors import LacliError, UsageError
from lacli.law import Law
from lacli.plots import (
    CompressionPoint,
    Panel,
    Speedup,
    Staircase,
    check_plot_path,
    compression,
    mask_picture,
    save,
    speedups,
    stairs,
)
from lacli.plots.figure import figure
from lacli.settings import DecodeSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

LAW = Law(0.425, 3.106)
SWEEP = [
    CompressionPoint(size, ngram, size, 2.0 * size * (ngram - 1), LAW.compression(ngram - 1, size))
    for ngram in (3, 5)
    for size in (1, 4, 16)
]
RESULTS = [
    Speedup(name, mode, 1.0 + number / 4, 0.9 + number / 4, 1.2 + number / 4)
    for number, (name, mode) in enumerate((name, mode) for name in ("chat", "a $class$") for mode in ("lookup", "auto"))
]
CPU = Staircase("200 tokens", [(1, 1), (4, 3.0), (16, 9.0), (64, 27.0)])
GPU = Staircase("3,000 tokens", [(1, 1), (4, 1.0), (16, 1.1), (64, 1.3)])
MASK = mask_of(DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=2))


@pytest.fixture
def axes() -> Axes:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    return Figure().add_subplot()


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


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


def drawn(panels: Sequence[Panel], **words: str) -> Figure:
    pytest.importorskip("matplotlib")
    made = figure(panels, **words)
    made.draw_without_rendering()
    return made


def test_compression_has_a_line_per_n_and_the_law_goes_through_its_points(axes: Axes) -> None:
    compression(axes, SWEEP, LAW)
    measured = {"N = 3, W = G = 1, 4, 16": SWEEP[:3], "N = 5, W = G = 1, 4, 16": SWEEP[3:]}
    lines = points_of(axes)
    for name, points in measured.items():
        assert lines[name] == [(point.rows, point.compression) for point in points]
    assert legend(axes) == [*measured, "plain decoding", "the law, α = 0.425, f = 3.106"]
    curves = [line for line in axes.get_lines() if line.get_linestyle() == "--" and len(places(line))]
    assert len(curves) == len(measured)
    for curve, points in zip(curves, measured.values(), strict=True):
        across, up = places(curve).T
        for point in points:
            assert np.interp(np.log2(point.rows), np.log2(across), up) == pytest.approx(point.compression, abs=0.005)
    by_name = {line.get_label(): line.get_linestyle() for line in axes.get_lines()}
    assert {by_name[name] for name in measured} == {"None"}
    assert axes.get_xscale() == "log"


def test_without_a_law_points_are_joined_and_no_law_is_named(axes: Axes) -> None:
    compression(axes, SWEEP)
    assert [line.get_linestyle() for line in axes.get_lines()] == ["-", "-", ":"]
    assert not any("law" in name for name in legend(axes))


def test_the_law_is_drawn_for_g_equal_to_w_only(axes: Axes) -> None:
    compression(axes, [CompressionPoint(window, 5, 15, 60 + 4 * window, 2.0) for window in (1, 5)], LAW)
    assert not any(line.get_linestyle() == "--" and len(places(line)) for line in axes.get_lines())
    assert legend(axes) == ["N = 5, G = 15, W = 1, 5", "plain decoding"]


@pytest.mark.parametrize("rows", [(45.0,), (66.0, 70.0), (3.0, 300.0)])
def test_the_rows_axis_always_has_numbers(axes: Axes, rows: tuple[float, ...]) -> None:
    compression(axes, [CompressionPoint(15, 5, 15, each, 2.0) for each in rows])
    low, high = axes.get_xlim()
    named = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert len(named) >= 2
    assert all(tick == 2 ** round(np.log2(tick)) for tick in named)


def test_speedups_are_a_bar_a_mode_and_class_with_their_numbers(axes: Axes) -> None:
    from matplotlib.container import BarContainer, ErrorbarContainer

    speedups(axes, RESULTS)
    bars = [container for container in axes.containers if isinstance(container, BarContainer)]
    assert [[bar.get_width() for bar in container] for container in bars] == [[1.0, 1.5], [1.25, 1.75]]
    assert len([each for each in axes.containers if isinstance(each, ErrorbarContainer)]) == len(RESULTS)
    assert legend(axes) == ["plain decoding", "lookup", "auto"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["chat", "a $class$"]
    assert sorted(text.get_text() for text in axes.texts) == ["1.00", "1.25", "1.50", "1.75"]
    assert points_of(axes)["plain decoding"] == [(1, 0), (1, 1)]
    assert axes.get_xlim()[1] > max(result.high or 0 for result in RESULTS)


def test_speedups_without_intervals_have_none(axes: Axes) -> None:
    speedups(axes, [Speedup("chat", "lookup", 1.5)])
    assert len(axes.containers) == 1


def test_ceilings_are_marked_and_what_is_far_away_does_not_make_the_bars_small(axes: Axes) -> None:
    near, far = Speedup("a", "auto", 1.2, ceiling=2.3), Speedup("b", "auto", 1.5, 0.1, 900.0, ceiling=80.0)
    speedups(axes, [near, Speedup("a", "lookup", 0.9), far])
    limit = axes.get_xlim()[1]
    marks = [(line.get_marker(), place[0]) for line in axes.get_lines() for place in places(line)]
    assert ("D", 2.3) in marks and (">", limit) in marks and "ceiling" in legend(axes)
    assert 2.3 < limit < 10


def test_bars_of_a_class_do_not_overlap(axes: Axes) -> None:
    speedups(axes, RESULTS)
    boxes = sorted(
        (box.y0, box.y1) for box in (bar.get_path().get_extents(bar.get_patch_transform()) for bar in axes.patches)
    )
    assert len(boxes) == 4
    assert all(end <= start for (_, end), (start, _) in zip(boxes, boxes[1:], strict=False))


@pytest.mark.parametrize(("staircases", "scale"), [([CPU, GPU], "log"), ([GPU], "linear")])
def test_stairs_have_a_line_a_context_and_what_to_compare_with(
    axes: Axes, staircases: list[Staircase], scale: str
) -> None:
    stairs(axes, staircases)
    lines = points_of(axes)
    for staircase in staircases:
        assert lines[staircase.label] == list(staircase.points)
    assert all(across == pytest.approx(up) for across, up in lines["as dear as b steps of one row"])
    assert [up for _, up in lines["rows are free"]] == [1, 1]
    assert axes.get_yscale() == scale
    assert axes.get_ylim()[1] > max(cost for staircase in staircases for _, cost in staircase.points)


def test_the_mask_has_a_square_where_a_row_sees_another(axes: Axes) -> None:
    from matplotlib.collections import PolyCollection

    mask_picture(axes, MASK)
    (squares,) = (each for each in axes.collections if isinstance(each, PolyCollection))
    seen = np.zeros_like(MASK.visible)
    for path in squares.get_paths():
        left, top = np.asarray(path.vertices).min(axis=0).astype(int)
        seen[top, left] = True
    assert (seen == MASK.visible).all()
    assert [label.get_text() for label in axes.get_yticklabels()] == [str(row.position) for row in MASK.rows]
    dots = places(axes.get_lines()[0])
    assert [int(row) for _, row in dots] == [row.index for row in MASK.rows if row.logits]
    names = ["input", "candidates", "window row 0", "window row 1", "window row 2", "logits wanted"]
    assert legend(axes) == names


@pytest.mark.parametrize("sizes", [(0, 2, 0), (0, 3, 2), (4, 2, 0), (15, 5, 15), (60, 6, 10), (3, 9, 3)])
def test_masks_of_any_size_can_be_drawn(sizes: tuple[int, int, int]) -> None:
    window, ngram, guesses = sizes
    mask = mask_of(DecodeSettings(mode="lookahead", window=window, ngram=ngram, guesses=guesses))
    (axes,) = drawn([partial(mask_picture, mask=mask)]).axes
    assert ("candidates" in legend(axes)) == (guesses > 0)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_nothing_in_a_figure_overlaps_or_is_cut_off(count: int) -> None:
    panels: list[Panel] = [
        partial(speedups, results=RESULTS * 4),
        partial(compression, points=SWEEP, law=LAW),
        partial(stairs, staircases=[CPU, GPU]),
        partial(mask_picture, mask=MASK),
    ]
    made = drawn(panels[:count], title="lacli bench", caption="a machine, " * 30)
    whole = made.bbox
    boxes = [axes.get_tightbbox() for axes in made.axes]
    assert len(boxes) == count and all(boxes)
    words = [text.get_window_extent() for text in made.texts]
    for number, box in enumerate(found := [box for box in (*boxes, *words) if box]):
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
        assert not any(box.overlaps(other) for other in found[:number])
    for axes in made.axes:
        key = axes.get_legend()
        assert key and not key.get_window_extent().overlaps(axes.get_window_extent())


@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG\r\n\x1a\n"), ("a.SVG", b"<?xml"), ("a.pdf", b"%PDF-")])
def test_the_ending_decides_the_type(tmp_path: Path, name: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    save(tmp_path / name, [partial(stairs, staircases=[CPU])], title="lacli cost", caption="$100 and 語")
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_a_picture_changes_nothing_of_matplotlibs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    before = matplotlib.rcParams.copy()
    save(tmp_path / "a.png", [partial(stairs, staircases=[CPU])])
    assert "matplotlib.pyplot" not in sys.modules
    assert matplotlib.rcParams.copy() == before


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, no_matplotlib: None) -> None:
    for attempt in (partial(check_plot_path, tmp_path / "a.png"), partial(save, tmp_path / "a.png", [])):
        with pytest.raises(LacliError, match="--plot needs matplotlib") as caught:
            attempt()
        assert "pip install 'lacli[plot]'" in caught.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.jpg", "a", "png", ".png"])
def test_other_file_types_are_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
        check_plot_path(tmp_path / name)


def test_a_path_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    check_plot_path(tmp_path / "new.png")
    assert not list(tmp_path.iterdir())
    old = tmp_path / "old.png"
    old.write_bytes(b"old")
    check_plot_path(old)
    assert old.read_bytes() == b"old"


def test_a_path_that_cannot_be_written_is_known_before_anything_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing" / "a.png", tmp_path / "folder.png", tmp_path / "file" / "a.png"):
        with pytest.raises(LacliError, match="cannot write"):
            check_plot_path(path)
    with pytest.raises(LacliError, match="cannot write"):
        check_plot_path(tmp_path / f"{'a' * 300}.png")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    full = tmp_path / "full.png"
    full.symlink_to("/dev/full")
    with pytest.raises(LacliError, match="No space left"):
        save(full, [partial(stairs, staircases=[CPU])])

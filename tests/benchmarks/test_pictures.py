"""Pictures of sweeps, costs and masks: what the panels hold, and the commands that draw them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.insight.law import Law, SweepPoint
from benchmarks.pictures.__main__ import app
from benchmarks.pictures.figure import Panel, check_plot_path, figure, save
from benchmarks.pictures.mask import mask_picture
from benchmarks.pictures.panels import Staircase, compression, stairs
from lacli.cli.mask import mask_of
from lacli.errors import LacliError, UsageError
from lacli.settings import DecodeSettings
from tests.fakes.pictures import legend, places, points_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAW = Law(0.425, 3.106)
SWEEP = [
    SweepPoint(size, ngram, size, 2.0 * size * (ngram - 1), LAW.compression(ngram - 1, size))
    for ngram in (3, 5)
    for size in (1, 4, 16)
]
CPU = Staircase("200 tokens", [(1, 1), (4, 3.0), (16, 9.0), (64, 27.0)])
GPU = Staircase("3,000 tokens", [(1, 1), (4, 1.0), (16, 1.1), (64, 1.3)])
MASK = mask_of(DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=2))


@pytest.fixture
def axes() -> Axes:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    return Figure().add_subplot()


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


def test_the_law_is_drawn_for_g_equal_to_w_only(axes: Axes) -> None:
    compression(axes, [SweepPoint(window, 5, 15, 60 + 4 * window, 2.0) for window in (1, 5)], LAW)
    assert not any(line.get_linestyle() == "--" and len(places(line)) for line in axes.get_lines())
    assert legend(axes) == ["N = 5, G = 15, W = 1, 5", "plain decoding"]


@pytest.mark.parametrize("rows", [(45.0,), (66.0, 70.0), (3.0, 300.0)])
def test_the_rows_axis_always_has_numbers(axes: Axes, rows: tuple[float, ...]) -> None:
    compression(axes, [SweepPoint(15, 5, 15, each, 2.0) for each in rows])
    low, high = axes.get_xlim()
    named = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert len(named) >= 2
    assert all(tick == 2 ** round(np.log2(tick)) for tick in named)


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
        partial(stairs, staircases=[GPU]),
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


def draw(*arguments: object, stdin: str = "") -> None:
    done = CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)
    if done.exception:
        raise done.exception


def test_a_sweep_and_costs_are_drawn_from_what_lacli_prints(tmp_path: Path) -> None:
    row = {"class": "own", "mode": "lookahead", "model_type": "toy", "gpu_info": "", "cpu_info": "a processor"}
    rows = [
        {**row, "window": each.window, "ngram": each.ngram, "guesses": each.guesses, "rows_per_step": each.rows,
         "tokens_per_step": each.compression}
        for each in SWEEP
    ]  # fmt: skip
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    draw("sweep", tmp_path / "sweep.svg", tmp_path / "rows.json")
    stair = {"context": 64, "rows": [1, 4, 16], "relative": [1.0, 1.2, 3.0]}
    cost = {"staircases": [stair], "description": "toy", "devices": "CPU"}
    draw("cost", tmp_path / "cost.svg", stdin=json.dumps(cost))
    draw("mask", tmp_path / "mask.svg", "-W", "5", "-N", "4", "-G", "2", "--order", "paper")
    for name in ("sweep", "cost", "mask"):
        assert (tmp_path / f"{name}.svg").read_bytes().startswith(b"<?xml")


def test_what_cannot_be_drawn_is_one_error(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    for command in ("sweep", "cost"):
        for given in ("[1, 2]", "{}", "no json"):
            with pytest.raises(LacliError):
                draw(command, picture, stdin=given)
    with pytest.raises(UsageError, match="720 rows cannot be read"):
        draw("mask", picture, "-W", "60", "-N", "7", "-G", "60")
    with pytest.raises(UsageError, match="cannot write 'a.doc'"):
        draw("mask", tmp_path / "a.doc", "-W", "5")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG\r\n\x1a\n"), ("a.SVG", b"<?xml"), ("a.pdf", b"%PDF-")])
def test_the_ending_decides_the_type(tmp_path: Path, name: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    save(tmp_path / name, [partial(stairs, staircases=[GPU])], title="lacli cost", caption="$100 and 語")
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, no_matplotlib: None) -> None:
    with pytest.raises(LacliError, match="pictures need matplotlib") as caught:
        check_plot_path(tmp_path / "a.png")
    assert "pip install '.[test]'" in caught.value.hint


@pytest.mark.parametrize("name", ["a.jpg", "a", "png", ".png"])
def test_other_file_types_are_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
        check_plot_path(tmp_path / name)


def test_a_path_that_cannot_be_written_is_known_before_anything_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    check_plot_path(tmp_path / "new.png")
    assert not list(tmp_path.iterdir())
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing" / "a.png", tmp_path / "folder.png", tmp_path / "file" / "a.png"):
        with pytest.raises(LacliError, match="cannot write"):
            check_plot_path(path)

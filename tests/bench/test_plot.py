"""The picture of speed-ups, and what is said where the file cannot be made."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lacli.bench.plot import Speedup, check_plot_path, draw_speedups, save, speedups
from lacli.errors import LacliError, UsageError
from tests.fakes.bench_field import LOOKAHEAD, LOOKUP, PLAIN, free, run
from tests.fakes.clock import FakeClock
from tests.fakes.pictures import legend, places, points_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = [
    Speedup(name, mode, 1.0 + number / 4, 0.9 + number / 4, 1.2 + number / 4)
    for number, (name, mode) in enumerate((name, mode) for name in ("chat", "a $class$") for mode in ("lookup", "auto"))
]


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


def test_a_bar_is_a_mode_in_a_class_and_of_many_settings_only_the_total_is_shown(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKUP, LOOKAHEAD)
    bars = speedups(found)
    assert [(bar.group, bar.name) for bar in bars] == [
        (kind, label) for kind in ("code", "edit", "all") for label in ("lookup", "lookahead W=3 N=3 G=2")
    ]
    many = [replace(LOOKAHEAD, window=window) for window in range(6)]
    rounds, found = run(clock, free, PLAIN, *many)
    bars = speedups(found)
    assert {bar.name for bar in bars} == {"prompts: all"} and len(bars) == 6
    assert [bar.ratio for bar in bars] == [result.speedup.value for result in found[-6:]]


def test_speedups_are_a_bar_a_mode_and_class_with_their_numbers(axes: Axes) -> None:
    from matplotlib.container import BarContainer, ErrorbarContainer

    draw_speedups(axes, RESULTS)
    bars = [container for container in axes.containers if isinstance(container, BarContainer)]
    assert [[bar.get_width() for bar in container] for container in bars] == [[1.0, 1.5], [1.25, 1.75]]
    assert len([each for each in axes.containers if isinstance(each, ErrorbarContainer)]) == len(RESULTS)
    assert legend(axes) == ["plain decoding", "lookup", "auto"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["chat", "a $class$"]
    assert sorted(text.get_text() for text in axes.texts) == ["1.00", "1.25", "1.50", "1.75"]
    assert points_of(axes)["plain decoding"] == [(1, 0), (1, 1)]
    assert axes.get_xlim()[1] > max(result.high or 0 for result in RESULTS)


def test_speedups_without_intervals_have_none(axes: Axes) -> None:
    draw_speedups(axes, [Speedup("chat", "lookup", 1.5)])
    assert len(axes.containers) == 1


def test_ceilings_are_marked_and_what_is_far_away_does_not_make_the_bars_small(axes: Axes) -> None:
    near, far = Speedup("a", "auto", 1.2, ceiling=2.3), Speedup("b", "auto", 1.5, 0.1, 900.0, ceiling=80.0)
    draw_speedups(axes, [near, Speedup("a", "lookup", 0.9), far])
    limit = axes.get_xlim()[1]
    marks = [(line.get_marker(), place[0]) for line in axes.get_lines() for place in places(line)]
    assert ("D", 2.3) in marks and (">", limit) in marks and "ceiling" in legend(axes)
    assert 2.3 < limit < 10


def test_bars_of_a_class_do_not_overlap(axes: Axes) -> None:
    draw_speedups(axes, RESULTS)
    boxes = sorted(
        (box.y0, box.y1) for box in (bar.get_path().get_extents(bar.get_patch_transform()) for bar in axes.patches)
    )
    assert len(boxes) == 4
    assert all(end <= start for (_, end), (start, _) in zip(boxes, boxes[1:], strict=False))


@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG\r\n\x1a\n"), ("a.SVG", b"<?xml"), ("a.pdf", b"%PDF-")])
def test_the_ending_decides_the_type(tmp_path: Path, name: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    save(tmp_path / name, RESULTS, "lacli bench", "$100 and 語")
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_a_picture_changes_nothing_of_matplotlibs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    before = matplotlib.rcParams.copy()
    save(tmp_path / "a.png", RESULTS, "", "")
    assert "matplotlib.pyplot" not in sys.modules
    assert matplotlib.rcParams.copy() == before


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, no_matplotlib: None) -> None:
    for attempt in (partial(check_plot_path, tmp_path / "a.png"), partial(save, tmp_path / "a.png", RESULTS, "", "")):
        with pytest.raises(LacliError, match="pictures need matplotlib") as caught:
            attempt()
        assert "pip install '.[plot]'" in caught.value.hint
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
        save(full, RESULTS, "", "")

"""Charts in the terminal: every mark stands where its number says."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.terminal.charts import (
    MARKERS,
    Canvas,
    curve,
    drawable,
    histogram,
)


def labelled(series: dict[str, list[tuple[float, float]]], width: int = 80, height: int = 20) -> str:
    return curve(series, width=width, height=height, x_label="rows", y_label="S")


def test_a_histogram_counts_tokens_from_1() -> None:
    lines = histogram([10, 0, 5]).splitlines()
    assert [line.split()[0] for line in lines] == ["1", "3"], "none brought 2"
    assert [line.count("█") for line in lines] == [24, 12]
    assert histogram([]) == histogram([0, 0]) == ""


def test_a_curve_has_a_marker_a_point_and_a_legend() -> None:
    text = labelled({"short": [(1, 1), (2, 2), (4, 4)], "long": [(1, 3), (4, 8)]})
    *picture, legend = text.splitlines()
    assert legend == "● short   ○ long"
    assert "\n".join(picture).count("●") == 3
    assert "\n".join(picture).count("○") == 2


def test_doublings_are_spaced_evenly() -> None:
    lines = labelled({"t": [(1, 1), (2, 2), (4, 4), (8, 8)]}, height=24).splitlines()[:-1]
    places = [(row, column) for row, line in enumerate(lines) for column, sign in enumerate(line) if sign == "●"]
    for axis in (0, 1):
        ordered = sorted(place[axis] for place in places)
        gaps = [after - before for before, after in pairwise(ordered)]
        assert len(gaps) == 3 and max(gaps) - min(gaps) <= 1


def test_a_marker_stands_beside_the_tick_of_its_value() -> None:
    lines = labelled({"S": [(1, 3), (4, 8), (16, 25)]}).splitlines()
    (beside,) = (line for line in lines if line.strip().startswith("8 ┤"))
    assert "●" in beside
    numbers = next(line for line, rule in zip(lines[1:], lines, strict=False) if "└" in rule)
    assert [int(number) for number in numbers.split()] == [1, 2, 4, 8, 16]
    assert [line.split()[0] for line in lines if "┤" in line] == ["32", "16", "8", "4", "2", "1"]
    columns = [line.index("●") for line in lines[:-1] if "●" in line]
    assert columns == sorted(columns, reverse=True) and len(columns) == 3
    assert abs(beside.index("●") - numbers.index("4")) <= 1


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.lists(st.tuples(st.floats(0.5, 1e4), st.floats(1e-3, 1e4)), min_size=1, max_size=5),
        min_size=1,
        max_size=3,
    ),
    st.integers(30, 120),
    st.integers(9, 40),
)
def test_curves_fit_into_their_size(series: dict[str, list[tuple[float, float]]], width: int, height: int) -> None:
    text = labelled(series, width=width, height=height)
    lines = text.splitlines()
    assert len(lines) == height
    assert max(map(len, lines)) <= width + 4, "a number may stand out by half of its length"
    assert all(marker in text for marker, _ in zip(MARKERS, series, strict=False))


@pytest.mark.parametrize(
    ("encoding", "locale", "is_ascii"),
    [
        ("utf-8", {}, False),
        ("ascii", {}, True),
        ("utf-8", {"LANG": "C"}, True),
        ("utf-8", {"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ("utf-8", {"LANG": "C", "LC_CTYPE": "en_GB.UTF-8"}, False),
        ("utf-8", {"LANG": "en_GB.UTF-8", "LC_ALL": "POSIX"}, True),
        ("utf-8", {"LANG": "C.UTF-8"}, False),
    ],
)
def test_drawings_are_ascii_where_the_stream_or_the_locale_takes_no_others(
    encoding: str, locale: dict[str, str], is_ascii: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LANG", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    charts = [
        labelled({name: [(1, 1), (2, 5)] for name in "abcdefgh"}),
        histogram([3, 1]),
    ]
    for chart in charts:
        drawn = drawable(chart, encoding)
        assert (drawn.isascii(), drawn == chart) == (is_ascii, not is_ascii)
        assert list(map(len, drawn.splitlines())) == list(map(len, chart.splitlines()))
    assert len({drawable(marker, "ascii") for marker in MARKERS}) == len(MARKERS)


def test_words_that_the_stream_takes_stay_as_they_are() -> None:
    assert drawable("naïve", "latin-1") == "naïve"


def test_a_canvas_has_eight_dots_a_cell() -> None:
    canvas = Canvas(1, 1)
    for x in range(2):
        for y in range(4):
            canvas.dot(x, y)
    canvas.dot(2, 0)
    canvas.dot(0, -1)
    assert canvas.lines() == ["⣿"]
    corner = Canvas(2, 1)
    corner.line((0, 0), (3, 0))
    assert corner.lines() == ["⠉⠉"]

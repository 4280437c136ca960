"""Charts in the terminal: every mark stands where its number says."""

from __future__ import annotations

import pytest

from lacli.terminal.charts import drawable, histogram


def test_a_histogram_counts_tokens_from_1() -> None:
    lines = histogram([10, 0, 5]).splitlines()
    assert [line.split()[0] for line in lines] == ["1", "3"], "none brought 2"
    assert [line.count("█") for line in lines] == [24, 12]
    assert histogram([]) == histogram([0, 0]) == ""


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
    for chart in (histogram([3, 1]), "■ · ±"):
        drawn = drawable(chart, encoding)
        assert (drawn.isascii(), drawn == chart) == (is_ascii, not is_ascii)
        assert list(map(len, drawn.splitlines())) == list(map(len, chart.splitlines()))


def test_words_that_the_stream_takes_stay_as_they_are() -> None:
    assert drawable("naïve", "latin-1") == "naïve"

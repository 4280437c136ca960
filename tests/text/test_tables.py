"""Tables that Markdown reads and that line up in a terminal."""

from __future__ import annotations

from lacli.text.format import markdown


def test_columns_line_up_words_to_the_left_and_numbers_to_the_right() -> None:
    assert markdown(("mode", "S"), [("plain", "1"), ("x", "12.5")]).splitlines() == [
        "| mode  |    S |",
        "|-------|-----:|",
        "| plain |    1 |",
        "| x     | 12.5 |",
    ]


def test_bars_and_line_breaks_in_a_cell_do_not_break_the_table() -> None:
    table = markdown(("class",), [("a|b\nc",)])
    assert table.splitlines()[2:] == ["| a\\|b␊c |"]

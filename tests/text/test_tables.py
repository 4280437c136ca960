"""Tables that line up in a terminal: plain ones, and those that Markdown reads."""

from __future__ import annotations

from lacli.text.format import columns, markdown


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


def test_a_plain_table_is_a_line_a_row_whatever_its_cells_hold() -> None:
    rows = [("a[b]c", "1", "the last one"), ("d\x1b", "12.5", "x" * 300)]
    assert columns(("NAME", "S", ""), rows, right=(1,)) == [
        "NAME      S",
        "a[b]c     1  the last one",
        f"d␛     12.5  {'x' * 300}",
    ]


def test_the_last_column_of_a_plain_table_is_wrapped_to_fit_the_terminal() -> None:
    assert columns(("NAME", "WORDS"), [("a-long-name", "some words more")], width=24) == [
        "NAME         WORDS",
        "a-long-name  some words",
        "             more",
    ]

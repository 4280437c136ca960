"""Numbers with units, printable text, and tables that line up in Markdown and in a terminal."""

from __future__ import annotations

from lacli.text.format import age_in_words, align_columns, count_in_words, markdown, printable, size_in_words


def test_numbers_are_said_in_their_units() -> None:
    ages = {59: "just now", 60: "1 minute ago", 7300: "2 hours ago", 13 * 86400: "13 days ago"}
    assert {seconds: age_in_words(seconds) for seconds in ages} == ages
    sizes = {0: "0 kB", 1: "1 kB", 4_700_000: "4.7 MB", 358_339_936: "358 MB", 4_700_000_000: "4.7 GB"}
    assert {size: size_in_words(size) for size in sizes} == sizes
    assert [count_in_words(count) for count in (7_344_384, 630_139_776, 7_615_616_512)] == ["7.3M", "630M", "7.6B"]


def test_nothing_printable_controls_a_terminal() -> None:
    text = "".join(map(chr, range(0x100))) + "\u202e\udc80"
    assert all(char.isprintable() or char == "\xad" or char == "\xa0" for char in printable(text))
    assert printable("a\r\nb\tc\x1b", lines=True) == "a\nb\tc␛"


def test_columns_of_a_table_line_up_whatever_a_cell_holds() -> None:
    assert markdown(("mode", "S"), [("plain", "1"), ("a|b\n[i]", "12.5")]).splitlines() == [
        "| mode     |    S |",
        "|----------|-----:|",
        "| plain    |    1 |",
        "| a\\|b␊[i] | 12.5 |",
    ]
    rows = [("a[b]c", "1", "the last one"), ("d\x1b", "12.5", "x" * 300)]
    assert align_columns(("NAME", "S", ""), rows, right=(1,)) == [
        "NAME      S",
        "a[b]c     1  the last one",
        f"d␛     12.5  {'x' * 300}",
    ]
    assert align_columns(("NAME", "WORDS"), [("a-long-name", "some words more")], width=24) == [
        "NAME         WORDS",
        "a-long-name  some words",
        "             more",
    ]

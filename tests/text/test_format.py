"""Names that resemble a mistyped one, ages, and tables that Markdown reads and that line up in a terminal."""

from __future__ import annotations

import pytest

from lacli.text.format import (
    age_in_words,
    columns,
    count_in_words,
    did_you_mean,
    markdown,
    size_in_words,
    suggest,
    tokens_in_words,
)


def test_the_most_similar_name_is_suggested_first_whatever_its_case() -> None:
    assert suggest("tmep", ["top-k", "temp", "seed"]) == ["temp"]
    assert suggest("QWEN", ["Qwen-2", "qwen"])[0] == "qwen"
    assert did_you_mean("plan", ["plain", "lookup"], "one of them") == "did you mean plain?"
    assert suggest("/sy", ["/system", "/set"]) == ["/system"] and suggest("/s", ["/system"]) == []
    assert did_you_mean("zzz", ["plain", "lookup"], "one of them") == "one of them"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(59, "just now"), (60, "1 minute ago"), (13 * 86400, "13 days ago"), (14 * 86400, "2 weeks ago")],
)
def test_an_age_has_the_unit_that_says_it_shortest(seconds: float, words: str) -> None:
    assert age_in_words(seconds) == words
    assert age_in_words(730 * 86400) == "2 years ago"


def test_columns_of_a_table_line_up_words_to_the_left_and_numbers_to_the_right_whatever_a_cell_holds() -> None:
    assert markdown(("mode", "S"), [("plain", "1"), ("a|b\n[i]", "12.5")]).splitlines() == [
        "| mode     |    S |",
        "|----------|-----:|",
        "| plain    |    1 |",
        "| a\\|b␊[i] | 12.5 |",
    ]


def test_numbers_are_said_in_their_units() -> None:
    sizes = {0: "0 kB", 1: "1 kB", 4_700_000: "4.7 MB", 358_339_936: "358 MB", 4_700_000_000: "4.7 GB"}
    assert {size: size_in_words(size) for size in sizes} == sizes
    contexts = {0: "-", 512: "512", 32_768: "32k", 131_072: "128k", 40_960: "40k", 100_000: "100,000"}
    assert {tokens: tokens_in_words(tokens) for tokens in contexts} == contexts
    assert [count_in_words(count) for count in (7_344_384, 630_139_776, 7_615_616_512)] == ["7.3M", "630M", "7.6B"]


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

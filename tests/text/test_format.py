"""Names that resemble a mistyped one, ages, and tables that Markdown reads and that line up in a terminal."""

from __future__ import annotations

import pytest

from lacli.text.format import age_in_words, did_you_mean, markdown, suggest


def test_the_most_similar_name_is_suggested_first_whatever_its_case() -> None:
    assert suggest("tmep", ["top-k", "temp", "seed"]) == ["temp"]
    assert suggest("QWEN", ["Qwen-2", "qwen"])[0] == "qwen"
    assert did_you_mean("plan", ["plain", "lookup"], "one of them") == "did you mean plain?"
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

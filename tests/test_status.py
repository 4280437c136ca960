"""The status line: it fits every width, and what matters most stays longest."""

from __future__ import annotations

import pytest

from lacli.chat.status import status_line


def shown(width: int) -> str:
    return status_line(212.3, 3.41, 1204, 8192, "lookahead", width)


def test_a_wide_terminal_shows_all_of_it() -> None:
    assert shown(80) == "lookahead · 212 tokens/s · S 3.4 · context 1,204 of 8,192 (14%)"


def test_before_the_first_answer_there_are_no_numbers_of_one() -> None:
    assert status_line(None, None, 0, 4096, "plain", 80) == "plain · context 0 of 4,096 (0%)"


def test_slow_answers_keep_a_decimal() -> None:
    assert "2.3 tokens/s" in status_line(2.34, 1.0, 1, 2, "plain", 80)


@pytest.mark.parametrize("width", range(90))
def test_no_width_is_overrun_and_less_width_never_shows_more(width: int) -> None:
    assert len(shown(width)) <= width
    assert len(shown(width)) <= len(shown(width + 1))


def test_twenty_columns_keep_the_gain_and_the_context() -> None:
    assert shown(20) == "S 3.4 · context 14%"
    assert status_line(None, None, 5, 10, "lookahead", 20) == "context 50%"


def test_a_context_is_full_only_when_it_is() -> None:
    assert "(99%)" in status_line(None, None, 8191, 8192, "plain", 80)
    assert "(100%)" in status_line(None, None, 8192, 8192, "plain", 80)

"""Sweeps: the range syntax, the points of a product, those that cannot run, and Table 3 of the paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.bench.sweep import (
    Point,
    Skipped,
    ablation,
    parse_guesses,
    parse_numbers,
    parse_switches,
    points,
)
from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings

BASE = DecodeSettings()


def sizes(found: list[Point]) -> list[tuple[str, int, int, int]]:
    return [
        (point.settings.mode, point.settings.window, point.settings.ngram, point.settings.guesses) for point in found
    ]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("5", [5]),
        ("1,5,10,15,30", [1, 5, 10, 15, 30]),
        ("3-6", [3, 4, 5, 6]),
        ("10-30+10", [10, 20, 30]),
        ("1,5,10-30+10", [1, 5, 10, 20, 30]),
        ("10-35+10", [10, 20, 30]),
        ("4-64*2", [4, 8, 16, 32, 64]),
        ("4-60*2", [4, 8, 16, 32]),
        ("7-7", [7]),
        ("0-2", [0, 1, 2]),
        ("5, 1 ,5,1-3", [5, 1, 2, 3]),
    ],
)
def test_numbers_and_ranges_are_read_as_llama_bench_reads_them(text: str, numbers: list[int]) -> None:
    assert parse_numbers(text, "-W") == numbers


@given(st.integers(0, 400), st.integers(0, 400), st.integers(1, 50))
def test_a_range_with_a_step_is_pythons_range_with_its_last_number(first: int, more: int, step: int) -> None:
    expected = list(range(first, first + more + 1, step))
    if len(expected) <= 256:
        assert parse_numbers(f"{first}-{first + more}+{step}", "-N") == expected


@pytest.mark.parametrize(
    "text",
    ["", "x", "1,,2", "-5", "5-", "1-5-9", "1.5", "10-5", "1-9+0", "1-9*1", "0-9*2", "1-9+", "1-9/2", "W", "9" * 5000],
)
def test_what_is_no_range_is_an_error_that_names_the_flag_and_gives_an_example(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_numbers(text, "-W")
    assert "-W" in raised.value.what
    assert "-W 1,5,10" in raised.value.hint


def test_a_range_of_too_many_numbers_is_an_error_and_takes_no_time() -> None:
    with pytest.raises(UsageError, match="-N 1-999999999 has more than 256 values"):
        parse_numbers("1-999999999", "-N")


def test_guesses_may_be_tied_to_the_window() -> None:
    assert parse_guesses("W") == ["W"]
    assert parse_guesses("w,1,10-30+10") == ["W", 1, 10, 20, 30]


def test_switches_are_on_off_and_auto() -> None:
    assert parse_switches("on,off") == ["on", "off"]
    assert parse_switches("0,1,off,auto") == ["off", "on", "auto"]


@pytest.mark.parametrize(("parse", "flag"), [(parse_guesses, "-G"), (parse_switches, "-fa")])
def test_other_words_are_errors_that_name_their_flag(parse: Callable[[str], Any], flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag} 'some'"):
        parse("some")


def test_a_sweep_is_every_combination_of_what_a_mode_has() -> None:
    found, skipped = points(["plain", "jacobi", "lookup", "lookahead"], [1, 5], [3, 5], [2, 4])
    assert not skipped
    assert sizes(found) == [
        ("plain", BASE.window, BASE.ngram, BASE.guesses),
        ("jacobi", 1, BASE.ngram, BASE.guesses),
        ("jacobi", 5, BASE.ngram, BASE.guesses),
        ("lookup", BASE.window, BASE.ngram, BASE.guesses),
        *(("lookahead", window, ngram, guesses) for window in (1, 5) for ngram in (3, 5) for guesses in (2, 4)),
    ]


def test_without_axes_there_is_one_point_a_mode() -> None:
    base = DecodeSettings(mode="lookahead", window=3, ngram=4, guesses=2, pool_text=False)
    found, _ = points(["plain", "lookahead"], base=base)
    assert [point.settings.mode for point in found] == ["plain", "lookahead"]
    assert found[1].settings == base


def test_the_guesses_follow_several_windows_unless_they_are_given() -> None:
    tied = [("lookahead", window, 5, window) for window in (1, 5, 30)]
    assert sizes(points(["lookahead"], [1, 5, 30])[0]) == tied
    assert sizes(points(["lookahead"], [1, 5, 30], guesses=["W"])[0]) == tied
    assert sizes(points(["lookahead"], [1, 5], guesses=[15])[0]) == [("lookahead", 1, 5, 15), ("lookahead", 5, 5, 15)]
    assert sizes(points(["lookahead"], [7])[0]) == [("lookahead", 7, 5, BASE.guesses)]


def test_a_tied_and_an_equal_number_of_guesses_are_one_point() -> None:
    assert len(points(["lookahead"], [5, 7], guesses=["W", 5])[0]) == 3


def test_flash_attention_is_an_axis_of_every_mode() -> None:
    found, _ = points(["plain", "jacobi"], [4], flash_attentions=["on", "off"])
    assert [(point.settings.mode, point.flash_attention) for point in found] == [
        ("plain", "on"), ("plain", "off"), ("jacobi", "on"), ("jacobi", "off"),
    ]  # fmt: skip


def test_labels_say_what_is_swept() -> None:
    found, _ = points(["plain", "jacobi", "lookahead"], [4], [3], [2], ["on"])
    assert [point.label for point in found] == ["plain, -fa on", "jacobi W=4, -fa on", "lookahead W=4 N=3 G=2, -fa on"]


def test_labels_are_distinct() -> None:
    found, _ = points(["plain", "jacobi", "lookahead"], [1, 2], [3, 4], ["W", 7], ["on", "off"])
    assert len({point.label for point in found}) == len(found)
    assert len({point.label for point in ablation()[0]}) == 9


def test_a_point_beyond_the_sequence_limit_is_skipped_with_the_reason() -> None:
    found, skipped = points(["jacobi", "lookahead"], [15, 200], [5], guesses=["W"])
    assert sizes(found) == [("jacobi", 15, 5, 15), ("jacobi", 200, 5, 15), ("lookahead", 15, 5, 15)]
    assert skipped == [
        Skipped("lookahead W=200 N=5 G=200", "W + G + 1 = 401 sequences, and llama.cpp has 256"),
    ]


def test_a_point_with_more_rows_than_a_batch_is_skipped_with_the_reason() -> None:
    found, skipped = points(["lookahead"], [5, 15], [5], loading=ModelSettings(batch=64))
    assert sizes(found) == [("lookahead", 5, 5, 5)]
    assert skipped == [Skipped("lookahead W=15 N=5 G=15", "a step has up to 120 rows and -b is 64")]


def test_a_point_with_an_impossible_size_is_skipped() -> None:
    found, skipped = points(["lookahead"], [5], [1, 5])
    assert sizes(found) == [("lookahead", 5, 5, 15)]
    assert skipped == [Skipped("lookahead W=5 N=1 G=15", "-N is 1")]


def test_the_ablation_has_the_nine_rows_of_the_papers_table_3() -> None:
    rows, _ = ablation(DecodeSettings(mode="lookahead", pool_text=False, window_init="random", lookup_draft=3))
    assert [point.tag for point in rows] == list(range(1, 10))
    assert [point.settings.mode for point in rows] == ["plain", "lookup", *["lookahead"] * 7]
    assert rows[1].settings.lookup_draft == 10
    table = [
        (point.settings.ngram, point.settings.window, point.settings.guesses, point.settings.pool_prompt)
        for point in rows[2:]
    ]
    assert table == [
        (10, 1, 3, True), (5, 1, 10, True), (5, 1, 30, False), (5, 1, 30, True), (5, 30, 1, False),
        (5, 15, 15, False), (5, 15, 15, True),
    ]  # fmt: skip


def test_without_the_prompt_as_reference_only_the_window_fills_the_pool() -> None:
    for point in ablation()[0][2:]:
        assert point.settings.pool_text == point.settings.pool_prompt
        assert point.settings.window_init == "prompt"


def test_the_ablation_keeps_what_it_does_not_name() -> None:
    assert all(point.settings.strict and point.settings.pool_keys == 7 for point in ablation(
        DecodeSettings(strict=True, pool_keys=7)
    )[0])  # fmt: skip


def test_rows_of_the_ablation_that_do_not_fit_into_a_batch_are_left_out_with_their_reasons() -> None:
    found, skipped = ablation(loading=ModelSettings(batch=40))
    assert [point.tag for point in found] == [1, 2, 3]
    assert [each.label[0] for each in skipped] == list("456789")
    assert all("-b is 40" in each.reason for each in skipped)


def test_auto_takes_what_a_small_batch_has_and_lookahead_is_skipped() -> None:
    found, skipped = points(["lookahead", "auto"], loading=ModelSettings(batch=8))
    assert [(point.settings.mode, point.settings.auto_rows) for point in found] == [("auto", 8)]
    assert len(skipped) == 1 and "and -b is 8" in skipped[0].reason

"""Sweeps: lists of numbers, the points of a product, and skipped points."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lacli.bench.plan import Axes, Point, parse_numbers, points
from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings, ModeName

BASE = DecodeSettings()
PLAIN = ("plain", BASE.window, BASE.ngram, BASE.guesses)


def swept(
    modes: Sequence[ModeName],
    windows: Sequence[int] = (),
    ngrams: Sequence[int] = (),
    guesses: Sequence[int] = (),
    batch: int = 2048,
) -> tuple[list[Point], list[str]]:
    axes = Axes(tuple(modes), tuple(windows), tuple(ngrams), tuple(guesses))
    return points(axes, BASE, ModelSettings(batch=batch))


def sizes(found: list[Point]) -> list[tuple[str, int, int, int]]:
    return [(each.mode, each.window, each.ngram, each.guesses) for each in (point.settings for point in found)]


@pytest.mark.parametrize(("text", "numbers"), [("7", [7]), ("0, 2 ,1", [0, 2, 1]), ("5,1,5", [5, 1])])
def test_numbers_are_read_with_commas_between_them_and_each_once(text: str, numbers: list[int]) -> None:
    assert parse_numbers(text, "-W") == numbers


@pytest.mark.parametrize("text", ["", "1,,2", "-5", "5-", "1-5", "1.5", "W", "9" * 5000])
def test_a_value_that_is_no_number_is_an_error_that_names_the_flag_and_gives_an_example(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_numbers(text, "-W")
    assert "-W" in raised.value.what
    assert "-W 1,5,10" in raised.value.hint


def test_a_sweep_is_plain_decoding_and_every_combination_of_what_a_mode_has() -> None:
    found, skipped = swept(["jacobi", "lookup", "lookahead"], [1, 5], [3, 5], [2, 4])
    assert not skipped
    assert sizes(found) == [
        PLAIN,
        ("jacobi", 1, BASE.ngram, BASE.guesses),
        ("jacobi", 5, BASE.ngram, BASE.guesses),
        ("lookup", BASE.window, BASE.ngram, BASE.guesses),
        *(("lookahead", window, ngram, guesses) for window in (1, 5) for ngram in (3, 5) for guesses in (2, 4)),
    ]
    assert [point.label for point in found[:3]] == ["plain", "jacobi W=1", "jacobi W=5"]
    assert found[-1].label == "lookahead W=5 N=5 G=4" and swept(["plain"])[0] == found[:1]
    assert [point.mode for point in swept(["lookup", "auto"])[0]] == ["plain", "auto", "lookup"], "auto goes first"


@pytest.mark.parametrize(
    ("axes", "batch", "left", "skipped"),
    [
        ((["jacobi", "lookahead"], [15, 200], [5]), 2048,
         [("jacobi", 15, 5, 15), ("jacobi", 200, 5, 15), ("lookahead", 15, 5, 15)],
         "lookahead W=200 N=5 G=200: W + G + 1 = 401 sequence ids, and llama.cpp has 256"),
        ((["lookahead"], [5, 15], [5]), 64, [("lookahead", 5, 5, 5)],
         "lookahead W=15 N=5 G=15: a step has up to 120 rows and -b is 64"),
        ((["lookahead"], [5], [1, 5]), 2048, [("lookahead", 5, 5, 15)], "lookahead W=5 N=1 G=15: ngram is 1"),
    ],
)  # fmt: skip
def test_a_point_that_cannot_run_is_skipped_with_the_reason(
    axes: tuple[list[ModeName], list[int], list[int]], batch: int, left: list[tuple[str, int, int, int]], skipped: str
) -> None:
    found, reasons = swept(*axes, batch=batch)
    assert (sizes(found), reasons) == ([PLAIN, *left], [skipped])

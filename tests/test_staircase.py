"""What is read off a staircase, by hand: between and beyond its sizes, break-even, payoffs, the ceiling."""

from __future__ import annotations

import pytest

from lacli.cost.payoff import (
    NGRAMS,
    WINDOWS,
    best,
    grid,
    payoff,
    payoffs,
)
from lacli.law import PAPER, Law
from lacli.settings import DecodeSettings
from lacli.staircase import Cost, Point, Staircase

STAIRS = Staircase(
    64,
    (Point(1, 2.0, 2.0), Point(4, 3.2, 2.6), Point(8, 6.0, 4.0), Point(16, 10.0, 6.4)),
)
FREE = Staircase(64, (Point(1, 1.0, 1.0), Point(64, 1.05, 1.02), Point(128, 1.4, 1.3)))
SMALL = DecodeSettings(mode="lookahead", window=2, ngram=3, guesses=2)


def test_measured_sizes_are_given_back() -> None:
    assert [STAIRS.seconds(rows) for rows in (1, 4, 8, 16)] == [2.0, 3.2, 6.0, 10.0]
    assert [STAIRS.seconds(rows, 1) for rows in (4, 8, 16)] == [2.6, 4.0, 6.4]
    assert STAIRS.single == 2.0 and STAIRS.most_rows == 16


def test_between_them_there_are_straight_lines() -> None:
    assert STAIRS.seconds(2) == pytest.approx(2.4)
    assert STAIRS.seconds(6) == pytest.approx(4.6)
    assert STAIRS.seconds(12, 1) == pytest.approx(5.2)
    assert STAIRS.relative(6) == pytest.approx(2.3)


def test_beyond_them_the_slope_of_the_upper_half_goes_on() -> None:
    # From 8 to 16 rows: half a second a row.
    assert STAIRS.seconds(20) == pytest.approx(12.0)
    assert STAIRS.seconds(20, 1) == pytest.approx(7.6)
    close = Staircase(1, (Point(1, 1.0, 1.0), Point(8, 2.0, 2.0), Point(15, 9.0, 9.0), Point(16, 4.0, 4.0)))
    assert close.seconds(20) == pytest.approx(5.0)
    assert Staircase(1, (Point(1, 2.0, 2.0),)).seconds(50) == 2.0
    # Noise must not make larger steps cheaper.
    assert Staircase(1, (Point(1, 2.0, 2.0), Point(8, 1.9, 1.9))).seconds(100) == pytest.approx(1.9)


def test_fewer_choices_lie_between_one_and_all() -> None:
    assert STAIRS.seconds(8, 7) == pytest.approx(4.0 + 2.0 * 6 / 7)
    assert STAIRS.seconds(4, 2) == pytest.approx(2.6 + 0.6 / 3)
    assert STAIRS.seconds(1, 1) == 2.0


def test_break_even_is_the_cost_of_the_largest_step() -> None:
    # The input, a window of 2 x 2 - 1 rows and 2 x 2 of candidates; the choices of 1 + 2 + 4 are read.
    assert (SMALL.most_rows, SMALL.most_outputs) == (8, 7)
    assert STAIRS.break_even(SMALL) == pytest.approx((4.0 + 2.0 * 6 / 7) / 2.0)
    assert STAIRS.break_even(DecodeSettings(mode="lookup", lookup_draft=7)) == pytest.approx(3.0)
    assert STAIRS.break_even(DecodeSettings(mode="plain")) == 1.0


def test_beyond_twice_the_largest_size_nothing_is_known() -> None:
    assert [STAIRS.reaches(rows) for rows in (1, 16, 32, 33)] == [True, True, True, False]
    assert STAIRS.break_even(DecodeSettings(mode="lookup", lookup_draft=31)) == pytest.approx(9.0)
    assert STAIRS.break_even(DecodeSettings(mode="lookup", lookup_draft=32)) is None
    single = Staircase(1, (Point(1, 2.0, 2.0),))
    assert [single.reaches(rows) for rows in (1, 2)] == [True, False]


def test_the_ceiling_is_where_a_row_is_cheapest() -> None:
    assert STAIRS.ceiling == (16, 16 / 5.0)
    rows, speedup = FREE.ceiling
    assert rows == 128 and speedup == pytest.approx(128 / 1.4)
    assert FREE.nearly_free_rows == 64 and STAIRS.nearly_free_rows == 1
    assert STAIRS.row == pytest.approx(4.0 / 15)


def test_a_payoff_by_hand() -> None:
    found = payoff(STAIRS, SMALL)
    assert (found.window, found.ngram, found.guesses, found.rows, found.outputs) == (2, 3, 2, 8, 7)
    assert found.most_tokens == 3 and not found.extrapolated
    # Equation 5 with alpha 1/2, gamma 2 and two sequences: 3 - (1/4 + 9/16); Equation 7 with f 2.
    law = Law(0.5, 2.0)
    assert payoff(STAIRS, SMALL, law).expected == pytest.approx((1 + 3 - 0.25 - 0.5625) / 2)
    assert payoff(STAIRS, SMALL, law).speedup == pytest.approx(1.59375 / STAIRS.relative(8, 7))
    assert found.expected == pytest.approx(PAPER.compression(2, 2))
    assert found.most_speedup == pytest.approx(3 / STAIRS.relative(8, 7))


def test_the_law_says_nothing_without_a_window() -> None:
    found = payoff(STAIRS, DecodeSettings(mode="lookahead", window=0, ngram=5, guesses=1))
    assert (found.rows, found.most_tokens, found.expected, found.speedup) == (5, 5, None, None)


def test_a_step_larger_than_any_measured_is_said_to_be_extrapolated() -> None:
    far = payoff(STAIRS, DecodeSettings(mode="lookahead"))
    assert far.extrapolated and far.break_even is far.speedup is far.most_speedup is None and far.expected
    assert not payoff(FREE, DecodeSettings(mode="lookahead")).extrapolated


def test_the_grid_ties_guesses_to_the_window() -> None:
    choices = grid()
    assert len(choices) == len(WINDOWS) * len(NGRAMS)
    assert all(each.guesses == (each.window or 1) for each in choices)


def test_the_best_is_small_where_rows_cost_and_large_where_they_do_not() -> None:
    costly, free = best(payoffs(STAIRS)), best(payoffs(FREE))
    assert costly and costly.speedup and free and free.speedup
    assert (costly.window, costly.ngram) == (1, 3) and costly.speedup < 1
    assert free.window > 5 and free.speedup > 1.5
    assert free.speedup == max(each.speedup or 0 for each in payoffs(FREE) if each.rows <= 128)


def test_the_best_was_measured_or_there_is_none() -> None:
    # Free rows: the larger, the faster, also in what is not measured.
    free = Staircase(1, (Point(1, 1.0, 1.0), Point(64, 1.0, 1.0)))
    assert 64 < max(payoffs(free), key=lambda each: each.speedup or 0).rows <= 128
    found = best(payoffs(free))
    assert found and found.rows <= 64
    assert best(payoffs(Staircase(1, (Point(1, 1.0, 1.0), Point(3, 0.9, 0.9))))) is None


def test_a_context_between_two_measured_ones_is_interpolated() -> None:
    long = Staircase(1064, (Point(1, 4.0, 4.0, 0.1, 3), Point(8, 9.0, 8.0, 0.2, 5), Point(99, 90.0, 80.0)))
    cost = Cost((STAIRS, long))
    assert cost.at(0) is cost.at(64) is STAIRS and cost.at(1064) is cost.at(9999) is long
    between = cost.at(314)
    assert between.context == 314
    # The sizes that both have.
    assert between.points == (Point(1, 2.5, 2.5, 0.1, 1), Point(8, 6.75, 5.0, 0.2, 1))


def test_a_cost_is_rough_when_half_of_its_times_vary_much() -> None:
    steady, varying = Point(1, 1.0, 1.0, 0.05), Point(2, 1.0, 1.0, 0.6)
    assert not Cost((Staircase(1, (steady,)),)).rough
    assert Cost((Staircase(1, (steady, varying)), Staircase(2, (Point(1, 1.0, 1.0, 0.5),)))).rough
    assert not Cost(()).rough

"""What a replica is taken to need for so many rows: near what it has lately needed, and never below nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.replicas.replica import KEEP, LATE, Speed

steps = st.lists(st.tuples(st.integers(1, 200), st.floats(1e-6, 10)), min_size=1, max_size=40)
close = st.lists(st.tuples(st.integers(1, 200), st.floats(0.9, 1.1)), min_size=1, max_size=40)


def speed_after(seen: Sequence[tuple[int, float]]) -> Speed:
    speed = Speed()
    for rows, seconds in seen:
        speed.saw(rows, seconds)
    return speed


def seconds(speed: Speed, rows: float) -> float:
    fixed, row = speed.line()
    return fixed + row * rows


@given(steps)
def test_neither_a_call_nor_a_row_costs_less_than_nothing(seen: list[tuple[int, float]]) -> None:
    fixed, row = speed_after(seen).line()
    assert row >= 0 and fixed >= -1e-9
    assert fixed + row > 0


@given(close)
def test_the_line_goes_through_the_mean_of_what_counts_still(seen: list[tuple[int, float]]) -> None:
    weights = KEEP ** np.arange(len(seen))[::-1]
    rows, times = (np.average(column, weights=weights) for column in zip(*seen, strict=True))
    assert seconds(speed_after(seen), float(rows)) == pytest.approx(times)


@given(st.lists(st.sampled_from([8, 24, 40, 64]), min_size=10, max_size=60), st.floats(1e-3, 1), st.floats(1e-4, 1e-2))
def test_the_slope_is_that_of_least_squares_drawn_to_half_of_the_time(
    sizes: list[int], fixed: float, row: float
) -> None:
    times = [fixed + row * size for size in sizes]
    weights = KEEP ** np.arange(len(sizes))[::-1]
    size, time = np.average(sizes, weights=weights), np.average(times, weights=weights)
    spread = np.sum(weights * (np.array(sizes) - size) ** 2)
    together = np.sum(weights * (np.array(sizes) - size) * (np.array(times) - time))
    # As if every step besides had been seen an eighth of the size away from where half of the time is the rows'.
    doubt = np.sum(weights) * (size / 8) ** 2
    expected = (together + doubt * time / size / 2) / (spread + doubt)
    speed = speed_after(list(zip(sizes, times, strict=True)))
    assert speed.line()[1] == pytest.approx(min(expected, time / size))


def test_one_step_says_what_its_size_costs_and_half_of_it_is_the_rows() -> None:
    fixed, row = speed_after([(20, 0.4)]).line()
    assert fixed == pytest.approx(0.2) and 20 * row == pytest.approx(0.2)


def test_steps_of_one_size_say_no_more() -> None:
    assert speed_after([(20, 0.4)] * 50).line() == pytest.approx(speed_after([(20, 0.4)]).line())


def test_where_steps_are_small_the_prompt_says_what_rows_cost() -> None:
    nearly_free = speed_after([(1, 1.0)] * 20)
    nearly_free.hint(301, 1.3)
    assert nearly_free.line() == pytest.approx((0.999, 0.001))
    for rows, hint in ((9, 15), (9, 17), (1, 15)):
        too_small = speed_after([(rows, 1.0)])
        too_small.hint(hint, 1.1)
        assert too_small.line() == speed_after([(rows, 1.0)]).line()


def test_of_several_pieces_of_prompts_the_largest_counts() -> None:
    speed = speed_after([(10, 1.0)])
    for rows, seconds in ((100, 1.9), (20, 5.0), (200, 2.9), (20, 1.0)):
        speed.hint(rows, seconds)
    assert speed.line()[1] == pytest.approx(0.01)


@given(steps, st.integers(16, 512), st.floats(1e-6, 1e3))
def test_a_slow_prompt_makes_rows_no_dearer_than_without_one(
    seen: list[tuple[int, float]], rows: int, seconds: float
) -> None:
    without, told = speed_after(seen), speed_after(seen)
    told.hint(rows, seconds)
    assert 0 <= told.line()[1] <= without.line()[1]


def test_unlike_sizes_show_what_is_fixed() -> None:
    speed = speed_after([(rows, 0.1 + 0.001 * rows) for _ in range(20) for rows in (10, 60)])
    assert seconds(speed, 10) == pytest.approx(0.11, rel=0.05)
    assert seconds(speed, 60) == pytest.approx(0.16, rel=0.05)


def test_one_that_has_become_faster_or_slower_is_known_to_be() -> None:
    speed = speed_after([(20, 0.4)] * 50)
    for now in (0.1, 0.25):
        for _ in range(50):
            speed.saw(20, now)
        assert seconds(speed, 20) == pytest.approx(now, rel=0.05)


def test_one_that_was_held_up_once_is_hardly_taken_for_slower() -> None:
    speed = speed_after([(20, 0.4)] * 50)
    speed.saw(20, 1000.0)
    # A tenth of what is remembered is the last step, and that counts as three.
    assert seconds(speed, 20) <= 0.4 * (1 + (LATE - 1) * (1 - KEEP) * 1.01)
    for _ in range(30):
        speed.saw(20, 0.4)
    assert seconds(speed, 20) == pytest.approx(0.4, rel=0.02)


def test_one_whose_first_step_was_held_up_is_found_out() -> None:
    speed = speed_after([(20, 40.0)])
    for _ in range(90):
        speed.saw(20, 0.4)
    assert seconds(speed, 20) == pytest.approx(0.4, rel=0.05)


def test_another_speaks_for_one_that_has_decoded_nothing() -> None:
    seen = speed_after([(20, 0.4), (40, 0.5)])
    assert not Speed().seen and seen.seen
    assert Speed().line(seen) == seen.line()
    own = speed_after([(3, 7.0)])
    assert own.line(seen) == own.line() != seen.line()


def test_before_anything_is_seen_all_are_alike() -> None:
    assert Speed().line() == Speed().line(Speed())
    assert min(Speed().line()) > 0

"""One replica: what it is taken to need for a step, and how much it may catch up beside the steps of others."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.replicas.replica import DECAY, LATE, PATIENCE, Replica, Speed, shared_s
from tests.fakes.engine import FakeEngine, RuleBroken


def replica_of(fixed: float, row: float) -> Replica:
    found = Replica(FakeEngine())
    for rows in (1, 40) * 10:
        found.speed.saw(rows, fixed + row * rows)
    return found


def waits(replica: Replica, steps: int, step_s: float) -> list[int]:
    """The steps in which it is given rows, and is as slow as before."""
    given = []
    for step in range(steps):
        if rows := replica.rows_to_catch_up(100, step_s):
            given.append(step)
            replica.catch_up(range(replica.cache.past + rows))
            replica.speed = replica_of(8.0, 0.1).speed
    return given


def test_one_that_has_decoded_nothing_yet_may_catch_up_with_all() -> None:
    assert Replica(FakeEngine()).rows_to_catch_up(17, 1e-3) == 17


def test_its_prompt_is_a_hint_of_its_speed_until_a_step_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5.0, 9.0])
    monkeypatch.setattr("lacli.cache.perf_counter", lambda: next(times))
    replica = Replica(FakeEngine())
    replica.prefill([3] * 40)
    assert replica.speed.line() == (2.0, 0.05) and not replica.speed.seen
    assert replica.rows_to_catch_up(17, 3.0) == 17 and replica.rows_to_catch_up(17, 1.0) == 0
    replica.speed.saw(10, 1.0)
    assert replica.speed.seconds(10) == pytest.approx(1.0)


def test_a_short_prompt_says_nothing() -> None:
    replica = Replica(FakeEngine())
    replica.prefill([3] * 15)
    assert not replica.speed.known


def test_it_catches_up_as_far_as_the_others_time_allows_and_no_further_than_it_lacks() -> None:
    fast = replica_of(1.0, 0.1)
    assert 18 <= fast.rows_to_catch_up(100, 3.0) <= 20
    assert fast.rows_to_catch_up(7, 3.0) == 7


def test_one_too_slow_for_any_is_waited_for_ever_more_seldom() -> None:
    slow = replica_of(8.0, 0.1)
    found = waits(slow, 2000, 1.0)
    first, second, third = found[:3]
    assert abs(first - 8.1 / PATIENCE) < 2
    assert second - first > 1.9 * first and third - second > 1.9 * (second - first)
    # All the waiting together is little beside the steps.
    assert 8.1 * len(found) < 0.03 * 2000


def test_one_that_got_a_part_again_is_given_the_same_patience_as_at_first() -> None:
    slow = replica_of(8.0, 0.1)
    first = waits(slow, 500, 1.0)[0]
    slow.learn()
    slow.speed = replica_of(8.0, 0.1).speed
    assert waits(slow, 500, 1.0)[0] == first


def test_a_prompt_that_two_decode_alike_is_worth_half_the_time_and_one_far_away_counts_little() -> None:
    assert shared_s(30, [(30, 3.0), (30, 3.0)]) == 1.5 and shared_s(30, [(30, 3.0), (0, 0.0)]) == 3.0
    assert shared_s(30, []) == 0.0 and 2.7 < shared_s(30, [(30, 3.0), (3, 5.0)]) < 3.0


def test_a_long_prompt_ends_for_all_when_one_has_it_but_for_those_with_one_piece_left() -> None:
    over, far, near = Event(), *(Replica(FakeEngine(prefill_rows=8)) for _ in range(2))
    tokens = [3] * 32
    near.prefill(tokens[:16])
    over.set()
    assert far.prefill_until(tokens, over) and far.cache.past == 8
    assert near.prefill_until(tokens, over) and near.cache.past == 32


def test_whoever_has_the_prompt_says_so_and_whoever_fails_too() -> None:
    done, failed = Event(), Event()
    assert Replica(FakeEngine()).prefill_until([3] * 20, done) and done.is_set()
    with pytest.raises(RuleBroken):
        Replica(FakeEngine()).prefill_until([99] * 20, failed)
    assert failed.is_set()


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
    weights = DECAY ** np.arange(len(seen))[::-1]
    rows, times = (np.average(column, weights=weights) for column in zip(*seen, strict=True))
    assert seconds(speed_after(seen), float(rows)) == pytest.approx(times)


@given(st.lists(st.sampled_from([8, 24, 40, 64]), min_size=10, max_size=60), st.floats(1e-3, 1), st.floats(1e-4, 1e-2))
def test_the_slope_is_that_of_least_squares_drawn_to_half_of_the_time(
    sizes: list[int], fixed: float, row: float
) -> None:
    times = [fixed + row * size for size in sizes]
    weights = DECAY ** np.arange(len(sizes))[::-1]
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
    assert seconds(speed, 20) <= 0.4 * (1 + (LATE - 1) * (1 - DECAY) * 1.01)
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

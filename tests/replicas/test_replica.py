"""One replica: how much it may catch up beside the steps of others."""

from __future__ import annotations

from threading import Event

import pytest

from lacli.cache import PREFILL_ROWS
from lacli.replicas.group import shared_s
from lacli.replicas.replica import PATIENCE, Replica
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
    monkeypatch.setattr("lacli.replicas.replica.perf_counter", lambda: next(times))
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
    over, far, near = Event(), Replica(FakeEngine(4096, 512)), Replica(FakeEngine(4096, 512))
    tokens = [3] * (4 * PREFILL_ROWS)
    near.prefill(tokens[: 2 * PREFILL_ROWS])
    over.set()
    assert far.prefill_until(tokens, over) and far.cache.past == PREFILL_ROWS
    assert near.prefill_until(tokens, over) and near.cache.past == 4 * PREFILL_ROWS


def test_whoever_has_the_prompt_says_so_and_whoever_fails_too() -> None:
    done, failed = Event(), Event()
    assert Replica(FakeEngine()).prefill_until([3] * 20, done) and done.is_set()
    with pytest.raises(RuleBroken):
        Replica(FakeEngine()).prefill_until([99] * 20, failed)
    assert failed.is_set()

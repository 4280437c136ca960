"""Fewer threads decode behind slow steps, and all are tried again ever later."""

from __future__ import annotations

import pytest

from lacli.llamacpp.decoding import MAX_RETRY_S, OBSERVED_S, RETRY_S, ThreadsInUse


@pytest.mark.parametrize(("cores", "left"), [(4.0, 4), (3.3, 4), (3.1, 3), (1.9, 1), (0.1, 1)])
def test_as_many_threads_decode_as_had_a_core(cores: float, left: int) -> None:
    threads = ThreadsInUse(4)
    for step in range(4):
        assert threads.count == 4, "a step alone decides nothing"
        threads.note(OBSERVED_S / 3.9, cores * OBSERVED_S / 3.9, step * OBSERVED_S)
    assert threads.count == left


def test_all_threads_are_tried_again_ever_later_while_that_fails() -> None:
    threads, now_s, pauses = ThreadsInUse(2), 0.0, list[float]()
    for _ in range(7):
        begin_s = now_s
        while threads.count == 2:
            now_s += OBSERVED_S
            threads.note(OBSERVED_S, OBSERVED_S, now_s)
        begin_s = now_s
        while threads.count == 1:
            now_s += 0.125
            threads.note(0.125, 0.125, now_s)
        pauses.append(now_s - begin_s)
    assert pauses == [RETRY_S * 2**each for each in range(5)] + [MAX_RETRY_S] * 2
    threads.note(OBSERVED_S, 2 * OBSERVED_S, now_s)
    threads.note(OBSERVED_S, OBSERVED_S, now_s)
    assert threads.count == 1 and threads._until_s == now_s + RETRY_S, "a try that succeeds begins anew"

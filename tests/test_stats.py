"""Sums over steps, and the log's last error."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lacli.llamacpp.library import ERROR, Log
from lacli.stats import RunStatistics, Step
from lacli.tree import Origin


def step(*origins: Origin, rows: int = 10) -> Step:
    return Step(tokens_of(origins), origins, rows, rows - 1, decode_s=0.4, choose_s=0.3, cache_s=0.2, python_s=0.1)


def tokens_of(origins: Sequence[Origin]) -> tuple[int, ...]:
    return tuple(range(len(origins)))


def test_steps_add_up() -> None:
    run = RunStatistics()
    assert (run.tokens_per_step, run.tokens_per_second, run.rows_mean) == (0, 0, 0)
    run.add(step(Origin.MODEL, rows=4))
    run.add(step(Origin.POOL, Origin.WINDOW, Origin.MODEL, rows=8))
    run.add(step(Origin.MODEL, rows=6))
    assert (run.steps, run.tokens, run.accepted, run.rows_mean) == (3, 5, 2, 6)
    assert run.lengths == {1: 2, 3: 1}
    assert run.tokens_per_step == 5 / 3
    assert run.predicted_s == pytest.approx(3.0)
    assert run.tokens_per_second == pytest.approx(5 / 3)


def test_drafts_are_counted_by_their_source() -> None:
    run = RunStatistics()
    tried = (Origin.POOL, Origin.POOL, Origin.SUFFIX)
    run.add(step(Origin.POOL, Origin.SUFFIX, Origin.MODEL, rows=4)._replace(guesses=tried))
    run.add(step(Origin.POOL, Origin.POOL, Origin.MODEL, rows=3)._replace(guesses=tried[:2]), read=1)
    run.add(step(Origin.MODEL, rows=3)._replace(guesses=(Origin.WINDOW, Origin.WINDOW)))
    assert run.tried == {Origin.POOL: 4, Origin.SUFFIX: 1, Origin.WINDOW: 2}
    assert run.accepted_from == {Origin.POOL: 2, Origin.SUFFIX: 1}
    assert run.origins == [Origin.POOL, Origin.WINDOW, Origin.SUFFIX]
    assert run.batches == {4: 1, 3: 2}


def test_the_log_gives_the_first_error_without_its_function() -> None:
    log = Log()
    log.receive(2, b"llama_load: all is well\n")
    assert log.last_error() == "llama.cpp gives no reason"
    log.receive(ERROR, b"gguf_init: bad\n - magic\n")
    log.receive(ERROR, b"load_model: failed\n")
    assert log.last_error() == "bad - magic"
    log.forget()
    assert log.last_error() == "llama.cpp gives no reason"

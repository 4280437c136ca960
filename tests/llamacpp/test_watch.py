"""The watch over a decode with a clock of the test's own, texts whose steps it ends, and the threads that rest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import llama_cpp as lib
import pytest

from lacli.llamacpp import watch as watch_module
from lacli.llamacpp.context import ABORTED
from lacli.llamacpp.library import Log, library
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.llamacpp.watch import (
    IDLE_S,
    MAX_RETRY_S,
    MIN_IDLE_SHARE,
    OBSERVED_S,
    RETRY_S,
    DecodeWatch,
    ThreadsInUse,
    idle_seconds,
)
from lacli.settings import DecodeSettings
from lacli.stats import MIN_CORE_SHARE
from tests.loading import load


@dataclass
class Times:
    """Seconds by the clock, and those of all processors; `started`: names of threads that were to start."""

    now_s: float = 0.0
    core_s: float = 0.0
    started: list[str] = field(default_factory=list)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(watch_module, "perf_counter", lambda: times.now_s)
    monkeypatch.setattr(watch_module, "process_time", lambda: times.core_s)
    monkeypatch.setattr("lacli.llamacpp.watch._disk_reads", lambda: 0)
    monkeypatch.setattr(Thread, "start", lambda thread: times.started.append(thread.name))
    monkeypatch.setattr(Thread, "is_alive", lambda thread: True)
    return times


@pytest.fixture
def watch(times: Times) -> Iterator[DecodeWatch]:
    watch = DecodeWatch(2, library())
    yield watch
    watch.close()


def look(watch: DecodeWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the thread look once."""
    waits = iter([False, True])
    monkeypatch.setattr(watch._closed, "wait", lambda seconds: next(waits))
    watch._observe_running()


def is_aborted(watch: DecodeWatch) -> bool:
    """What llama.cpp is told after an operation."""
    return bool(watch.callback(watch.flag))


def test_a_decode_whose_threads_lack_cores_is_aborted_and_fewer_take_the_next(
    times: Times, watch: DecodeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watch.watching(abortable=True):
        times.now_s += OBSERVED_S / 2
        look(watch, monkeypatch)
        assert not is_aborted(watch), "a step or two may wait by chance"
        times.now_s, times.core_s = times.now_s + OBSERVED_S, times.core_s + OBSERVED_S
        look(watch, monkeypatch)
        assert is_aborted(watch) and watch.aborts
    assert watch.threads == 1 and not is_aborted(watch)


def test_all_threads_are_tried_again_behind_a_decode_of_fewer_and_not_in_its_middle(
    times: Times, watch: DecodeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.llamacpp.watch.idle_seconds", lambda: None)
    with watch.watching(abortable=True):
        times.now_s += OBSERVED_S
    assert watch.threads == 1
    with watch.watching(abortable=True):
        for _ in range(20):
            times.now_s, times.core_s = times.now_s + OBSERVED_S, times.core_s + OBSERVED_S
            look(watch, monkeypatch)
            assert watch.threads == 1 and not is_aborted(watch), "one thread waits for no other"
    assert watch.threads == 2


def test_ctrl_c_in_the_watch_itself_leaves_the_next_decode_alone(
    times: Times, watch: DecodeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*seconds: float) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(watch._in_use, "observe", press)
        with watch.watching(abortable=True):
            pass
    times.now_s += OBSERVED_S
    look(watch, monkeypatch)
    with watch.watching(abortable=False):
        assert watch.threads == 2 and not is_aborted(watch)
    watch._set_abort(True)
    with watch.watching(abortable=False):
        assert not is_aborted(watch)


def test_a_decode_does_without_a_thread_where_the_system_gives_none(
    watch: DecodeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    with watch.watching(abortable=True):
        assert not is_aborted(watch)


@pytest.mark.parametrize(("abortable", "cores"), [(True, 2), (False, 1)])
def test_a_decode_goes_on_where_its_threads_have_cores_or_it_may_not_be_aborted(
    abortable: bool, cores: int, times: Times, watch: DecodeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watch.watching(abortable=abortable):
        times.now_s, times.core_s = 2 * OBSERVED_S, 2 * OBSERVED_S * cores
        look(watch, monkeypatch)
        assert not is_aborted(watch)
    assert watch.threads == cores, "the next one is decoded by those that had a core"


def test_the_thread_ends_where_nothing_is_decoded_and_the_next_decode_starts_another(
    times: Times, watch: DecodeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for idle_s, started in ((0, 1), (IDLE_S / 2, 1), (2 * IDLE_S, 2)):
        times.now_s += idle_s
        look(watch, monkeypatch)
        with watch.watching(abortable=True):
            assert len(times.started) == started


def test_the_flag_is_freed_once_and_is_not_set_later(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    watch = DecodeWatch(2, library())
    free = watch._ggml.ggml_free
    monkeypatch.setattr(watch, "_ggml", SimpleNamespace(ggml_free=freed.append, ggml_set_no_alloc=pytest.fail))
    for _ in range(2):
        watch.close()
    watch._set_abort(True)
    assert freed == [watch.flag]
    free(watch.flag)


@pytest.mark.parametrize("mode", [DecodeSettings("plain"), DecodeSettings("lookahead", window=5, ngram=4, guesses=5)])
def test_a_text_stays_the_same_where_every_third_step_is_retried(
    mode: DecodeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, statuses, watches, texts = lib.llama_decode, list[int](), list[DecodeWatch](), list[Sequence[int]]()

    def aborted(*arguments: object) -> int:
        (watch,) = watches
        if watch._abortable and len(statuses) % 3 == 0:
            watch._set_abort(True)
        statuses.append(decode(*arguments))
        return statuses[-1]

    def made(threads: int, log: Log) -> DecodeWatch:
        # Two threads would wait for each other beside other tests.
        watches[:] = [DecodeWatch(1, log)]
        return watches[0]

    monkeypatch.setattr("lacli.llamacpp.context.DecodeWatch", made)
    easy = ModelSettings(context=512, threads=2, threads_batch=2, gives_way=True)
    prompt = "def push(self, value):\n    self.values.append(value)\n" * 11
    for retries in (False, True):
        if retries:
            monkeypatch.setattr(lib, "llama_decode", aborted)
        sampling = SamplingSettings(ignore_eos=True)
        with load(model_settings=easy, decode_settings=mode, sampling=sampling) as session:
            tokens = session.model.tokenize(prompt)
            generation = session.generate(tokens, 90)
            for _ in generation:
                pass
            texts.append(generation.answer().tokens)
    assert statuses.count(ABORTED) >= len(statuses) // 3 - 2 and texts[0] == texts[1] and len(texts[0]) == 90


def test_threads_that_wait_for_a_core_rest_and_are_tried_again_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.llamacpp.watch._disk_reads", lambda: 0)
    monkeypatch.setattr("lacli.llamacpp.watch.idle_seconds", lambda: None)
    threads, now_s = ThreadsInUse(4), 0.0

    def decode(cores: float, seconds: float = OBSERVED_S) -> int:
        nonlocal now_s
        now_s += seconds
        return threads.observe(seconds, cores * seconds, now_s)

    assert [decode(4 * MIN_CORE_SHARE), decode(2.7, OBSERVED_S / 2), decode(2.7, OBSERVED_S / 2)] == [4, 4, 2]
    assert [decode(2, RETRY_S - 0.01), decode(2, 0.02)] == [2, 4]
    assert [decode(0.1), decode(1, 2 * RETRY_S - 0.01), decode(1, 0.02)] == [1, 1, 4], "the second pause is longer"
    for _ in range(9):
        decode(1)
        decode(1, MAX_RETRY_S)
    assert threads.count == 4, "no pause is longer than a minute"
    assert [decode(4), decode(1), decode(1, RETRY_S)] == [4, 1, 4], "a calm moment begins anew"


def test_threads_rest_on_while_no_core_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.llamacpp.watch._disk_reads", lambda: 0)
    idle_s = 100.0
    monkeypatch.setattr("lacli.llamacpp.watch.idle_seconds", lambda: idle_s)
    threads = ThreadsInUse(4)
    assert [threads.observe(1, 2, 1), threads.observe(1, 2, 1 + RETRY_S)] == [2, 2], "no core was idle"
    idle_s += 2 * MIN_IDLE_SHARE * RETRY_S - 0.01
    assert threads.observe(1, 2, 1 + 2 * RETRY_S) == 2, "too little was"
    idle_s += 2 * MIN_IDLE_SHARE * RETRY_S
    assert threads.observe(1, 2, 1 + 3 * RETRY_S) == 4


def test_idle_seconds_are_those_of_all_cores(tmp_path: Path) -> None:
    told = tmp_path / "stat"
    told.write_text("cpu  1 2 3 400 50 6 7 0 0 0\ncpu0 1 2 3 400 50 6 7 0 0 0\n")
    assert idle_seconds(told) == 450 / os.sysconf("SC_CLK_TCK")
    told.write_text("nothing")
    assert idle_seconds(told) is None is idle_seconds(tmp_path / "none")


def test_threads_that_wait_for_a_disk_all_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.llamacpp.watch.idle_seconds", lambda: None)
    reads = 0
    monkeypatch.setattr("lacli.llamacpp.watch._disk_reads", lambda: reads)
    threads = ThreadsInUse(2)
    reads = 1
    assert threads.observe(1, 0, 1) == 2
    assert threads.observe(1, 0, 2) == 1
    reads = 2
    assert [threads.observe(1, 0, 3 + RETRY_S), threads.observe(1, 0, 4 + RETRY_S)] == [2, 1], "read while they rested"

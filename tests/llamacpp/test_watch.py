"""The watch over a decode with a clock of the test's own, and texts whose steps it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Thread

import llama_cpp as lib
import pytest

from lacli.llamacpp import watch as watch_module
from lacli.llamacpp.context import ABORTED
from lacli.llamacpp.devices import OBSERVED_S
from lacli.llamacpp.library import Log, library
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.llamacpp.watch import IDLE_S, DecodeWatch
from lacli.settings import DecodeSettings
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
    monkeypatch.setattr("lacli.llamacpp.devices._disk_reads", lambda: 0)
    monkeypatch.setattr(Thread, "start", lambda thread: times.started.append(thread.name))
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
    watch._look()


def is_asked_to_end(watch: DecodeWatch) -> bool:
    """What llama.cpp is told before an operation."""
    return bool(watch.callback(watch.flag))


def test_a_decode_whose_threads_lack_cores_is_ended_and_fewer_take_the_next(
    times: Times, watch: DecodeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watch.watching(ends=True):
        times.now_s += OBSERVED_S / 2
        look(watch, monkeypatch)
        assert not is_asked_to_end(watch), "a step or two may wait by chance"
        times.now_s, times.core_s = times.now_s + OBSERVED_S, times.core_s + OBSERVED_S
        look(watch, monkeypatch)
        assert is_asked_to_end(watch) and watch.ends
    assert watch.threads == 1 and not is_asked_to_end(watch)
    with watch.watching(ends=True):
        times.now_s += 2 * OBSERVED_S
        look(watch, monkeypatch)
        assert not is_asked_to_end(watch), "one thread waits for no other"


@pytest.mark.parametrize(("ends", "cores"), [(True, 2), (False, 1)])
def test_a_decode_goes_on_where_its_threads_have_cores_or_it_may_not_be_ended(
    ends: bool, cores: int, times: Times, watch: DecodeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watch.watching(ends=ends):
        times.now_s, times.core_s = 2 * OBSERVED_S, 2 * OBSERVED_S * cores
        look(watch, monkeypatch)
        assert not is_asked_to_end(watch)
    assert watch.threads == cores, "the next one is decoded by those that had a core"


def test_the_thread_ends_where_nothing_is_decoded_and_the_next_decode_starts_another(
    times: Times, watch: DecodeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for idle_s, started in ((0, 1), (IDLE_S / 2, 1), (2 * IDLE_S, 2)):
        times.now_s += idle_s
        look(watch, monkeypatch)
        with watch.watching(ends=True):
            assert len(times.started) == started


def test_it_is_closed_once(times: Times) -> None:
    watch = DecodeWatch(2, library())
    watch.close()
    watch.close()


@pytest.mark.parametrize("mode", [DecodeSettings(), DecodeSettings("lookahead", window=5, ngram=4, guesses=5)])
def test_a_text_stays_the_same_where_every_third_step_is_begun_anew(
    mode: DecodeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, statuses, watches, texts = lib.llama_decode, list[int](), list[DecodeWatch](), list[Sequence[int]]()

    def ended(*arguments: object) -> int:
        (watch,) = watches
        if watch._may_end and len(statuses) % 3 == 0:
            watch._tell(ends=True)
        statuses.append(decode(*arguments))
        return statuses[-1]

    def made(threads: int, log: Log) -> DecodeWatch:
        watches[:] = [DecodeWatch(threads, log)]
        return watches[0]

    monkeypatch.setattr("lacli.llamacpp.context.DecodeWatch", made)
    easy = ModelSettings(context=256, threads=2, threads_batch=2, gives_way=True)
    # Behind 187 tokens the context is shifted on the way.
    prompt = "def push(self, value):\n    self.values.append(value)\n" * 11
    for begun_anew in (False, True):
        if begun_anew:
            monkeypatch.setattr(lib, "llama_decode", ended)
        sampling = SamplingSettings(ignore_eos=True)
        with load(model_settings=easy, decode_settings=mode, sampling=sampling) as session:
            generation = session.generate(session.model.tokenize(prompt), 90, n_keep=4)
            for _ in generation:
                pass
            texts.append(generation.answer().tokens)
    assert statuses.count(ABORTED) > 10 and texts[0] == texts[1] and len(texts[0]) == 90

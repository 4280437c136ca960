"""Threads that rest while other programs take the cores, and a watch that aborts a decode which fewer finish sooner.

llama.cpp calls an abort callback after each operation of a decode. One in Python would take some microseconds each
time, so here the callback is a function of ggml's that returns a flag, and a thread sets that flag.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, RLock, Thread
from time import perf_counter, process_time
from typing import Any

from lacli.llamacpp.library import Log, declared, lib
from lacli.stats import MIN_CORE_SHARE

OBSERVED_S = 0.25
"""Seconds of decoding over which the threads' share of the cores is taken.

Steps of the 0.5B that wait for a thread take 36 to 110 ms on two cores: a few, so that none of them decides alone.
"""

RETRY_S, MAX_RETRY_S = 3.0, 60.0
"""Seconds until all threads are tried again; each failed try doubles them, up to the second.

A try beside programs that go on takes OBSERVED_S to twice that at a half to a hundredth of the speed: 8 to 16% of the
time at first, 0.4 to 0.8% at last; a whole step where that cannot be aborted.
"""

MIN_IDLE_SHARE = 0.5
"""Share of a core that has to be idle for each thread that rests, or trying all would only hold them up."""

IDLE_S = 2.0
"""Seconds without a decode after which the thread ends, chosen: an answer's steps come more often, its turns do not."""


class InitParameters(ctypes.Structure):
    """ggml_init_params: bytes of memory, which ggml allocates where `memory` is None, and no_alloc."""

    _fields_ = [("memory_bytes", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


FUNCTIONS: tuple[tuple[str, list[Any], Any], ...] = (
    ("ggml_init", [InitParameters], ctypes.c_void_p),
    ("ggml_free", [ctypes.c_void_p], None),
    ("ggml_get_no_alloc", [ctypes.c_void_p], ctypes.c_bool),
    ("ggml_set_no_alloc", [ctypes.c_void_p, ctypes.c_bool], None),
)
"""ggml_get_no_alloc has the shape of an abort callback, so an empty ggml_context is the flag: no Python reads it."""


class DecodeWatch:
    """Counts how many of a context's threads have a core, and aborts a decode of all threads that has too few.

    `threads`: of the next decode. `aborts`: True while a decode is to end. `callback`, `flag`: for
    llama_set_abort_callback. `log`: muted meanwhile, since llama.cpp logs an abort as a failure.
    """

    def __init__(self, threads: int, log: Log) -> None:
        self.threads = self._all = threads
        self.aborts = self._abortable = False
        self._in_use, self._log = ThreadsInUse(threads), log
        self._ggml = declared(*FUNCTIONS)
        self.callback = ctypes.cast(self._ggml.ggml_get_no_alloc, lib.ggml_abort_callback)
        self.flag = self._ggml.ggml_init(InitParameters())
        # A collection in the thread may drop the context, and close this there.
        self._lock, self._closed = RLock(), Event()
        self._thread: Thread | None = None
        # The seconds, and those of all processors, at which the threads were last looked at.
        self._seen = 0.0, 0.0

    @contextmanager
    def watching(self, *, abortable: bool) -> Iterator[None]:
        """Watch a decode inside, and decide about `threads` behind it. `abortable`: it may be aborted for that."""
        # Fewer threads are not aborted for still fewer, and all are not tried again in the middle of a decode.
        abortable = abortable and self.threads == self._all
        with self._lock:
            # Ctrl-C may have kept the last decode from its end below.
            self._set_abort(False)
            self._seen = perf_counter(), process_time()
            if abortable and not (self._thread and self._thread.is_alive()):
                self._start()
        try:
            self._abortable = abortable
            yield
        finally:
            self._abortable = False
            with self._lock:
                self._set_abort(False)
                self._observe()

    def close(self) -> None:
        """Free the flag, after the context that reads it."""
        with self._lock:
            if not self._closed.is_set():
                self._closed.set()
                self._ggml.ggml_free(self.flag)

    def _start(self) -> None:
        self._thread = Thread(target=self._observe_running, daemon=True)
        with suppress(RuntimeError):  # the system gives no more threads; a decode does without
            self._thread.start()

    def _observe_running(self) -> None:
        """Look at the running decode every OBSERVED_S seconds, and return after IDLE_S without one."""
        while not self._closed.wait(OBSERVED_S):
            with self._lock:
                if self._closed.is_set():
                    return
                seen_s = perf_counter() - self._seen[0]
                if not self._abortable and seen_s > IDLE_S:
                    self._thread = None
                    return
                if self._abortable and not self.aborts and seen_s >= OBSERVED_S:
                    self._observe()
                    self._set_abort(self.threads < self._all)

    def _observe(self) -> None:
        """Let threads rest that other programs have kept waiting for a core since the last time."""
        (begin, core_begin), self._seen = self._seen, (perf_counter(), process_time())
        end, core_end = self._seen
        self.threads = self._in_use.observe(end - begin, core_end - core_begin, end)

    def _set_abort(self, aborts: bool) -> None:
        if aborts != self.aborts and not self._closed.is_set():
            self.aborts = self._log.muted = aborts
            self._ggml.ggml_set_no_alloc(self.flag, aborts)


class ThreadsInUse:
    """The threads of a context's next decode: all, or fewer while other programs keep some waiting for a core.

    All threads wait for the last one many times a step, so one without a core holds up all (docs/measured.md).
    """

    def __init__(self, threads: int) -> None:
        self._all = self.count = threads
        self._pause_s, self._until_s, self._rested_s = RETRY_S, 0.0, 0.0
        self._idle_s: float | None = None
        self._begin()

    def observe(self, seconds: float, core_s: float, now_s: float) -> int:
        """Record a decode of `seconds` and `core_s` processor seconds that ended at `now_s`.

        Return the threads of the next one.
        """
        if self.count < self._all:
            if now_s >= self._until_s:
                if self._finds_cores(now_s):
                    self.count = self._all
                    self._begin()
                else:
                    self._rest(now_s, RETRY_S)
            return self.count
        self._seconds += seconds
        self._core_s += core_s
        if self._seconds >= OBSERVED_S:
            cores, is_reading = self._core_s / self._seconds, _disk_reads() > self._reads
            if is_reading or cores >= MIN_CORE_SHARE * self._all:
                # Waiting for weights from a disk is not waiting for a core.
                self._pause_s = RETRY_S
            else:
                self.count = max(int(cores), 1)
                self._rest(now_s, self._pause_s)
                self._pause_s = min(2 * self._pause_s, MAX_RETRY_S)
            self._begin()
        return self.count

    def _rest(self, now_s: float, pause_s: float) -> None:
        self._until_s = now_s + pause_s
        self._rested_s, self._idle_s = now_s, idle_seconds()

    def _finds_cores(self, now_s: float) -> bool:
        """True where cores were idle while threads rested, or the system does not say."""
        idle_s = idle_seconds()
        if idle_s is None or self._idle_s is None:
            return True
        wanted_s = MIN_IDLE_SHARE * (self._all - self.count) * (now_s - self._rested_s)
        return idle_s - self._idle_s >= wanted_s

    def _begin(self) -> None:
        self._seconds = self._core_s = 0.0
        self._reads = _disk_reads()


def idle_seconds(told: Path = Path("/proc/stat")) -> float | None:
    """Seconds that all cores together have been idle since the machine started; None where the system does not say."""
    try:
        idle, waiting = told.read_text().split(maxsplit=6)[4:6]
        return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None


def _disk_reads() -> int:
    """Count the page faults of this process that a disk had to serve; 0 where the system does not say."""
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:
        return 0
    return getrusage(RUSAGE_SELF).ru_majflt

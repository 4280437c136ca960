"""A watch over llama_decode while other programs take the cores: it aborts a decode that fewer threads finish sooner.

llama.cpp calls an abort callback after each operation of a decode. One in Python would take some microseconds each
time, so here the callback is a function of ggml's that returns a flag, and a thread sets that flag.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, RLock, Thread
from time import perf_counter, process_time
from typing import Any

from lacli.llamacpp.devices import OBSERVED_S, ThreadsInUse
from lacli.llamacpp.library import Log, declared, lib

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

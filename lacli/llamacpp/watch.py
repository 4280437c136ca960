"""A watch over llama_decode while other programs take the cores: it ends a step that fewer threads finish sooner.

llama.cpp asks an abort callback before each operation of a step. One in Python would take some microseconds each time,
so here the callback is a function of ggml's that returns a flag, and a thread sets that flag.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from time import perf_counter, process_time
from typing import Any

from lacli.llamacpp.devices import OBSERVED_S, ThreadsInUse
from lacli.llamacpp.library import Log, declared, lib

IDLE_S = 2.0
"""Seconds without a decode after which the thread ends; the next decode starts another in 0.1 ms."""


class Parameters(ctypes.Structure):
    """ggml_init_params: `memory_bytes` that ggml allocates itself where `memory` is None."""

    _fields_ = [("memory_bytes", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


FUNCTIONS: tuple[tuple[str, list[Any], Any], ...] = (
    ("ggml_init", [Parameters], ctypes.c_void_p),
    ("ggml_free", [ctypes.c_void_p], None),
    ("ggml_get_no_alloc", [ctypes.c_void_p], ctypes.c_bool),
    ("ggml_set_no_alloc", [ctypes.c_void_p, ctypes.c_bool], None),
)
"""An empty context of ggml's: its no_alloc means nothing in it, and is read by a function that suits as a callback."""


class DecodeWatch:
    """Counts how many of a context's threads have a core, and ends a decode that has too few.

    `threads`: of the next decode. `callback`, `flag`: for llama_set_abort_callback. `log`: is muted at an end, which
    llama.cpp logs as a failure.
    """

    def __init__(self, threads: int, log: Log) -> None:
        self.threads = self._begun_with = threads
        self._in_use, self._log = ThreadsInUse(threads), log
        self._ggml = declared(*FUNCTIONS)
        self.callback = ctypes.cast(self._ggml.ggml_get_no_alloc, lib.ggml_abort_callback)
        self.flag = self._ggml.ggml_init(Parameters())
        self._lock, self._closed = Lock(), Event()
        self._thread: Thread | None = None
        self._may_end = self.ends = False
        # The seconds, and those of all processors, at which the threads were last looked at.
        self._seen = 0.0, 0.0

    @contextmanager
    def watching(self, *, ends: bool) -> Iterator[None]:
        """Watch a decode inside. `ends`: it may be ended, and `threads` are then fewer, to begin it anew."""
        with self._lock:
            self._seen = perf_counter(), process_time()
            self._begun_with, self._may_end = self.threads, ends
            if ends and not self._thread:
                self._thread = Thread(target=self._look, daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._observe()
                self._may_end = False
                if self.ends:
                    self._tell(ends=False)

    def close(self) -> None:
        """Free the flag, behind the context that has it."""
        with self._lock:
            if not self._closed.is_set():
                self._closed.set()
                self._ggml.ggml_free(self.flag)

    def _look(self) -> None:
        """Look at the decode that runs, again and again until there is none."""
        while not self._closed.wait(OBSERVED_S):
            with self._lock:
                seen_s = perf_counter() - self._seen[0]
                if not self._may_end and seen_s > IDLE_S:
                    self._thread = None
                    return
                if self._may_end and seen_s >= OBSERVED_S:
                    self._observe()
                    if self.threads < self._begun_with:
                        self._tell(ends=True)

    def _observe(self) -> None:
        """Let threads rest that other programs have kept waiting for a core since the last time."""
        (begin, core_begin), self._seen = self._seen, (perf_counter(), process_time())
        end, core_end = self._seen
        self.threads = self._in_use.observe(end - begin, core_end - core_begin, end)

    def _tell(self, *, ends: bool) -> None:
        self.ends = self._log.muted = ends
        self._ggml.ggml_set_no_alloc(self.flag, ends)

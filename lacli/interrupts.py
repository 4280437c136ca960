"""Ctrl-C: sections that ignore it, hear it or end by it at once, also during a call of llama.cpp."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import inf
from threading import Thread, current_thread, main_thread
from time import monotonic

_undoing: list[Callable[[], None]] = []


def without_ctrl_c() -> AbstractContextManager[None]:
    """Ignore Ctrl-C inside: the work is short and must not be interrupted, or handles Ctrl-C itself."""
    # A handler of ours is not inherited by programs, as ignoring would be.
    return ctrl_c_calls(lambda: None)


@contextmanager
def ctrl_c_calls(heard: Callable[[], None]) -> Iterator[None]:
    """Call `heard` at Ctrl-C inside, instead of a KeyboardInterrupt, which callbacks of C code would lose.

    An ignored Ctrl-C, a program's own handler and the threads that hear no signals stay as they are.
    """
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: heard())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def late_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt for a Ctrl-C at the end of the block; yield whether there was one so far."""
    pressed: list[bool] = []
    with ctrl_c_calls(lambda: pressed.append(True)):
        yield lambda: bool(pressed)
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def ctrl_c_ends_at_once() -> Iterator[None]:
    """End the process at Ctrl-C inside: while a model loads, an exception in llama.cpp's callbacks would be lost."""
    with ctrl_c_calls(_end), _listening(endured=0):
        yield


def second_ctrl_c_ends(nervous_s: float = 0.0) -> AbstractContextManager[None]:
    """End the process at the second Ctrl-C inside: the first one may wait for a call of llama.cpp.

    `nervous_s`: ignore a repeated SIGINT within this many seconds; `timeout` sends two.
    """
    return _listening(endured=1, nervous_s=nervous_s)


def put_terminal_back() -> None:
    """Undo all changes to the terminal, before the process ends at once."""
    for undo in reversed(_undoing):
        undo()


@contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Let `put_terminal_back` call `undo` inside."""
    _undoing.append(undo)
    try:
        yield
    finally:
        _undoing.remove(undo)


@contextmanager
def _listening(endured: int, nervous_s: float = 0.0) -> Iterator[None]:
    """Let a thread receive signals too, since Python runs no handler during a call of llama.cpp.

    `endured`: presses of Ctrl-C that do not end the process. `nervous_s`: as `second_ctrl_c_ends` takes it.
    """
    if sys.platform == "win32":
        yield
        return
    heard, write = os.pipe()
    os.set_blocking(write, False)
    listener = Thread(target=_listen, args=(heard, endured, nervous_s), daemon=True)
    listener.start()
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write)
        listener.join()
        os.close(heard)


def _listen(heard: int, endured: int, nervous_s: float) -> None:
    """Read signal numbers as they arrive, until the other end is closed."""
    pressed, counted = 0, -inf
    while numbers := os.read(heard, 1):
        if numbers[0] == signal.SIGINT and monotonic() - counted >= nervous_s:
            pressed, counted = pressed + 1, monotonic()
            if pressed > endured:
                _end()


def _end() -> None:
    """Put the terminal back and end the process as Ctrl-C does; the thread and the handler may both call it."""
    put_terminal_back()
    if sys.platform != "win32":
        # As in __main__.py, but signal.signal is for the main thread alone.
        ctypes.pythonapi.PyOS_setsig(signal.SIGINT, None)
        signal.raise_signal(signal.SIGINT)
    os._exit(128 + signal.SIGINT)

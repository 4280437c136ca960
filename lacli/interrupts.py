"""Ctrl-C: sections that ignore it, note it or end the process at once, even during a call of llama.cpp."""

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
    """Ignore Ctrl-C in the block: its work is short and must finish, or it handles Ctrl-C itself."""
    # Child processes would inherit SIG_IGN; they do not inherit a handler.
    return ctrl_c_calls(lambda: None)


@contextmanager
def ctrl_c_calls(heard: Callable[[], None]) -> Iterator[None]:
    """Call `heard` for each Ctrl-C in the block. A KeyboardInterrupt would be lost in callbacks of C code.

    Does nothing if Ctrl-C is ignored, if the program has its own handler, and outside of the main thread.
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
    """Delay KeyboardInterrupt to the end of the block. Yields a function: was Ctrl-C pressed so far?"""
    pressed: list[bool] = []
    with ctrl_c_calls(lambda: pressed.append(True)):
        yield lambda: bool(pressed)
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def ctrl_c_ends_at_once() -> Iterator[None]:
    """End the process at Ctrl-C in the block: an exception in llama.cpp's callbacks would be lost."""
    with ctrl_c_calls(_end), _listening(endured=0):
        yield


def second_ctrl_c_ends(nervous_s: float = 0.0) -> AbstractContextManager[None]:
    """End the process at the second Ctrl-C in the block. The first one waits for the current call of llama.cpp.

    `nervous_s`: after a counted SIGINT, ignore others for so many seconds; `timeout` sends two.
    """
    return _listening(endured=1, nervous_s=nervous_s)


def put_terminal_back() -> None:
    """Undo all changes to the terminal, before the process ends at once."""
    for undo in reversed(_undoing):
        undo()


@contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Let `put_terminal_back` call `undo` during the block."""
    _undoing.append(undo)
    try:
        yield
    finally:
        _undoing.remove(undo)


@contextmanager
def _listening(endured: int, nervous_s: float = 0.0) -> Iterator[None]:
    """Let a thread receive signals too: Python runs no handler during a call of llama.cpp.

    `endured`: presses of Ctrl-C that do not end the process. `nervous_s`: see `second_ctrl_c_ends`.
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
    """Restore the terminal and end the process by SIGINT; the thread and the handler may both call this."""
    put_terminal_back()
    if sys.platform != "win32":
        # As in __main__.py, but signal.signal works in the main thread only.
        ctypes.pythonapi.PyOS_setsig(signal.SIGINT, None)
        signal.raise_signal(signal.SIGINT)
    os._exit(128 + signal.SIGINT)

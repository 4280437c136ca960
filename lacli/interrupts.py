"""What Ctrl-C does in a block: nothing, a call, or the end of the process, even during a call of llama.cpp."""

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
    """Ignore Ctrl-C in the block: a short block that must finish, or a block that sets its own handler."""
    # Child processes would inherit SIG_IGN; they do not inherit a handler.
    return ctrl_c_calls(lambda: None)


@contextmanager
def ctrl_c_calls(on_press: Callable[[], None]) -> Iterator[None]:
    """Call `on_press` at each Ctrl-C in the block. A KeyboardInterrupt would be lost in callbacks of C code.

    Changes nothing if Ctrl-C is ignored, if the program has its own handler, and outside of the main thread.
    """
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: on_press())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def late_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Delay KeyboardInterrupt to the end of the block. Yields a function that tells whether Ctrl-C was pressed."""
    pressed: list[bool] = []
    with ctrl_c_calls(lambda: pressed.append(True)):
        yield lambda: bool(pressed)
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def ctrl_c_ends_at_once() -> Iterator[None]:
    """End the process at Ctrl-C in the block. An exception would be lost in llama.cpp's callbacks."""
    with ctrl_c_calls(_end), _listening(endured=0):
        yield


def second_ctrl_c_ends(merge_s: float = 0.0) -> AbstractContextManager[None]:
    """End the process at the second Ctrl-C in the block. The first raises KeyboardInterrupt after llama.cpp's call.

    `merge_s`: seconds after a counted SIGINT in which others are not counted, since `timeout` sends two.
    """
    return _listening(endured=1, merge_s=merge_s)


def put_terminal_back() -> None:
    """Call all functions registered with `undone`, the latest first, before the process ends at once."""
    for undo in reversed(_undoing):
        undo()


@contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Register `undo`, which restores the terminal, for `put_terminal_back` during the block."""
    _undoing.append(undo)
    try:
        yield
    finally:
        _undoing.remove(undo)


@contextmanager
def _listening(endured: int, merge_s: float = 0.0) -> Iterator[None]:
    """Count Ctrl-C in a thread during the block, because Python runs no handler during a call of llama.cpp.

    `endured`: presses that do not end the process; the next does. `merge_s`: seconds in which only one press counts.
    """
    if sys.platform == "win32":
        yield
        return
    pipe, write = os.pipe()
    os.set_blocking(write, False)
    listener = Thread(target=_listen, args=(pipe, endured, merge_s), daemon=True)
    listener.start()
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write)
        listener.join()
        os.close(pipe)


def _listen(pipe: int, endured: int, merge_s: float) -> None:
    """Count SIGINTs in the descriptor `pipe`, at most one in `merge_s` s. More than `endured` end the process."""
    pressed, counted = 0, -inf
    while numbers := os.read(pipe, 1):
        if numbers[0] == signal.SIGINT and monotonic() - counted >= merge_s:
            pressed, counted = pressed + 1, monotonic()
            if pressed > endured:
                _end()


def _end() -> None:
    put_terminal_back()
    if sys.platform != "win32":
        # As in __main__.py, but signal.signal works in the main thread only.
        ctypes.pythonapi.PyOS_setsig(signal.SIGINT, None)
        signal.raise_signal(signal.SIGINT)
    os._exit(128 + signal.SIGINT)

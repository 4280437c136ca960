"""Signals: sections that ignore Ctrl-C or end by it at once, and a terminal restored before the process ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from threading import Lock, Thread
from time import monotonic

from lacli.text.files import is_terminal

if sys.platform != "win32":
    import termios

RESET = b"\x1b[0m\x1b[J\x1b[?2004l\x1b[?25h\n"
"""Ends a prompt drawn by prompt_toolkit: no colour, nothing below, no bracketed paste, a cursor, a new line."""

LFLAG = 3
"""The index of the flags ECHO and ICANON in a terminal's attributes."""

_undoing: list[Callable[[], None]] = []

_ended = Lock()


@contextmanager
def without_ctrl_c() -> Iterator[None]:
    """Ignore Ctrl-C inside: the work is short and must not be interrupted, or handles Ctrl-C itself."""
    # A handler of ours is not inherited by programs, as ignoring would be.
    with ctrl_c_calls(lambda: None):
        yield


@contextmanager
def ctrl_c_calls(heard: Callable[[], None]) -> Iterator[None]:
    """Call `heard` at Ctrl-C inside, where no KeyboardInterrupt is to come in the middle of something."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: heard())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ctrl_c_ends_at_once() -> Iterator[None]:
    """End the process at Ctrl-C inside: while a model loads, an exception in llama.cpp's callbacks would be lost."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # a background job's Ctrl-C is not meant for it
        yield
        return
    with _listening(), _handled_by_end([signal.SIGINT]):
        yield


@contextmanager
def second_ctrl_c_ends(nervous_s: float = 0.0) -> Iterator[None]:
    """End the process at the second Ctrl-C inside: the first one may wait for a call of llama.cpp.

    `nervous_s`: ignore a repeated SIGINT within this many seconds; `timeout` sends two.
    """
    with _listening(endured=1, nervous_s=nervous_s):
        yield


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
def hidden_keys() -> Iterator[None]:
    """Hide keys typed on stdout's terminal; they wait for the next program that reads.

    The terminal is restored before a signal ends the process, whose exit code is then 128 + the signal's number.
    """
    if sys.platform == "win32" or not is_terminal(sys.stdout) or not _in_front():
        yield
        return
    found = termios.tcgetattr(1)
    hidden = [*found[:LFLAG], found[LFLAG] & ~termios.ECHO, *found[LFLAG + 1 :]]

    def show() -> None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(1, termios.TCSANOW, found)

    def put_back() -> None:
        show()
        with suppress(OSError):
            os.write(1, RESET)

    deadly = [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
    with undone(put_back), _listening(), _handled_by_end(deadly):
        termios.tcsetattr(1, termios.TCSANOW, hidden)
        try:
            yield
        finally:
            show()


def _in_front() -> bool:
    """Whether the process may change the terminal; the system stops a background job that tries."""
    try:
        return os.tcgetpgrp(1) == os.getpgrp()
    except OSError:  # it is not the terminal that we were started from, and has no jobs of ours
        return True


@contextmanager
def wakeup_fd_kept() -> Iterator[None]:
    """Return signals to the listening thread after an event loop, which takes them for itself."""
    before = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)


@contextmanager
def _handled_by_end(numbers: list[signal.Signals]) -> Iterator[None]:
    """Let these signals end the process at once inside, except those that are ignored."""
    before = {number: signal.getsignal(number) for number in numbers}
    heeded = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    try:
        for number in heeded:
            signal.signal(number, _end)
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])


@contextmanager
def _listening(endured: float = inf, nervous_s: float = 0.0) -> Iterator[None]:
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


def _listen(heard: int, endured: float, nervous_s: float) -> None:
    """Read signal numbers as they arrive, until the other end is closed."""
    pressed, counted = 0, -inf
    while numbers := os.read(heard, 1):
        if numbers[0] == signal.SIGINT and monotonic() - counted >= nervous_s:
            pressed, counted = pressed + 1, monotonic()
        if pressed > endured or signal.getsignal(numbers[0]) is _end:
            _end(numbers[0], None)


def _end(number: int, frame: object) -> None:
    """Put the terminal back and end the process; called by the thread and by the handler."""
    if _ended.acquire(blocking=False):
        put_terminal_back()
        if number == signal.SIGINT and sys.platform != "win32":
            # As in __main__.py, but signal.signal is for the main thread alone.
            ctypes.pythonapi.PyOS_setsig(number, None)
            signal.raise_signal(number)
        os._exit(128 + number)

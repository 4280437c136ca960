"""Sections without Ctrl-C, and restoring the terminal when a signal ends the process.

How Ctrl-C ends a process that Python cannot end is `ending.py`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from select import select
from threading import Lock, Thread
from typing import Any

from lacli.text.files import is_terminal

if sys.platform != "win32":
    import termios

RESET = b"\x1b[0m\x1b[J\x1b[?2004l\x1b[?25h\n"
"""Ends a prompt that prompt_toolkit has drawn: no colour, nothing below, no bracketed paste, a cursor, a new line."""

MODES = 3
"""Where ECHO and ICANON are in what termios knows of a terminal."""

_undoing: list[Callable[[], None]] = []

_ended = Lock()


@contextmanager
def without_ctrl_c() -> Iterator[None]:
    """Ignore Ctrl-C inside: the work is short and must not be cut, or handles Ctrl-C itself."""
    # A handler of ours is not inherited by programs, as ignoring would be.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def put_terminal_back() -> None:
    """Undo what was done to the terminal, before the process ends at once."""
    for undo in reversed(_undoing):
        undo()


@contextmanager
def undone_by_signals(undo: Callable[[], None]) -> Iterator[None]:
    """While this lasts, a signal that ends the process calls `undo` first; the exit code is 128 + the signal's number.

    A thread hears it too, since in the middle of a call of llama.cpp's Python runs no handler.
    """
    if sys.platform == "win32":
        yield
        return
    deadly = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    numbers = [number for number in deadly if signal.getsignal(number) is signal.SIG_DFL]
    heard, write = os.pipe()
    os.set_blocking(write, False)
    listener = Thread(target=_listen, args=(heard,), daemon=True)
    _undoing.append(undo)
    listener.start()
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        for number in numbers:
            signal.signal(number, _end)
        yield
    finally:
        signal.set_wakeup_fd(before)
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        _undoing.remove(undo)
        os.close(write)
        listener.join()
        os.close(heard)


@contextmanager
def wakeup_fd_kept() -> Iterator[None]:
    """Give signals back to the listening thread after an event loop, which takes them for itself."""
    before = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)


def _listen(heard: int) -> None:
    """Read the numbers of signals as they arrive, until the other end is closed."""
    while numbers := os.read(heard, 1):
        if signal.getsignal(numbers[0]) is _end:
            _end(numbers[0], None)


def _end(number: int, frame: object) -> None:
    """Put the terminal back and end the process; the thread and the handler may both come here."""
    if _ended.acquire(blocking=False):
        put_terminal_back()
        os._exit(128 + number)


class TypedKeys:
    """Show and hide the keys that are typed on the terminal that stdout is."""

    def __init__(self, *, raw: bool) -> None:
        """raw: hidden keys wait for an editor as they were typed, with Backspace and Ctrl-D, and outlast a Ctrl-C."""
        self._raw = raw
        self._found: list[Any] | None = None

    def hide(self) -> None:
        """Show typed keys no more, unless another program hides them already or has the terminal."""
        with suppress(OSError, termios.error):
            found = termios.tcgetattr(1)
            if found[MODES] & termios.ECHO and _in_front():
                self._found = found
                modes = found[MODES] & ~termios.ECHO
                if self._raw:
                    modes = modes & ~(termios.ICANON | termios.IEXTEN) | termios.NOFLSH
                termios.tcsetattr(1, termios.TCSANOW, [*found[:MODES], modes, *found[MODES + 1 :]])

    def show(self) -> None:
        """Leave the terminal as `hide` found it."""
        found, self._found = self._found, None
        with suppress(OSError, termios.error):
            if found and _in_front():
                termios.tcsetattr(1, termios.TCSANOW, found)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Leave the terminal to another program inside this context."""
        self.show()
        try:
            yield
        finally:
            self.hide()

    def stop(self, number: int, frame: object) -> None:
        """Stop the process, as Ctrl-Z asks, and hide the keys again when it goes on."""
        hidden = self._found is not None
        self.show()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self.stop)
        if hidden:
            self.hide()

    def put_back(self) -> None:
        """Show typed keys and end a drawn prompt, before the process ends."""
        self.show()
        # A terminal that takes nothing now would hold the end up.
        with suppress(OSError):
            if self._raw and select([], [1], [], 0)[1]:
                os.write(1, RESET)


@contextmanager
def hidden_keys(*, raw: bool = False) -> Iterator[TypedKeys]:
    """Hide keys that are typed on stdout's terminal; they wait for the next program that reads.

    raw: as `TypedKeys` takes it. The terminal is put back at the end, whatever the end is, and while Ctrl-Z stops us.
    """
    keys = TypedKeys(raw=raw)
    if sys.platform == "win32" or not is_terminal(sys.stdout):
        yield keys
        return
    stops = signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
    with undone_by_signals(keys.put_back):
        try:
            keys.hide()
            if stops:
                signal.signal(signal.SIGTSTP, keys.stop)
            yield keys
        finally:
            with without_ctrl_c():
                if stops:
                    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
                keys.show()


def _in_front() -> bool:
    """Whether the terminal is ours to change; the system stops a background job that tries."""
    try:
        return os.tcgetpgrp(1) == os.getpgrp()
    except OSError:  # it is not the terminal that we were started from, and has no jobs of ours
        return True

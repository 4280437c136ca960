"""How a process ends where Python cannot end it: Ctrl-C inside a C function, and a failed assertion there.

For commands; what they do in between is theirs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from lacli.errors import Interrupted, LacliError
from lacli.llamacpp.library import on_abort
from lacli.terminal.interrupts import put_terminal_back
from lacli.terminal.screen import Screen


@contextmanager
def ctrl_c_ends_at_once() -> Iterator[None]:
    """While a model loads, Python runs only in llama.cpp's log callback, where an exception would be lost."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # a background job's Ctrl-C is not meant for it
        signal.signal(signal.SIGINT, lambda *_: os._exit(Interrupted.exit_code))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def loading_model(screen: Screen) -> Iterator[None]:
    """While a command's model loads; from then on a failed assertion of llama.cpp's is a line, without a core dump."""
    end_at_abort(screen, "the model's file may be damaged: fetch it again")
    with ctrl_c_ends_at_once():
        yield


def end_at_abort(screen: Screen, hint: str) -> None:
    """From here on a failed assertion of llama.cpp's ends the process with a line, and with what to do about it."""
    on_abort(lambda message: _give_up(message, screen, hint))


def _give_up(message: str, screen: Screen, hint: str) -> None:
    put_terminal_back()
    screen.error(LacliError(f"llama.cpp cannot go on: {message.rsplit('/', 1)[-1]}", hint))
    os._exit(LacliError.exit_code)

"""A stretch of the program that Ctrl-C does not reach.

How Ctrl-C ends a process that Python cannot end is `ending.py`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_ctrl_c() -> Iterator[None]:
    """Ctrl-C is nothing here: what happens is quick and must be whole, or takes Ctrl-C itself."""
    # A handler of ours is not inherited by programs, as ignoring would be.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

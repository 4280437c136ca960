"""Which reader fits the process's streams."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lacli.chat.lines import Editing, Lines, PipedLines
from lacli.errors import LacliError
from lacli.terminal.interrupts import hidden_keys
from lacli.terminal.screen import console
from lacli.text.files import is_terminal


@contextmanager
def open_lines(editing: Editing) -> Iterator[Lines]:
    """The reader that fits the process's streams: edited lines on a good terminal, else lines as they come.

    Where lines are edited, keys that are typed at other times are not shown but wait for the next line. Raises
    LacliError when standard input is closed.
    """
    if sys.stdin is None:
        raise LacliError("standard input is closed", "start the chat on a terminal, or give it lines through a pipe")
    if not is_terminal(sys.stdin):
        yield PipedLines(sys.stdin.buffer)
        return
    if not is_terminal(sys.stdout) or console(sys.stdout, editing.color).is_dumb_terminal:
        # stdout may be a file that is to hold the answers alone.
        yield PipedLines(sys.stdin.buffer, sys.stderr if is_terminal(sys.stderr) else None)
        return
    # It takes 0.2 s, which a pipe need not wait for.
    from lacli.chat.terminal import TerminalLines

    with hidden_keys(raw=True) as keys:
        yield TerminalLines(editing, keys)

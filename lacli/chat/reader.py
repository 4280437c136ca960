"""Which reader fits the process's streams."""

from __future__ import annotations

import sys

from lacli.chat.lines import Editing, Lines, PipedLines
from lacli.errors import LacliError
from lacli.streams import is_terminal
from lacli.ui import console


def open_lines(editing: Editing) -> Lines:
    """The reader that fits the process's streams: edited lines on a good terminal, else lines as they come.

    Raises LacliError when standard input is closed.
    """
    if sys.stdin is None:
        raise LacliError("standard input is closed", "start the chat on a terminal, or give it lines through a pipe")
    if not is_terminal(sys.stdin):
        return PipedLines(sys.stdin.buffer)
    if not is_terminal(sys.stdout) or console(sys.stdout, editing.color).is_dumb_terminal:
        # stdout may be a file that is to hold the answers alone.
        return PipedLines(sys.stdin.buffer, sys.stderr if is_terminal(sys.stderr) else None)
    # It takes 0.2 s, which a pipe need not wait for.
    from lacli.chat.terminal import TerminalLines

    return TerminalLines(editing)

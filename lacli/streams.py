"""What the process's streams are, any of which may be closed (None). What is written to them is `ui.py`'s affair."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from typing import TextIO, TypeGuard


def is_terminal(stream: TextIO | None) -> TypeGuard[TextIO]:
    """Whether somebody sits at a stream; nobody does at a closed one."""
    return stream is not None and stream.isatty()


def columns() -> int:
    """Columns of the terminal that stdout is, 0 where it is none."""
    return get_terminal_size().columns if is_terminal(sys.stdout) else 0

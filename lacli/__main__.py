"""Where the program begins, as `lacli` and as `python -m lacli`: Ctrl-C ends it with 130 from its first moment on.

What the program does is `cli/main.py`.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from lacli.errors import Interrupted


def main() -> None:
    """Load the program and run it."""
    # A background job's Ctrl-C is not meant for it, and whoever embeds Python has a handler of his own.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, lambda *_: os._exit(Interrupted.exit_code))
    from lacli.cli.main import main as run

    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except BaseException as end:
        if _is_ctrl_c(end):
            _end_interrupted()
        raise


def _is_ctrl_c(end: BaseException) -> bool:
    """Whether Ctrl-C is what ends the program; where it comes while a class is made, Python calls it a RuntimeError."""
    if isinstance(end, KeyboardInterrupt) or (isinstance(end, SystemExit) and end.code == Interrupted.exit_code):
        return True
    cause = end.__cause__ if isinstance(end, RuntimeError | Interrupted) else None
    return cause is not None and _is_ctrl_c(cause)


def _end_interrupted() -> None:
    """Python itself would end by the signal where Ctrl-C came in text that it executes, as dataclasses are made."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
    os._exit(Interrupted.exit_code)


if __name__ == "__main__":
    main()

"""Where the program begins, as `lacli` and as `python -m lacli`: Ctrl-C ends it from its first moment on."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` first makes enums of it: milliseconds without a handler
import os
import sys

INTERRUPTED = 130
"""What a shell makes of an end by SIGINT; `lacli.errors.Interrupted` has it too, and is loaded later."""


def main() -> None:
    """Load the program and run it."""
    # Left alone: SIGINT ignored, as in a background job, and the handler of a program that embeds Python.
    ours = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if ours:
        _signal.signal(_signal.SIGINT, lambda *_: _end_by_signal())
    from lacli.cli.main import main as run

    try:
        if ours:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        run()
    except BaseException as end:
        if _is_ctrl_c(end):
            for stream in filter(None, (sys.stdout, sys.stderr)):
                try:
                    stream.flush()
                except (OSError, ValueError):
                    continue
            _end_by_signal()
        raise


def _is_ctrl_c(end: BaseException) -> bool:
    """Whether Ctrl-C is what ends the program; where it comes while a class is made, Python calls it a RuntimeError."""
    from lacli.errors import Interrupted

    if isinstance(end, KeyboardInterrupt) or (isinstance(end, SystemExit) and end.code == INTERRUPTED):
        return True
    cause = end.__cause__ if isinstance(end, RuntimeError | Interrupted) else None
    return cause is not None and _is_ctrl_c(cause)


def _end_by_signal() -> None:
    """End as the system's own programs do: a shell's loop goes on behind a program that only exits with 130."""
    if os.name == "posix":
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()

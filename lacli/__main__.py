"""Where the program begins, as `lacli` and as `python -m lacli`: Ctrl-C ends it from its first moment on."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Load the program and run it."""
    # Left alone: SIGINT ignored, as in a background job, and the handler of a program that embeds Python.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from lacli.cli.main import main as run

    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except BaseException as end:
        if _is_ctrl_c(end):
            for stream in filter(None, (sys.stdout, sys.stderr)):
                try:
                    stream.flush()
                except (OSError, ValueError):
                    continue
            # A signal ends the system's own programs too: a shell's loop would go on after an exit with 130.
            if os.name == "posix":
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
            os._exit(128 + signal.SIGINT)
        raise


def _is_ctrl_c(end: BaseException) -> bool:
    """Whether Ctrl-C ends the program; if it comes while a class is made, Python raises a RuntimeError."""
    from lacli.errors import Interrupted

    if isinstance(end, KeyboardInterrupt) or (isinstance(end, SystemExit) and end.code == Interrupted.exit_code):
        return True
    cause = end.__cause__ if isinstance(end, RuntimeError | Interrupted) else None
    return cause is not None and _is_ctrl_c(cause)


if __name__ == "__main__":
    main()

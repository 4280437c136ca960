"""The start of the program, by `lacli` or `python -m lacli`. Ctrl-C ends the program from its first moment on."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Load the program and run it. After Ctrl-C the process ends by SIGINT."""
    # Two cases stay as they are: an ignored SIGINT, as in a background job, and another program's own handler.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from lacli.cli.main import main as run
    from lacli.errors import Interrupted

    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except BaseException as error:
        # If Ctrl-C comes while a class is made, Python raises a RuntimeError.
        end = error.__cause__ if isinstance(error, RuntimeError) else error
        exits = isinstance(end, SystemExit) and end.code == Interrupted.exit_code
        if not (exits or isinstance(end, KeyboardInterrupt)):
            raise
        # The system's programs end by the signal too: a shell's loop would continue after an exit with code 130.
        if os.name == "posix":
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(Interrupted.exit_code)


if __name__ == "__main__":
    main()

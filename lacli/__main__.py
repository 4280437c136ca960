"""Where the program begins, as `lacli` and as `python -m lacli`: Ctrl-C ends it from its first moment on.

What is lost on standard error, on a full disk or with nobody reading, changes neither the answer nor the exit code.

What the program does is `cli/main.py`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` first makes enums of it: milliseconds without a handler
import os
import sys
from io import TextIOWrapper

INTERRUPTED = 130
"""What a shell makes of an end by SIGINT; `lacli.errors.Interrupted` has it too, and is loaded later."""

STDERR = 2
"""The file descriptor of standard error."""


def main() -> None:
    """Load the program and run it."""
    # Left alone: SIGINT ignored, as in a background job, and the handler of a program that embeds Python.
    ours = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if ours:
        _signal.signal(_signal.SIGINT, lambda *_: _end_by_signal())
    _heed_no_errors_of_stderr()
    from lacli.cli.main import main as run

    try:
        if ours:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        run()
    except BaseException as end:
        if _is_ctrl_c(end):
            _end_interrupted()
        raise


class _Heedless(TextIOWrapper):
    """A text stream over standard error that takes whatever is written, also when it cannot go anywhere."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Let what is in the buffers go nowhere, and what follows too where nobody will ever read it."""
        # Imported here: nothing may be loaded before Ctrl-C is heard (tests/cli/test_entry.py).
        from errno import EBADF, EIO, EPIPE

        # A terminal or a reader does not come back; a disk may have room again.
        if error.errno in (EBADF, EIO, EPIPE):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def _heed_no_errors_of_stderr() -> None:
    stream = sys.stderr
    if isinstance(stream, TextIOWrapper) and stream.fileno() == STDERR:
        sys.stderr = _Heedless(
            stream.buffer, stream.encoding, stream.errors, line_buffering=True, write_through=stream.write_through
        )


def _is_ctrl_c(end: BaseException) -> bool:
    """Whether Ctrl-C is what ends the program; where it comes while a class is made, Python calls it a RuntimeError."""
    from lacli.errors import Interrupted

    if isinstance(end, KeyboardInterrupt) or (isinstance(end, SystemExit) and end.code == INTERRUPTED):
        return True
    cause = end.__cause__ if isinstance(end, RuntimeError | Interrupted) else None
    return cause is not None and _is_ctrl_c(cause)


def _end_interrupted() -> None:
    """Python itself would end by the signal where Ctrl-C came in text that it executes, as dataclasses are made."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    _end_by_signal()


def _end_by_signal() -> None:
    """End as the system's own programs do: a shell's loop goes on behind a program that only exits with 130."""
    if os.name == "posix":
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()

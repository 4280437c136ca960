"""Where the program begins, as `lacli` and as `python -m lacli`: Ctrl-C ends it with 130 from its first moment on.

What is lost on standard error, on a full disk or with nobody reading, changes neither the answer nor the exit code.

What the program does is `cli/main.py`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` first makes enums of it: milliseconds without a handler
import os
import sys
from io import BufferedWriter, FileIO, TextIOWrapper

INTERRUPTED = 130
"""`lacli.errors.Interrupted` has it too, and is loaded later."""

STDERR = 2
"""The file descriptor of standard error."""


def main() -> None:
    """Load the program and run it."""
    # Left alone: SIGINT ignored, as in a background job, and the handler of a program that embeds Python.
    ours = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if ours:
        _signal.signal(_signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
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


class _Heedless(FileIO):
    """A stream that takes whatever is written, also when it cannot go anywhere."""

    def write(self, data: object, /) -> int:  # `typing` has a better word and is not loaded yet
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:
            return len(data)  # type: ignore[arg-type]


def _heed_no_errors_of_stderr() -> None:
    """Let standard error lose what it cannot write; a console of Windows stays as it is."""
    stream = sys.stderr
    if not isinstance(stream, TextIOWrapper) or stream.fileno() != STDERR:
        return
    # Under PYTHONUNBUFFERED it has no buffer.
    if type(getattr(stream.buffer, "raw", stream.buffer)) is FileIO:
        file = BufferedWriter(_Heedless(STDERR, "w", closefd=False))
        sys.stderr = TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=True)


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
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()

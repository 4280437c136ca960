"""A user's input: the prompt from files, a pipe and an option; and whether there is a terminal, and its width."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from select import select
from shutil import get_terminal_size
from typing import TextIO, TypeGuard

from lacli.errors import LacliError, UsageError, reason_of
from lacli.text.files import check_text, decode, read_text, read_to_end

PAGE = 80
"""The width of texts without a terminal, in columns."""

STDIN = "-"


def is_terminal(stream: TextIO | None) -> TypeGuard[TextIO]:
    return stream is not None and stream.isatty()


def terminal_columns() -> int:
    """Return the columns of stdout's terminal; 0 if stdout is not a terminal."""
    return get_terminal_size().columns if is_terminal(sys.stdout) else 0


def read_question(
    prompt: str | None,
    files: Sequence[str],
    *,
    model: str = "",
    stdin: bool = True,
    say: Callable[[str], None] = lambda sentence: None,
) -> str:
    """Return the prompt: `files`, piped input and `prompt` in this order, separated by blank lines.

    The file or prompt `-` reads standard input, a terminal too. `model`: its name, for messages. `stdin`: False ignores
    piped input. `say`: gets a sentence if input is awaited, and if piped input is added without `-`. Raises UsageError
    if there is no text, and LacliError if a part cannot be read, or is blank while others are not.
    """
    wants_stdin, alone = STDIN in (prompt, *files), prompt is None and not files
    parts = [_with_text(read_text(file), file, file, "leave -f out") for file in files if file != STDIN]
    if wants_stdin or (stdin and sys.stdin is not None and not is_terminal(sys.stdin)):
        _say_waiting(say)
        parts.append(_read_stdin())
        if parts[1:] or prompt not in (None, STDIN):
            _with_text(parts[-1], sys.stdin, "standard input", "--no-stdin answers without it")
        if not (wants_stdin or alone) and parts[-1].strip():
            say("added standard input to the prompt (--no-stdin adds none)")
    if prompt is not None and prompt != STDIN:
        parts.append(check_text(prompt, "-p"))
    given = [part for part in parts if part.strip()]
    if not given:
        what = f"there is no prompt{model and f' for the model {model!r}'}" if alone else "the prompt is empty"
        raise UsageError(what, "give one with -p, with -f FILE or through a pipe")
    return given[0] if len(given) == 1 else "\n\n".join(part.strip("\n") for part in given)


def _say_waiting(say: Callable[[str], None]) -> None:
    """Say how to end input on a terminal. If stdin is a pipe without data for 0.5 s, say that input is awaited."""
    if is_terminal(sys.stdin):
        ends = "Ctrl-Z and Enter end it" if sys.platform == "win32" else "Ctrl-D on a line of its own ends it"
        say(f"type the prompt; {ends}")
        return
    # On Windows only sockets can be asked; a closed stream cannot be asked at all.
    with suppress(OSError, ValueError, TypeError):
        # Half a second is enough for `echo` and short for a person.
        if not select([sys.stdin], [], [], 0.5)[0]:
            say("waiting for standard input; </dev/null or --no-stdin skip it")


def _with_text(text: str, source: str | TextIO, name: str, hint: str) -> str:
    """Return `text`. Raises LacliError with `name` and `hint` if it is blank, unless `source` is a device file."""
    with suppress(OSError, ValueError):  # the stream is no file of the system
        file = os.path.expanduser(source) if isinstance(source, str) else source.fileno()
        if not text.strip() and not stat.S_ISCHR(os.stat(file).st_mode):
            raise LacliError(f"{name} is empty", hint)
    return text


def _read_stdin() -> str:
    hint = "give the prompt with -p or -f"
    if sys.stdin is None:
        raise LacliError("standard input is closed", hint)
    try:
        return decode(read_to_end(sys.stdin.buffer), "standard input").removesuffix("\n")
    except OSError as error:
        raise LacliError(f"cannot read standard input: {reason_of(error)}", hint) from error

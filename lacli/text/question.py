"""The sources of a question: a file, piped input and -p, joined in this order.

The last newline of a file or a pipe is not part of the question, as in llama.cpp.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from select import select

from lacli.errors import LacliError, UsageError, reason_of
from lacli.text.files import is_terminal, read_file, read_to_end
from lacli.text.format import counted

STDIN = "-"

PATIENCE_S = 0.5
"""Silence of piped input, in seconds, before a message says so: long enough for `echo`, short for a person."""

END_OF_INPUT = "Ctrl-Z and Enter end it" if sys.platform == "win32" else "Ctrl-D on a line of its own ends it"


def read_question(
    prompt: str | None,
    file: str | None,
    *,
    stdin: bool | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> str:
    """The prompt text: the given parts, separated by blank lines.

    `stdin`: True reads it even from a terminal (the user typed `-`), False never, None if it is piped. `say`: takes a
    sentence while piped input is waited for, and one if it adds to the other parts unasked. Raises UsageError when
    nothing was given and LacliError when a part cannot be read.
    """
    wants_stdin = stdin or STDIN in (prompt, file)
    alone = prompt is None and file is None
    parts = []
    if file is not None and file != STDIN:
        parts.append(read_text(file))
    if wants_stdin or (stdin is None and sys.stdin is not None and not is_terminal(sys.stdin)):
        _say_waiting(say)
        parts.append(_read_stdin())
        if not (wants_stdin or alone) and parts[-1].strip():
            lines = counted(len(parts[-1].strip().splitlines()), "line")
            say(f"added {lines} of standard input to the prompt (--no-stdin adds none)")
    if prompt is not None and prompt != STDIN:
        parts.append(check_text(prompt, "-p"))
    given = [part for part in parts if part.strip()]
    if not given:
        what = "there is no prompt" if alone else "the prompt is empty"
        raise UsageError(what, "give one with -p, with -f FILE or through a pipe")
    return given[0] if len(given) == 1 else "\n\n".join(part.strip("\n") for part in given)


def check_text(text: str, name: str) -> str:
    """Return an argument unchanged. Raises LacliError if it was not UTF-8, which Python passes as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LacliError(f"{name} is not UTF-8 text", "check the terminal's encoding") from error
    return text


def read_text(name: str) -> str:
    """A file's text without BOM and last newline. Raises LacliError as `read_raw` does, and for bytes not in UTF-8."""
    return decode(read_raw(name), name).removeprefix("\ufeff").removesuffix("\n")


def read_raw(name: str) -> bytes:
    """A file's bytes. Raises LacliError if it cannot be read or is too large."""
    try:
        return read_file(os.path.expanduser(name))
    except (OSError, ValueError) as error:  # a name cannot have a zero in it
        hint = "check the file's name" if isinstance(error, FileNotFoundError) else "give another file, or a part of it"
        raise LacliError(f"cannot read {name}: {reason_of(error)}", hint) from error


def decode(raw: bytes, name: str) -> str:
    """Bytes as text. Raises LacliError, naming their source, if they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        what = f"{name} is not UTF-8 text: byte {raw[error.start]:#04x} at offset {error.start}"
        raise LacliError(what, "convert it with iconv") from error


def _say_waiting(say: Callable[[str], None]) -> None:
    """Say how a terminal's input ends, or that piped input is waited for if none comes."""
    if is_terminal(sys.stdin):
        say(f"type the prompt; {END_OF_INPUT}")
        return
    try:
        if not select([sys.stdin], [], [], PATIENCE_S)[0]:
            say("waiting for standard input; </dev/null or --no-stdin skip it")
    except (OSError, ValueError, TypeError):  # Windows can ask sockets only; it is closed
        return


def _read_stdin() -> str:
    hint = "give the prompt with -p or -f"
    if sys.stdin is None:
        raise LacliError("standard input is closed", hint)
    try:
        return decode(read_to_end(sys.stdin.buffer), "standard input").removesuffix("\n")
    except OSError as error:
        raise LacliError(f"cannot read standard input: {reason_of(error)}", hint) from error

"""The sources of a question: a file, piped input and -p, joined in this order.

The last newline of a file or a pipe is not part of the question, as in llama.cpp.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from select import select
from stat import S_ISFIFO, S_ISREG

from lacli.errors import LacliError, UsageError, reason_of
from lacli.text.files import is_terminal, read_file, read_to_end
from lacli.text.format import counted

STDIN = "-"

PATIENCE_S = 0.5
"""Silence of piped input, in seconds, before a message says so: long enough for `echo`, short for a person."""

LONG_PATIENCE_S = 5.0
"""The same under -q: a process that keeps the pipe open would wait for ever. -q asks for quiet, so it is longer."""

END_OF_INPUT = "Ctrl-Z and Enter end it" if sys.platform == "win32" else "Ctrl-D on a line of its own ends it"


def read_question(
    prompt: str | None,
    file: str | None,
    *,
    stdin: bool | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    warn: Callable[[str], None] | None = None,
) -> str:
    """The prompt text: the given parts, separated by blank lines.

    `stdin`: True reads it even from a terminal (the user typed `-`), False never, None if it is piped. `say`: takes a
    sentence while piped input is waited for, and one if it adds to the other parts unasked. `warn`: for
    where `say` is not heard; takes the first after `LONG_PATIENCE_S`, and the second where it is the rest of a file.
    Raises UsageError when nothing was given and LacliError when a part cannot be read.
    """
    wants_stdin = stdin or STDIN in (prompt, file)
    alone = prompt is None and file is None
    unasked = not (wants_stdin or alone)
    parts = []
    if file is not None and file != STDIN:
        parts.append(read_text(file))
    if wants_stdin or (stdin is None and _is_piped()):
        _say_waiting(say, warn, "; skip it with </dev/null or --no-stdin" if unasked else "")
        is_rest = _is_begun_file()
        parts.append(_read_stdin())
        if unasked and parts[-1].strip():
            lines = counted(len(parts[-1].strip().splitlines()), "line")
            # A loop over the file's lines would end after this one: said under -q too.
            tell, rest = (warn or say, ", the rest of a file,") if is_rest else (say, "")
            tell(f"added {lines} of standard input{rest} to the prompt (--no-stdin adds none)")
        elif unasked and _is_pipe():
            say("nothing came through the pipe, so it adds nothing to the prompt")
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


def file_named(text: str) -> str:
    """The first file that a text names as other programs do, behind an @; empty where there is none."""
    return next((word[1:] for word in text.split() if word.startswith("@") and os.path.isfile(word[1:])), "")


def read_text(name: str, *, ordinary: bool = False) -> str:
    """A file's text without BOM and last newline. Raises LacliError as `read_raw` does, and for bytes not in UTF-8."""
    return decode(read_raw(name, ordinary=ordinary), name).removeprefix("\ufeff").removesuffix("\n")


def read_raw(name: str, *, ordinary: bool = False) -> bytes:
    """A file's bytes. Raises LacliError if it cannot be read or is too large; `ordinary` refuses devices and pipes."""
    if name.endswith(".gguf") and os.path.isfile(os.path.expanduser(name)):
        raise LacliError(f"{name} is a model, and a text is read here", "lacli run MODEL and lacli chat MODEL take it")
    try:
        return read_file(os.path.expanduser(name), ordinary=ordinary)
    except (OSError, ValueError) as error:  # a name cannot have a zero in it
        hint = "check the file's name" if isinstance(error, FileNotFoundError) else "give another file, or a part of it"
        raise LacliError(f"cannot read {name}: {reason_of(error)}", hint) from error


def decode(raw: bytes, name: str) -> str:
    """Bytes as text. Raises LacliError, naming their source, if they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise LacliError(
            f"{name} is not UTF-8 text: byte {raw[error.start]:#04x} at offset {error.start}", "convert it with iconv"
        ) from error


def on_terminal() -> bool:
    """Whether stdin and stdout are both terminals."""
    return all(map(is_terminal, (sys.stdin, sys.stdout)))


def _is_piped() -> bool:
    return sys.stdin is not None and not is_terminal(sys.stdin)


def _is_pipe() -> bool:
    """True if stdin is the end of a pipe, and not /dev/null or a file."""
    try:
        return S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # it is no file
        return False


def _is_begun_file() -> bool:
    """True if stdin is a file of which a part has been read, as a `while read` loop leaves it."""
    try:
        return S_ISREG(os.fstat(sys.stdin.fileno()).st_mode) and os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) > 0
    except (AttributeError, OSError, ValueError):  # it is no file
        return False


def _say_waiting(say: Callable[[str], None], warn: Callable[[str], None] | None, hint: str) -> None:
    """Say that piped input is waited for, if none comes, or how a terminal's ends."""
    if is_terminal(sys.stdin):
        say(f"type the prompt; {END_OF_INPUT}")
        return
    try:
        waits = _is_piped() and not select([sys.stdin], [], [], LONG_PATIENCE_S if warn else PATIENCE_S)[0]
    except (OSError, ValueError):  # Windows can ask sockets only
        return
    if waits:
        (warn or say)(f"waiting for standard input{hint}")


def _read_stdin() -> str:
    if sys.stdin is None:
        raise LacliError("standard input is closed", "give the prompt with -p or -f")
    try:
        return decode(read_to_end(sys.stdin.buffer.read), "standard input").removesuffix("\n")
    except OSError as error:
        raise LacliError(f"cannot read standard input: {reason_of(error)}", "give the prompt with -p or -f") from error

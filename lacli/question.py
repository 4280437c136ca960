"""Where a question comes from: -p, a file, piped input, or several of them in that order: file, input, -p.

Reads text; what is asked of a model is decided elsewhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lacli.errors import LacliError, UsageError

STDIN = "-"


def read_question(prompt: str | None, file: str | None, *, stdin: bool = False) -> str:
    """The prompt text: the parts that were given, a blank line between them.

    stdin: read it even from a terminal (the user typed `-`); piped input is always read. Raises UsageError when
    nothing was given and PromptError or LacliError when a part cannot be read.
    """
    wants_stdin = stdin or STDIN in (prompt, file)
    parts = []
    if file is not None and file != STDIN:
        parts.append(read_text(file))
    if wants_stdin or not sys.stdin.isatty():
        parts.append(decode(sys.stdin.buffer.read(), "standard input"))
    if prompt is not None and prompt != STDIN:
        parts.append(prompt)
    if not parts or (prompt is None and file is None and not "".join(parts).strip()):
        raise UsageError("there is no prompt", "give one with -p, with -f FILE or through a pipe")
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) if len(parts) > 1 else parts[0]


def read_text(name: str) -> str:
    """A UTF-8 file's text. Raises LacliError when it cannot be read."""
    try:
        return decode(Path(name).expanduser().read_bytes(), name)
    except OSError as error:
        raise LacliError(f"cannot read {name}: {error.strerror}", "check the file's name") from error


def decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise LacliError(
            f"{name} is not UTF-8 text (byte {raw[error.start]:#04x} at {error.start})", "convert it with iconv"
        ) from error

"""The user's files and streams: bounded reads, the sources of a prompt, files for the owner alone, saved records."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from select import select
from shutil import get_terminal_size
from typing import IO, Any, Self, TextIO, TypeGuard

from lacli.errors import LacliError, UsageError, reason_of
from lacli.text.format import size_in_words

if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, flock

PAGE = 80
"""Columns of sentences where no terminal says how many it has."""

MAX_TEXT = 1 << 26
"""Bytes of a prompt, a chat or another text for a model: 10 million tokens are about 40 MB."""

STDIN = "-"

PATIENCE_S = 0.5
"""Silence of piped input, in seconds, before a message says so: long enough for `echo`, short for a person."""

END_OF_INPUT = "Ctrl-Z and Enter end it" if sys.platform == "win32" else "Ctrl-D on a line of its own ends it"

NAME = "lacli.json"
"""The one file that lacli saves between runs: what steps cost, and which kernels work here."""

UNREADABLE = (ValueError, LookupError, TypeError, OverflowError, RecursionError)
"""What decoding a record that is not one of ours can raise: it is as good as absent."""

HASHED = 1 << 20
"""Bytes at each end of a model file that its hash covers: the metadata, and the last weights."""


def is_terminal(stream: TextIO | None) -> TypeGuard[TextIO]:
    return stream is not None and stream.isatty()


def columns() -> int:
    """Columns of stdout's terminal; 0 if stdout is not one."""
    return get_terminal_size().columns if is_terminal(sys.stdout) else 0


def read_question(
    prompt: str | None,
    files: Sequence[str],
    *,
    model: str = "",
    stdin: bool = True,
    say: Callable[[str], None] = lambda sentence: None,
) -> str:
    """The prompt: files, piped input and -p in this order, separated by blank lines.

    `-` reads from a terminal too. `model`: what was taken for its name. `stdin`: False leaves piped input alone. `say`:
    takes a sentence while input is waited for, and one if it adds to the other parts unasked. Raises UsageError when
    nothing was given and LacliError when a part cannot be read.
    """
    wants_stdin, alone = STDIN in (prompt, *files), prompt is None and not files
    parts = [read_text(file) for file in files if file != STDIN]
    if wants_stdin or (stdin and sys.stdin is not None and not is_terminal(sys.stdin)):
        _say_waiting(say)
        parts.append(_read_stdin())
        if not (wants_stdin or alone) and parts[-1].strip():
            say("added standard input to the prompt (--no-stdin adds none)")
    if prompt is not None and prompt != STDIN:
        parts.append(check_text(prompt, "-p"))
    given = [part for part in parts if part.strip()]
    if not given:
        what = f"there is no prompt{model and f' for the model {model!r}'}" if alone else "the prompt is empty"
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
        with open(os.path.expanduser(name), "rb") as file:
            return _read_to_end(file)
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
    # Windows can ask sockets only, and a closed stream cannot be asked.
    with suppress(OSError, ValueError, TypeError):
        if not select([sys.stdin], [], [], PATIENCE_S)[0]:
            say("waiting for standard input; </dev/null or --no-stdin skip it")


def _read_stdin() -> str:
    hint = "give the prompt with -p or -f"
    if sys.stdin is None:
        raise LacliError("standard input is closed", hint)
    try:
        return decode(_read_to_end(sys.stdin.buffer), "standard input").removesuffix("\n")
    except OSError as error:
        raise LacliError(f"cannot read standard input: {reason_of(error)}", hint) from error


def _read_to_end(file: IO[bytes]) -> bytes:
    found = file.read(MAX_TEXT + 1)
    if len(found) > MAX_TEXT:
        raise OSError(errno.EFBIG, f"it is larger than {size_in_words(MAX_TEXT)}")
    return found


def for_owner(name: str, flags: int) -> int:
    """Open a private file, as an `opener` for `open`: a new one is readable by its owner only."""
    return os.open(name, flags, 0o600)


def lock(file: IO[bytes]) -> None:
    """Lock a file for this process until it is closed. Raises BlockingIOError if another process holds it.

    Does nothing on Windows, for devices, and on file systems without locks.
    """
    if sys.platform == "win32" or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # this file system has no locks


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one go: one of that name is whole before and after, and keeps its mode. Raises OSError."""
    written = path.parent / f".lacli-{token_hex(8)}"
    try:
        with open(written, "xb", opener=for_owner) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, written)
        os.replace(written, path)
    finally:
        with suppress(OSError):
            written.unlink()


def free_disk(path: Path) -> int:
    """Free bytes on the disk of a folder that need not exist yet."""
    there = next((folder for folder in (path, *path.parents) if os.path.exists(folder)), Path("/"))
    return shutil.disk_usage(there).free


class Closing:
    """Closed when its `with` block is left; `close` may be called again."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def state_file() -> Path:
    """Return the place of the saved records in the user's cache folder."""
    from platformdirs import user_cache_path

    return user_cache_path("lacli", appauthor=False) / NAME


def model_identity(path: Path) -> dict[str, str | int]:
    """Return what a model file is known by: its name, its size in bytes and a hash of its ends."""
    digest, size = sha256(), path.stat().st_size
    with path.open("rb") as file:
        digest.update(file.read(HASHED))
        file.seek(max(size - HASHED, 0))
        digest.update(file.read(HASHED))
    return {"model": path.name, "size": size, "content": digest.hexdigest()[:32]}


class Records:
    """Reads and writes saved records; the file and its folder are made, for the user alone, by the first write.

    A file that cannot be read counts as empty, and what cannot be written is found out again by the next run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, kind: str, key: object) -> Any:
        """Return the record of this kind and key, None if there is none."""
        return self.kinds().get(kind, {}).get(_text(key))

    def save(self, kind: str, key: object, value: object) -> str:
        """Save a record in place of an older one; return why that is impossible, '' if it was done."""
        kinds = self.kinds()
        kinds.setdefault(kind, {})[_text(key)] = value
        return self._write(kinds)

    def forget(self, kind: str) -> None:
        """Remove all records of a kind, if the file can be written."""
        kinds = self.kinds()
        if kinds.pop(kind, None):
            self._write(kinds)

    def kinds(self) -> dict[str, dict[str, Any]]:
        """Return all records by kind and spelled key."""
        try:
            found = json.loads(read_raw(str(self.path)))
            return {kind: records for kind, records in found.items() if isinstance(records, dict)}
        except (LacliError, AttributeError, *UNREADABLE):
            return {}

    def _write(self, kinds: dict[str, dict[str, Any]]) -> str:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(kinds).encode())
        except OSError as error:
            return f"cannot save it in {self.path}: {reason_of(error)}"
        return ""


def _text(key: object) -> str:
    """Spell a key of plain values so that equal ones are spelled alike."""
    return json.dumps(key, sort_keys=True)

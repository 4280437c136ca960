"""The user's files: bounded reads, UTF-8 text, private files, atomic writes, locks, and free disk space."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

from lacli.errors import LacliError, reason_of
from lacli.text.format import size_in_words

if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, flock

MAX_TEXT = 1 << 26
"""Most bytes of a prompt, a chat or another text for a model. 10 million tokens are about 40 MB."""


def check_text(text: str, name: str) -> str:
    """Return `text`. Raises LacliError if it has surrogates, Python's form of invalid UTF-8. `name`: for messages."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LacliError(f"{name} is not UTF-8 text", "check the terminal's encoding") from error
    return text


def read_text(name: str) -> str:
    """Return a file's text without BOM and last newline. Raises LacliError if unreadable, too large or not UTF-8."""
    return decode(read_raw(name), name).removeprefix("\ufeff").removesuffix("\n")


def read_raw(name: str) -> bytes:
    """Return a file's bytes. Raises LacliError if it is unreadable or has more than MAX_TEXT bytes."""
    try:
        with open(os.path.expanduser(name), "rb") as file:
            return read_to_end(file)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        hint = "check the file's name" if isinstance(error, FileNotFoundError) else "give another file, or a part of it"
        raise LacliError(f"cannot read {name}: {reason_of(error)}", hint) from error


def decode(raw: bytes, name: str) -> str:
    """Return bytes as text. Raises LacliError if they are not UTF-8. `name`: their file, for the message."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        what = f"{name} is not UTF-8 text: byte {raw[error.start]:#04x} at offset {error.start}"
        raise LacliError(what, "convert it with iconv") from error


def read_to_end(file: IO[bytes]) -> bytes:
    """Return the remaining bytes of a file. Raises OSError if there are more than MAX_TEXT."""
    found = file.read(MAX_TEXT + 1)
    if len(found) > MAX_TEXT:
        raise OSError(errno.EFBIG, f"it is larger than {size_in_words(MAX_TEXT)}")
    return found


def for_owner(name: str, flags: int) -> int:
    """Open a file for `open(..., opener=for_owner)`: only the owner may read a new file. Returns its descriptor."""
    return os.open(name, flags, 0o600)


def lock(file: IO[bytes], *, wait: bool = False) -> None:
    """Lock a file until it is closed. Raises BlockingIOError if another process has locked it; with `wait`, waits.

    Does nothing on Windows, for devices, and on file systems without locks.
    """
    if sys.platform == "win32" or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return
    try:
        flock(file, LOCK_EX if wait else LOCK_EX | LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # this file system has no locks


def replace_file(path: Path, *parts: Any) -> None:
    """Replace a file by `parts` (bytes) at once: readers see the old or new file. Keeps its mode. Raises OSError."""
    written = path.parent / f".lacli-{token_hex(8)}"
    try:
        with open(written, "xb", opener=for_owner) as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, written)
        os.replace(written, path)
    finally:
        with suppress(OSError):
            written.unlink()


def free_disk(path: Path) -> int:
    """Return the free bytes of the disk of a folder, which need not exist yet."""
    there = next((folder for folder in (path, *path.parents) if os.path.exists(folder)), Path("/"))
    return shutil.disk_usage(there).free

"""The user's files and streams: bounded reads, files for the owner alone, free space on a disk."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from shutil import get_terminal_size
from types import TracebackType
from typing import IO, Self, TextIO, TypeGuard

from lacli.text.format import size_in_words

if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, flock

PAGE = 80
"""Columns of sentences where no terminal says how many it has."""

MAX_TEXT = 1 << 26
"""Bytes of a prompt, a chat or another text for a model: 10 million tokens are about 40 MB."""


def is_terminal(stream: TextIO | None) -> TypeGuard[TextIO]:
    """True if `stream` is open and a terminal."""
    return stream is not None and stream.isatty()


def is_file(stream: TextIO) -> bool:
    """True if a stream leads to a file on a disk, where nobody sees what comes."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # it is closed, or no file
        return False


def columns() -> int:
    """Columns of stdout's terminal; 0 if stdout is not one."""
    return get_terminal_size().columns if is_terminal(sys.stdout) else 0


def read_file(path: str | Path) -> bytes:
    """The bytes of a file of at most MAX_TEXT bytes. Raises OSError if it is larger or cannot be read."""
    with open(path, "rb") as file:
        return read_to_end(file)


def read_to_end(file: IO[bytes]) -> bytes:
    """The rest of a stream. Raises OSError if that is more than MAX_TEXT bytes."""
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


def replace_file(path: Path, lines: Iterable[bytes], opener: Callable[[str, int], int] | None = None) -> None:
    """Write a file in one go: one of that name is whole before and after, and keeps its mode. Raises OSError.

    `opener`: opens a new file, as for `open`.
    """
    written = path.parent / f".lacli-{token_hex(8)}"
    try:
        with open(written, "xb", opener=opener) as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, written)
        os.replace(written, path)
    finally:
        with suppress(OSError):
            written.unlink()


def nearest_folder(path: Path) -> Path:
    """The folder, or the first one above it that is seen to exist; a file if one lies in its place."""
    return next((folder for folder in (path, *path.parents) if os.path.exists(folder)), Path("/"))


def free_disk(path: Path) -> int:
    """Free bytes on the disk of a folder that need not exist yet."""
    return shutil.disk_usage(nearest_folder(path)).free


class Closing:
    """Closed when its `with` block is left; `close` may be called again."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

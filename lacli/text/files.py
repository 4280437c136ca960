"""The user's files and streams: read up to a size, opened for the owner alone, the room on a disk."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import get_terminal_size
from types import TracebackType
from typing import Self, TextIO, TypeGuard

from lacli.text.format import size_in_words


def is_terminal(stream: TextIO | None) -> TypeGuard[TextIO]:
    """Whether somebody sits at a stream; nobody does at a closed one."""
    return stream is not None and stream.isatty()


def columns() -> int:
    """Columns of the terminal that stdout is, 0 where it is none."""
    return get_terminal_size().columns if is_terminal(sys.stdout) else 0


MOST_TEXT = 1 << 26
"""Bytes of a prompt, a chat or anything else that a model may read: 10 million tokens are some 40 MB of text."""

MOST_RECORD = 1 << 20
"""Bytes of a small file that keeps something: a measurement, a list of names, a commit. Ours have some KB."""

CHUNK = 1 << 20
"""Bytes that are read at once: a longer read would not hear Ctrl-C."""

NO_WAIT = getattr(os, "O_NONBLOCK", 0)
"""The flag that opens a pipe without waiting for its other end, where a system has it."""

NOT_OPENED = {
    errno.ELOOP: "it is a symbolic link, which is not followed",
    errno.ENXIO: "it is a pipe that nobody reads",
}
"""Why a file is not opened to write to it, in our words."""


class UnfitFile(OSError):
    """A file that is larger than anything it could be, or that may never end."""


def read_file(path: str | Path, most: int = MOST_TEXT, *, ordinary: bool = True) -> bytes:
    """The bytes of a file of `most` bytes at most. Raises UnfitFile, or OSError where it cannot be read.

    ordinary: refuse devices and pipes; one that the user names may be a pipe, but has to end too.
    """
    # A pipe that nobody writes to would wait here.
    more = NO_WAIT if ordinary else 0
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | more)) as file:
        if ordinary and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnfitFile(errno.EINVAL, "it is no ordinary file")
        return read_to_end(file.read, most)


def read_to_end(read: Callable[[int], bytes], most: int = MOST_TEXT) -> bytes:
    """What `read` still gives, a buffered stream's method. Raises UnfitFile where that is more than `most` bytes."""
    chunks: list[bytes] = []
    while most >= 0:
        chunks.append(read(CHUNK))
        most -= len(chunks[-1])
        # A terminal would have to be told its end twice.
        if len(chunks[-1]) < CHUNK:
            break
    if most < 0:
        raise UnfitFile(errno.EFBIG, f"it is larger than {size_in_words(most + sum(map(len, chunks)))}")
    return b"".join(chunks)


def for_owner(name: str, flags: int) -> int:
    """Open a file that holds a user's words, as an `opener`: a new one is the owner's alone, and a link is refused.

    Followed are only the system's own links to open files, such as a shell's pipes. A pipe that nobody reads is refused
    too.
    """
    no_link = 0 if name.startswith(("/dev/fd/", "/dev/std")) else getattr(os, "O_NOFOLLOW", 0)
    try:
        found = os.open(name, flags | no_link | NO_WAIT, 0o600)
    except OSError as error:
        if error.errno in NOT_OPENED:
            raise OSError(error.errno, NOT_OPENED[error.errno]) from None
        raise
    if NO_WAIT:
        os.set_blocking(found, True)
    return found


def nearest_folder(path: Path) -> Path:
    """The folder, or the first above it that exists; where a file lies in the place of one, that file."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))


def free_disk(path: Path) -> int:
    """Bytes that are free for a folder."""
    return shutil.disk_usage(nearest_folder(path)).free


class Closing:
    """Closed when its `with` block is left; `close` may be called again."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

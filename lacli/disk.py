"""The disk that a folder is on, or will be on once it is made."""

from __future__ import annotations

import shutil
from pathlib import Path


def nearest_folder(path: Path) -> Path:
    """The folder, or the first above it that exists; where a file lies in the place of one, that file."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))


def free_disk(path: Path) -> int:
    """Bytes that are free for a folder."""
    return shutil.disk_usage(nearest_folder(path)).free

"""Records that lacli keeps between runs in one JSON file, and what identifies a model file in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from lacli.errors import LacliError, reason_of
from lacli.text.files import for_owner, lock, read_raw, replace_file

NAME = "lacli.json"
"""The file of the records: step costs, and the kernels that work on this machine."""

UNREADABLE = (ValueError, LookupError, TypeError, OverflowError, RecursionError)
"""Exceptions from decoding a record of an unknown form, which counts as absent."""

HASHED = 1 << 20
"""Bytes at each end of a model file that its hash covers: the metadata and the last weights."""


def state_file() -> Path:
    """Return the path of the saved records, in the user's cache folder."""
    from platformdirs import user_cache_path

    return user_cache_path("lacli", appauthor=False) / NAME


def model_identity(path: Path) -> dict[str, str | int]:
    """Return what identifies a model file: its name, its size in bytes and a hash of both its ends."""
    digest, size = sha256(), path.stat().st_size
    with path.open("rb") as file:
        digest.update(file.read(HASHED))
        file.seek(max(size - HASHED, 0))
        digest.update(file.read(HASHED))
    return {"model": path.name, "size": size, "content": digest.hexdigest()[:32]}


class Records:
    """Reads and writes the records in a JSON file. The first write makes the file and its folder, for the user alone.

    A file that cannot be read counts as empty. Keys and values are made of JSON's types.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, kind: str, key: object) -> Any:
        """Return the record with this kind and key, or None if there is none."""
        return self.kinds().get(kind, {}).get(_text(key))

    def save(self, kind: str, key: object, value: object) -> str:
        """Save a record and drop an older record of its kind and key. Returns an error message, or "" after success."""
        return self._change(lambda kinds: kinds.setdefault(kind, {}).update({_text(key): value}))

    def forget(self, kind: str) -> None:
        """Remove all records of a kind. Does nothing if the file cannot be written."""
        if kind in self.kinds():
            self._change(lambda kinds: kinds.pop(kind, None))

    def kinds(self) -> dict[str, dict[str, Any]]:
        """Return all records, by their kinds and by their keys as JSON."""
        try:
            found = json.loads(read_raw(str(self.path)))
            return {kind: records for kind, records in found.items() if isinstance(records, dict)}
        except (LacliError, AttributeError, *UNREADABLE):
            return {}

    def _change(self, change: Callable[[dict[str, dict[str, Any]]], object]) -> str:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Without the lock, one of two processes that read before either writes would lose its record.
            with open(self.path.with_suffix(".lock"), "ab", opener=for_owner) as file:
                lock(file, wait=True)
                change(kinds := self.kinds())
                replace_file(self.path, json.dumps(kinds).encode())
        except OSError as error:
            return f"cannot save it in {self.path}: {reason_of(error)}"
        return ""


def _text(key: object) -> str:
    return json.dumps(key, sort_keys=True)

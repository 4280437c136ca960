"""The one file of what lacli keeps between runs: records of plain values, and texts as token ids, in SQLite.

Several processes may use it at once. A file that is damaged or not of this layout is set aside under another name.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from lacli.errors import reason_of

NAME = "lacli.sqlite"

VERSION = 1
"""The file's `user_version`: the number of this layout."""

LAYOUT = (
    "CREATE TABLE records (kind TEXT, key TEXT, value TEXT, PRIMARY KEY (kind, key))",
    "CREATE TABLE texts (id INTEGER PRIMARY KEY, model TEXT, tokens BLOB)",
    "CREATE INDEX texts_of_model ON texts (model)",
)

BUSY_S = 2.0
"""Seconds to wait for another process that writes, which takes some milliseconds."""

MAX_VALUE = 1 << 23
"""Bytes of a record or a text: the largest, a text of a million tokens, has half of it."""

DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_TOOBIG")
"""Errors of SQLite's that say something about the file, and not about who else uses it or about the disk."""

UNREADABLE = (ValueError, LookupError, TypeError, OverflowError, RecursionError)
"""What decoding a record that is not one of ours can raise: it is as good as absent."""

HASHED = 1 << 20
"""Bytes at each end of a model file that its hash covers: the metadata, and the last weights."""


def state_file() -> Path:
    """Return the file's place in the user's cache folder."""
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


class Unusable(Exception):
    """The file cannot be read or written now; the text says why."""


class _Foreign(Exception):
    """Something else lies in the file's place; the text says what."""


class Records:
    """Reads and writes the file; it and its folder are made, for their owner alone, by the first write."""

    def __init__(self, path: Path, say: Callable[[str], None] = lambda sentence: None) -> None:
        """Use the file at `path`; `say` gets a sentence if what lies there is set aside."""
        self.path = path
        self._say = say

    def read(self, kind: str, key: object) -> Any:
        """Return the record of this kind and key, None if there is none that can be read."""
        with suppress(Unusable, *UNREADABLE), self._opened() as db:
            for (value,) in db.execute("SELECT value FROM records WHERE kind = ? AND key = ?", (kind, _text(key))):
                return json.loads(value)
        return None

    def all(self, kind: str) -> list[tuple[Any, Any]]:
        """Return the keys and values of all records of a kind that can be read."""
        found = []
        with suppress(Unusable), self._opened() as db:
            for key, value in db.execute("SELECT key, value FROM records WHERE kind = ?", (kind,)):
                with suppress(*UNREADABLE):
                    found.append((json.loads(key), json.loads(value)))
        return found

    def save(self, kind: str, key: object, value: object) -> str:
        """Keep a record in place of an older one; return why that is impossible, '' if it was done."""
        try:
            with self._opened(writes=True) as db:
                db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (kind, _text(key), json.dumps(value)))
        except Unusable as error:
            return f"cannot keep it in {self.path}: {error}"
        return ""

    def forget(self, kind: str, key: object = None) -> None:
        """Remove all records of a kind, or the one with `key`, if the file can be written."""
        with suppress(Unusable, OSError):
            if self.path.exists():
                with self._opened(writes=True) as db:
                    chosen = "kind = ?1 AND (?2 IS NULL OR key = ?2)"
                    db.execute(f"DELETE FROM records WHERE {chosen}", (kind, None if key is None else _text(key)))

    def check(self) -> None:
        """Read through all records, so that a file that is none of ours is set aside now."""
        with suppress(Unusable), self._opened() as db:
            db.execute("SELECT total(length(key) + length(value)) FROM records").fetchone()

    def texts(self, model: str, most: int) -> list[bytes]:
        """Return the newest texts of a model, `most` bytes at most, the oldest first. Raises Unusable."""
        found: list[bytes] = []
        with self._opened() as db:
            query = "SELECT tokens FROM texts WHERE model = ? AND typeof(tokens) = 'blob' ORDER BY id DESC"
            for (tokens,) in db.execute(query, (model,)):
                most -= len(tokens)
                if most < 0:
                    break
                found.append(tokens)
        return found[::-1]

    def add_text(self, model: str, tokens: bytes, most: int) -> None:
        """Keep a text once. Raises Unusable.

        If the model's texts have more than `most` bytes, only the newest half of that stays; `tokens` must fit there.
        """
        with self._opened(writes=True) as db:
            if db.execute("SELECT 1 FROM texts WHERE model = ? AND tokens = ?", (model, tokens)).fetchone():
                return
            db.execute("INSERT INTO texts (model, tokens) VALUES (?, ?)", (model, tokens))
            sizes = "SELECT id, coalesce(length(tokens), 0) FROM texts WHERE model = ? ORDER BY id DESC"
            texts = db.execute(sizes, (model,)).fetchall()
            room = most if sum(size for _, size in texts) <= most else most // 2
            for number, size in texts:
                room -= size
                if room < 0:
                    db.execute("DELETE FROM texts WHERE id = ?", (number,))

    @contextmanager
    def _opened(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction, an empty one in memory where there is none to read. Raises Unusable."""
        try:
            found = self._found()
            try:
                with closing(self._connected(found, writes=writes)) as db:
                    yield db
                    if db.in_transaction:
                        db.execute("COMMIT")
            except _Foreign as error:
                self._set_aside(found, str(error))
                raise Unusable("another file was in its place") from error
            except sqlite3.Error as error:
                name = getattr(error, "sqlite_errorname", None) or ""
                if name.startswith(DAMAGED):
                    self._set_aside(found, "is damaged")
                raise Unusable(
                    "another program writes to it" if name.startswith("SQLITE_BUSY") else str(error)
                ) from error
        except OSError as error:
            raise Unusable(reason_of(error)) from error

    def _found(self) -> os.stat_result | None:
        try:
            return self.path.stat()
        except FileNotFoundError:
            return None

    def _connected(self, found: os.stat_result | None, *, writes: bool) -> sqlite3.Connection:
        """Connect to the file; where it is to be written in a transaction, and made if there is none."""
        if found and not stat.S_ISREG(found.st_mode):
            raise _Foreign("is no ordinary file")
        if not found and writes:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        elif not found or not (found.st_size or writes):
            return _made(sqlite3.connect(":memory:"))
        address = f"file:{quote_from_bytes(os.fsencode(self.path))}?mode=rw"
        db = sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)
        try:
            db.text_factory = bytes
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
            if writes:
                db.execute("BEGIN IMMEDIATE")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            layout = {sql.decode("utf-8", "replace") for (sql,) in db.execute("SELECT sql FROM sqlite_master") if sql}
            if version == VERSION and layout == set(LAYOUT):
                return db
            if version or layout:
                raise _Foreign("is of another program or another version of lacli")
            return _made(db)
        except BaseException:
            db.close()
            raise

    def _set_aside(self, found: os.stat_result | None, why: str) -> None:
        """Rename the file, unless another process has done so. Raises OSError, having said why."""
        aside = self.path.with_name(f"{self.path.name}.aside")
        now = self._found()
        if not found or not now or (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino):
            return
        try:
            with suppress(FileNotFoundError):
                # SQLite would mend the next file with the journal of this one.
                self.path.with_name(f"{self.path.name}-journal").unlink()
            os.replace(self.path, aside)
        except OSError as error:
            self._say(f"{self.path} {why} and cannot be set aside: {reason_of(error)}")
            raise
        self._say(f"{self.path} {why}; it is set aside as {aside.name}, and what it held is learned anew")


def _made(db: sqlite3.Connection) -> sqlite3.Connection:
    """Give an empty database the layout."""
    for sql in LAYOUT:
        db.execute(sql)
    db.execute(f"PRAGMA user_version = {VERSION}")
    return db


def _text(key: object) -> str:
    """Spell a key of plain values so that equal ones are spelled alike."""
    return json.dumps(key, sort_keys=True)

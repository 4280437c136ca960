"""Prompt files: JSON lines, the same compressed with gzip, one JSON list, or Parquet.

Finds the rows and says where a bad one is; what a row means is decided in `task_rows.py`. The format is read from a
file's first bytes, so its name does not matter. Only a list is read whole; of the others one row at a time.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice

from lacli.bench.task_rows import task_from_row
from lacli.bench.tasks import OWN, Task
from lacli.errors import LacliError
from lacli.text.files import MAX_TEXT, read_to_end

MOST_LINES = 8 * MAX_TEXT
"""Bytes of all lines that are read: the suites have some MB, and a pipe may never end."""

GZIP, PARQUET, LIST = b"\x1f\x8b", b"PAR1", b"["
BOM = b"\xef\xbb\xbf"
EXAMPLE = 'a row is a JSON object, for example {"prompt": "..."}'
BREAK = b"\n"
BATCH = 256

Stream = io.BufferedReader | gzip.GzipFile


def read_tasks(path: str, *, kind: str = OWN, first: int = 0) -> list[Task]:
    """The tasks of a prompt file, in its order; blank lines are skipped.

    kind: the class of rows that name none. first: only so many tasks, 0 for all. Raises LacliError with the file and
    the line for what is no prompt, and for a file that cannot be read.
    """
    try:
        with closing(_rows(path)) as rows:
            tasks = [_task(row, place, kind) for place, row in islice(rows, first or None)]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LacliError(f"{path} is damaged or cut short", "fetch the file again") from error
    except OSError as error:
        raise LacliError(f"cannot read {path}: {error.strerror or error}", "check the file's name") from error
    if not tasks:
        raise LacliError(f"{path} holds no prompts", EXAMPLE)
    return tasks


def _task(row: object, place: str, kind: str) -> Task:
    if not isinstance(row, dict):
        raise LacliError(f"{place}: not a JSON object", EXAMPLE)
    try:
        return task_from_row(row, kind)
    except LacliError as error:
        raise LacliError(f"{place}: {error.what}", error.hint) from error


def _rows(path: str) -> Generator[tuple[str, object]]:
    """Each row with its place in words."""
    with open(os.path.expanduser(path), "rb") as file:
        begin = file.peek(len(PARQUET))
        if begin.startswith(PARQUET):
            yield from _parquet_rows(file, path)
        elif begin.startswith(GZIP):
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield from _json_rows(unpacked, path)
        else:
            yield from _json_rows(file, path)


def _json_rows(file: Stream, path: str) -> Iterator[tuple[str, object]]:
    if file.peek(len(BOM)).startswith(BOM):
        file.read(len(BOM))
    if file.peek(1).startswith(LIST):
        yield from _list_rows(read_to_end(file.read), path)
        return
    for number, line in enumerate(_lines(file, path), 1):
        if line.strip():
            yield f"{path}:{number}", _parsed(line.rstrip(), path, number)


def _list_rows(raw: bytes, path: str) -> Iterator[tuple[str, object]]:
    rows = _parsed(raw, path, 1)
    assert isinstance(rows, list)
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))


def _lines(file: Stream, path: str) -> Iterator[bytes]:
    number, room = 0, MOST_LINES
    while line := file.readline(MAX_TEXT + 1):
        number += 1
        room -= len(line)
        if len(line) > MAX_TEXT:
            raise LacliError(f"{path}:{number}: a line of more than {MAX_TEXT >> 20} MiB", EXAMPLE)
        if room < 0:
            raise LacliError(f"{path}:{number}: more than {MOST_LINES >> 20} MiB of prompts", "take fewer")
        yield line


def _parsed(raw: bytes, path: str, line: int) -> object:
    """The JSON value of what begins on this line."""
    try:
        parsed: object = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        place = f"{path}:{line + raw.count(BREAK, 0, error.start)}"
        raise LacliError(f"{place}: not UTF-8 text, byte {raw[error.start]:#04x}", "convert it with iconv") from error
    except json.JSONDecodeError as error:
        place = f"{path}:{line + error.lineno - 1}"
        raise LacliError(f"{place}: not JSON, {error.msg} at column {error.colno}", EXAMPLE) from error
    except (ValueError, RecursionError) as error:
        raise LacliError(f"{path}:{line}: JSON too deep, or with too long a number, to be read", EXAMPLE) from error
    return parsed


def _parquet_rows(file: Stream, path: str) -> Iterator[tuple[str, object]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise LacliError(f"{path} is a Parquet file, which needs pyarrow", "pip install 'lacli[suites]'") from error
    number = 0
    try:
        for batch in ParquetFile(file).iter_batches(BATCH):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except ArrowException as error:
        raise LacliError(f"{path} is damaged or cut short", "fetch the file again") from error

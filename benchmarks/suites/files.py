"""The files of published suites: JSON lines, the same compressed with gzip, one JSON list, or Parquet.

The format is read from a file's first bytes, so its name does not matter. Only a list is read whole; of the others one
row at a time.
"""

from __future__ import annotations

import gzip
import zlib
from typing import IO, cast

from benchmarks.suites.rows import task_from_suite
from lacli.bench.tasks import BOM, OWN, Rows, Stream, Task, json_lines, parsed, tasks_in
from lacli.errors import LacliError
from lacli.text.files import read_to_end

GZIP, PARQUET, LIST = b"\x1f\x8b", b"PAR1", b"["
BATCH = 256


def read_suite(path: str, *, kind: str = OWN, first: int = 0) -> list[Task]:
    """The tasks of a suite's file, in its order.

    kind: the class of rows that name none. first: read only the first `first` tasks, 0 for all. Raises LacliError with
    the file and the place for what is no task, and for a file that cannot be read.
    """
    return tasks_in(path, _rows, task_from_suite, kind, first)


def _rows(file: Stream, path: str) -> Rows:
    begin = file.peek(len(PARQUET))
    if begin.startswith(PARQUET):
        yield from _parquet_rows(file, path)
    elif begin.startswith(GZIP):
        try:
            with gzip.GzipFile(fileobj=cast(IO[bytes], file)) as unpacked:
                yield from _json_rows(unpacked, path)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _damaged(path) from error
    else:
        yield from _json_rows(file, path)


def _json_rows(file: Stream, path: str) -> Rows:
    if file.peek(len(BOM)).startswith(BOM):
        file.read(len(BOM))
    if not file.peek(1).startswith(LIST):
        yield from json_lines(file, path)
        return
    rows = parsed(read_to_end(file.read), path, 1)
    assert isinstance(rows, list)
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))


def _parquet_rows(file: Stream, path: str) -> Rows:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise LacliError(f"{path} is a Parquet file, which needs pyarrow", "pip install 'lacli[test]'") from error
    number = 0
    try:
        for batch in ParquetFile(file).iter_batches(BATCH):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except ArrowException as error:
        raise _damaged(path) from error


def _damaged(path: str) -> LacliError:
    return LacliError(f"{path} is damaged or cut short", "fetch the file again")

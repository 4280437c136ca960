"""Small JSON files of what was measured, each of one key: read whole or not at all, and replaced in one go.

What is in them, and where they lie, is their owners' affair.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from lacli.errors import reason_of
from lacli.text.files import MAX_RECORD, read_file

UNREADABLE = (OSError, ValueError, LookupError, TypeError, RecursionError)
"""What reading a file and making a record of its content can raise: the file is as good as absent."""


def read_record(path: Path, form: int, key: Any, name: str) -> Any:
    """What was kept under this key, as JSON gives it back.

    form: the format's number. name: the record's in the file. Raises FileNotFoundError where nothing was kept, and any
    of UNREADABLE for a file that is damaged or of another key or format.
    """
    kept = json.loads(read_file(path, MAX_RECORD))
    if kept["format"] != form or kept["key"] != plain(key):
        raise ValueError("it is of another format or for something else")
    return kept[name]


def save_record(path: Path, form: int, key: Any, name: str, record: Any) -> str:
    """Keep a record in the place of an older one; the reason where the folder cannot take it, otherwise ''."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, suffix=".part", encoding="utf-8", delete=False) as file:
            temporary = file.name
            json.dump({"format": form, "key": key, name: record}, file, indent=1)
            file.write("\n")
        # Whoever reads meanwhile finds the old file or the new one, never a part.
        os.replace(temporary, path)
    except OSError as error:
        # What the system says of a file in a folder's place differs from one depth to another.
        in_the_way = isinstance(error, (FileExistsError, NotADirectoryError))
        return f"cannot keep it in {path.parent}: {'it is no folder' if in_the_way else reason_of(error)}"
    finally:
        with suppress(OSError):
            os.unlink(temporary)
    return ""


def plain(record: Any) -> Any:
    """A record of plain values as JSON gives it back: lists in the place of tuples."""
    return json.loads(json.dumps(record))

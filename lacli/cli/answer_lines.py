"""The lines of `lacli run --prompts`: answers as JSON on standard output, or in a file to which a second run adds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lacli.errors import LacliError, OutputError, reason_of
from lacli.text.files import Closing, lock

if TYPE_CHECKING:
    from lacli.terminal.screen import Screen

BEGINNING = b'{"index": '
"""The beginning of an answer's line."""

REPEATED = {
    "prompt": "prompt",
    "messages": "prompt",
    "system": "system prompt",
    "id": "id",
    "custom_id": "custom_id",
}
"""Fields of an answer's line that are the row's own, in words."""

Row = Mapping[str, Any]


class Lines(Closing):
    """Answers as JSON lines on standard output, each as soon as all before it are out.

    `answered`: the indices of the prompts that have an answer. `models`: the names of the models that gave them.
    """

    place, way_on = "out", ""

    def __init__(self, screen: Screen) -> None:
        self.answered: set[int] = set()
        self.models: set[str] = set()
        self._screen = screen
        self._next = 0
        self._waiting: dict[int, Row] = {}

    def add(self, row: Row) -> None:
        """Take in what became of a prompt. Raises OutputError where it cannot be written."""
        self._waiting[row["index"]] = row
        while row := self._waiting.pop(self._next, {}):
            self._screen.line(_line(row))
            self._next += 1
            self._count(row)

    def close(self) -> None:
        """Write nothing more."""

    def _count(self, row: Row) -> None:
        # Of two lines about a row the later one counts.
        self.answered.discard(row["index"])
        if "error" not in row:
            self.answered.add(row["index"])
            self.models.add(str(row.get("model", "")))


class LinesFile(Lines):
    """The same in a file, where a line is written when its answer is there.

    Answers that it has already count. Raises LacliError for a file of anything else, which stays as it is.
    """

    def __init__(self, name: str, screen: Screen, asked: Sequence[Row]) -> None:
        """`asked`: what the line of each prompt begins with."""
        super().__init__(screen)
        self.place, self.way_on = f"in {name}", "the same command goes on"
        self._name, self._asked = name, asked
        self._path = Path(os.path.realpath(os.path.expanduser(name)))
        try:
            if self._path.exists() and not self._path.is_file():
                raise LacliError(f"{name} is no ordinary file", "give another name to -o, or - for standard output")
            self._file: BinaryIO = self._path.open("ab")
            lines = self._lock_and_read()
        except BlockingIOError as error:
            what = f"another run is writing {name}"
            raise LacliError(what, "wait for its end, or give another name to -o") from error
        except OSError as error:
            raise LacliError(f"cannot write {name}: {reason_of(error)}", "give another name to -o") from error
        for _, row in lines:
            self._count(row)

    def add(self, row: Row) -> None:
        try:
            self._file.write(f"{_line(row)}\n".encode())
            self._file.flush()
        except OSError as error:
            hint = "the same command goes on behind the answers that are there"
            raise OutputError(f"cannot write {self._name}: {reason_of(error)}", hint) from error
        self._count(row)

    def close(self) -> None:
        # What a full disk did not take has been told.
        with suppress(OSError):
            self._file.close()

    def _lock_and_read(self) -> list[tuple[bytes, Row]]:
        """Lock the file, cut a broken last line off, and return the whole lines."""
        try:
            lock(self._file)
            lines = [*self._read()]
            self._file.truncate(sum(len(line) for line, _ in lines))
        except BaseException:
            self.close()
            raise
        return lines

    def _read(self) -> Iterator[tuple[bytes, Row]]:
        """The whole lines of the file, and what they say."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                is_whole = line.endswith(b"\n")
                row, other = self._parsed(line) if is_whole else ({}, "")
                if row and not other:
                    yield line, row
                elif is_whole or not BEGINNING.startswith(line[: len(BEGINNING)]):
                    what = f"line {number} of {self._name} is no answer to these prompts{other}"
                    raise LacliError(what, "give another name to -o, or move that file away")

    def _parsed(self, line: bytes) -> tuple[Row, str]:
        """What the line of an answer says, empty where it is none, and words on what else was asked."""
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            row: Row = json.loads(line)
            index = row["index"]
            if type(index) is int and index >= 0:
                asked = self._asked[index]
                # A row with an error is asked again, and may have been mended.
                compared = {} if "error" in row else REPEATED
                changed = next((words for name, words in compared.items() if row.get(name) != asked.get(name)), "")
                is_ours = "error" in row or "text" in row
                return (row, f": row {index + 1} had another {changed}" if changed else "") if is_ours else ({}, "")
        return {}, ""


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False)

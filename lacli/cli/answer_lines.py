"""The lines of `lacli run --prompts`: answers as JSON on standard output, or in a file to which a second run adds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lacli.bench.tasks import Task
from lacli.errors import LacliError, OutputError, reason_of
from lacli.text.files import Closing, lock, replace_file

if TYPE_CHECKING:
    from lacli.terminal.screen import Screen

BEGINNING = b'{"index": '
"""The beginning of an answer's line."""

Row = dict[str, Any]


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

    def finish(self) -> None:
        """Put the lines into the order of the prompts."""

    def close(self) -> None:
        """Write nothing more."""

    def _count(self, row: Row) -> None:
        if "error" not in row:
            self.answered.add(row["index"])
            self.models.add(str(row.get("model", "")))


class LinesFile(Lines):
    """The same in a file, where a line is written when its answer is there, and all are put into order at the end.

    Answers that it has already count. Raises LacliError for a file of anything else, which stays as it is.
    """

    def __init__(self, name: str, screen: Screen, tasks: Sequence[Task]) -> None:
        super().__init__(screen)
        self.place, self.way_on = f"in {name}", "the same command goes on"
        self._name, self._tasks = name, tasks
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

    def finish(self) -> None:
        try:
            lines = [*self._read()]
            if [row["index"] for _, row in lines] != [*range(len(self._tasks))]:
                # Of two lines the later one is the answer behind an error.
                by_index = {row["index"]: line for line, row in lines}
                replace_file(self._path, [by_index[index] for index in sorted(by_index)])
        except OSError as error:
            hint = "all answers are there, in the order in which they came"
            raise OutputError(f"cannot put {self._name} into order: {reason_of(error)}", hint) from error

    def close(self) -> None:
        # What a full disk did not take has been told.
        with suppress(OSError):
            self._file.close()

    def _lock_and_read(self) -> list[tuple[bytes, Row]]:
        """Lock the file, cut a broken last line off, and return the whole lines."""
        try:
            lock(self._file)
            if not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                raise BlockingIOError  # the run that held it has just put another file in its place
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
                task = self._tasks[index]
                was = {"prompt": row["prompt"], "system prompt": row.get("system", ""), "id": row.get("id")}
                now = {"prompt": prompt_of(task), "system prompt": task.system, "id": task.id}
                changed = next((name for name in now if was[name] != now[name]), "")
                return row, f": row {index + 1} had another {changed}" if changed else ""
        return {}, ""


def prompt_of(task: Task) -> str | list[str]:
    """A prompt as answers repeat it: a text, or a list of several turns."""
    return [*task.turns] if task.turns[1:] else task.turns[0]


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False)

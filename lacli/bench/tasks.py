"""What a benchmark asks: tasks, the prompts that ship with lacli, and prompt files of a user's own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from io import BufferedReader
from itertools import zip_longest
from typing import Any

from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.sampling import SamplingSettings
from lacli.text.files import MAX_TEXT
from lacli.text.format import did_you_mean
from lacli.text.question import STDIN

CLASSES = ("code", "edit", "chat", "summary", "extract", "translate", "maths", "story", "docs", "forms")
"""The classes that ship with lacli, in the order of its tables."""

OWN = "own"
"""The class of a row that names none."""

ALL = "all"
"""The class of a result over all classes."""

EXAMPLE = 'a row is a JSON object, for example {"prompt": "..."}'
TURNS = '"turns": ["first question", "second question"]'

ID_FIELDS = ("task_id", "question_id", "id")
"""The fields that name a row, in HumanEval, in Spec-Bench and in files of one's own."""

NO_FIELDS = {
    *("mode", "stop", "temperature", "response_format", "n_predict", "max_new_tokens", "max_completion_tokens"),
    *(field.name for field in fields(SamplingSettings)),
}
"""Fields of other programs that would change the answer of a row, and that are flags here."""

Row = Mapping[str, Any]
Rows = Iterator[tuple[str, object]]
"""Parsed rows, each with its file and line in words."""


@dataclass(frozen=True)
class Task:
    """One conversation to decode, or one text to continue.

    `turns`: the user's messages in order, at least one; each is asked after the answer to the one before it. `kind`:
    its class. `name`: its id in its source, HumanEval/0 for example. `raw`: continue the text as it stands, without a
    chat template. `max_tokens`: of an answer; 0 leaves that to the benchmark. `reference`: the right answer of a public
    data set that has one. `id`: as the row has it, None without one.
    """

    turns: tuple[str, ...]
    kind: str = OWN
    name: str = ""
    system: str = ""
    raw: bool = False
    max_tokens: int = 0
    reference: str = ""
    id: str | int | float | None = None


def built_in() -> list[Task]:
    """The prompts that ship with lacli, class by class in the order of CLASSES."""
    classes = by_class(read_tasks(str(files("lacli") / "data" / "bench_prompts.jsonl")))
    return [
        replace(task, name=f"{kind}/{number}") for kind in CLASSES for number, task in enumerate(classes.get(kind, []))
    ]


def tasks_of(prompts: str | None, classes: str | None) -> list[Task]:
    """The tasks of the file `prompts`, or the built-in ones; of `classes`, with commas between them, or of all.

    Raises UsageError for a class that has no task.
    """
    tasks = read_tasks(prompts) if prompts else built_in()
    # A class of that name would be taken for the total of all classes.
    tasks = [replace(task, kind=f"class {ALL}") if task.kind == ALL else task for task in tasks]
    names = [name.strip() for name in classes.split(",")] if classes is not None else []
    known = [*by_class(tasks)]
    if unknown := [name for name in names if name not in known]:
        hint = did_you_mean(unknown[0], known, f"the classes are {', '.join(known)}")
        raise UsageError(f"there is no prompt class {unknown[0]}", hint)
    return [task for task in tasks if not names or task.kind in names]


def by_class(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """The tasks of each class, the classes in the order in which they first appear."""
    classes: dict[str, list[Task]] = {}
    for task in tasks:
        classes.setdefault(task.kind, []).append(task)
    return classes


def in_turns(classes: Sequence[Sequence[Task]]) -> list[Task]:
    """One task of each class after the other, so that what is cut off is of all classes."""
    return [task for tasks in zip_longest(*classes) for task in tasks if task]


def read_tasks(path: str) -> list[Task]:
    """The tasks of a file of JSON lines, or of stdin for `-`, in its order; blank lines are skipped.

    Raises LacliError with the file and the line for what is no prompt, and for a file that cannot be read.
    """
    tasks = []
    with opened(path) as file:
        for place, row in each_line(file, path):
            try:
                tasks.append(task_from_row(row))
            except LacliError as error:
                raise LacliError(f"{place}: {error.what}", error.hint) from error
    if not tasks:
        raise LacliError(f"{path} holds no prompts", EXAMPLE)
    return tasks


@contextmanager
def opened(path: str) -> Iterator[BufferedReader]:
    """Open a file of prompts, or stdin for `-`. Raises LacliError where it cannot be read."""
    try:
        from_stdin = path == STDIN
        with open(0 if from_stdin else os.path.expanduser(path), "rb", closefd=not from_stdin) as file:
            yield file
    except OSError as error:
        raise LacliError(f"cannot read {path}: {reason_of(error)}", "check the file's name") from error


def each_line(file: BufferedReader, path: str) -> Rows:
    """The JSON value of each line that is not blank, or in its place the LacliError about one that has none."""
    number = 0
    while line := file.readline(MAX_TEXT + 1):
        number += 1
        place = f"{path}:{number}"
        if len(line) > MAX_TEXT:
            raise LacliError(f"{place}: a line of more than {MAX_TEXT >> 20} MiB", EXAMPLE)
        if line.strip():
            yield place, _parsed(line.rstrip())


def _parsed(line: bytes) -> object:
    """The JSON value of a line, or the LacliError about it."""
    try:
        found: object = json.loads(line.decode("utf-8-sig"))
        return found
    except UnicodeDecodeError as error:
        return LacliError(f"not UTF-8 text, byte {line[error.start]:#04x}", "convert it with iconv")
    except json.JSONDecodeError as error:
        return LacliError(f"not JSON, {error.msg.removesuffix(' starting at')} at column {error.colno}", EXAMPLE)
    except (ValueError, RecursionError):
        return LacliError("JSON too deep, or with too long a number, to be read", EXAMPLE)


def task_from_row(row: object) -> Task:
    """The task of a row with `turns`, as Spec-Bench and MT-Bench have them, or with one `prompt`.

    Raises LacliError for another row, or a field of the wrong type.
    """
    if isinstance(row, LacliError):
        raise row
    if not isinstance(row, Mapping):
        raise LacliError("not a JSON object", EXAMPLE)
    if wrong := [field for field in row if field in NO_FIELDS]:
        raise LacliError(f"{wrong[0]} is no field of a row", "give max_tokens as a limit, and flags for all rows")
    turns = row.get("turns")
    if turns is None:
        if row.get("prompt") is None:
            if "messages" in row:
                raise LacliError("only lacli run --prompts takes messages", f'write "system" and "prompt", or {TURNS}')
            raise LacliError("no prompt", f'a row has "prompt", or {TURNS}')
        turns = [_text(row, "prompt")]
    elif row.get("prompt") is not None:
        raise LacliError("a row has prompt and turns", "drop one of them")
    elif not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise LacliError("turns is not a list of questions", f"write {TURNS}")
    raw, row_id = row.get("raw"), _id(row)
    if not isinstance(raw, bool | None):
        raise LacliError("raw is neither true nor false", "write true, or leave it out")
    return Task(
        turns=tuple(_checked(turn, "turns" if row.get("turns") else "prompt") for turn in turns),
        kind=_text(row, "class") or _text(row, "category") or OWN,
        name="" if row_id is None else str(row_id),
        system=_text(row, "system"),
        raw=bool(raw),
        max_tokens=_max_tokens(row),
        id=row_id,
    )


def _id(row: Row) -> str | int | float | None:
    """The id of a row as it is written, None without one."""
    field = next((field for field in ID_FIELDS if row.get(field) is not None), "")
    found = row[field] if field else None
    # Not a number is unequal to itself.
    if isinstance(found, bool) or not isinstance(found, str | int | float | None) or found != found:
        raise LacliError(f"{field} is neither a text nor a number", "write one of them")
    return _encodable(found, field) if isinstance(found, str) else found


def _text(row: Row, field: str) -> str:
    """The text of a field, "" where the row has none. Raises LacliError for anything else and for a blank text."""
    text = row.get(field)
    if text in (None, ""):
        return ""
    if not isinstance(text, str):
        raise LacliError(f"{field} is not a text", "put it into quotes")
    return _checked(text, field)


def _checked(text: str, field: str) -> str:
    if not text.strip():
        raise LacliError(f"{field} is empty", "leave the row out")
    return _encodable(text, field)


def _encodable(text: str, field: str) -> str:
    """The text of a field. Raises LacliError for half a surrogate pair, which JSON can write and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LacliError(f"{field} holds half a surrogate pair", "write the whole character") from error
    return text


def _max_tokens(row: Row) -> int:
    field = next((field for field in ("limit", "max_tokens") if row.get(field) is not None), "")
    if not field:
        return 0
    limit = row[field]
    if type(limit) is not int or limit < 1:
        raise LacliError(f"{field} is not a number of tokens", f'write "{field}": 256, or leave it out')
    return limit

"""What a benchmark asks: tasks, the prompts that ship with lacli, and prompt files of a user's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from gzip import GzipFile
from importlib.resources import files
from io import BufferedReader
from itertools import islice, zip_longest
from typing import Any

from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.sampling import SamplingSettings
from lacli.text.files import MAX_TEXT
from lacli.text.format import did_you_mean, offered, suggest
from lacli.text.question import STDIN

CLASSES = {
    "code": "code completion",
    "edit": "code editing, copy-heavy",
    "chat": "chat",
    "summary": "summarising",
    "extract": "extraction to JSON",
    "translate": "translation",
    "maths": "maths",
    "story": "creative writing",
    "docs": "technical documentation",
    "forms": "forms and templates",
}
"""The classes that ship with lacli, in the order of its tables: a short name -> what it is."""

OWN = "own"
"""The class of a row that names none."""

ALL = "all"
"""The class of a result over all classes."""

PROMPTS = "bench_prompts.jsonl"

BOM = b"\xef\xbb\xbf"
EXAMPLE = 'a row is a JSON object, for example {"prompt": "..."}'
TURNS = '"turns": ["first question", "second question"]'
BREAK = b"\n"

ID_FIELDS = ("task_id", "question_id", "id")
"""The fields that name a row, in HumanEval, in Spec-Bench and in files of one's own."""

Row = Mapping[str, Any]
Rows = Iterator[tuple[str, object]]
"""Parsed rows, each with its file and line in words."""

Stream = BufferedReader | GzipFile


@dataclass(frozen=True)
class Task:
    """One conversation to decode, or one text to continue.

    `turns`: the user's messages in order, at least one; each is asked after the answer to the one before it. `kind`:
    its class. `name`: its id in its source, HumanEval/0 for example. `raw`: continue the text as it stands, without a
    chat template. `max_tokens`: of an answer; 0 leaves that to the benchmark. `reference`: the right answer, where the
    source has one. `id`: as the row has it, None without one.
    """

    turns: tuple[str, ...]
    kind: str = OWN
    name: str = ""
    system: str = ""
    raw: bool = False
    max_tokens: int = 0
    reference: str = ""
    id: str | int | float | None = None


def built_in(classes: Sequence[str] = ()) -> list[Task]:
    """The prompts that ship with lacli, class by class in the order of CLASSES, or those of the `classes` named.

    Raises UsageError for a class that does not exist.
    """
    for name in classes:
        if name not in CLASSES:
            hint = did_you_mean(name, CLASSES, f"the classes are {', '.join(CLASSES)}")
            raise UsageError(f"there is no prompt class {name}", hint)
    found: dict[str, list[Task]] = {name: [] for name in CLASSES}
    for task in read_tasks(str(files("lacli") / "data" / PROMPTS)):
        own = found[task.kind]
        own.append(replace(task, name=f"{task.kind}/{len(own)}"))
    return [task for name, tasks in found.items() if name in classes or not classes for task in tasks]


def tasks_of(prompts: str | None, classes: str | None) -> list[Task]:
    """The tasks of the file `prompts`, or the built-in ones; of `classes`, with commas between them, or of all."""
    return of_classes(read_tasks(prompts), classes) if prompts else built_in(_names(classes))


def of_classes(tasks: Sequence[Task], classes: str | None) -> list[Task]:
    """The tasks of the `classes` named, or all for None. Raises UsageError for a class that has no task."""
    names = _names(classes)
    known = dict.fromkeys(task.kind for task in tasks)
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"there is no class {unknown[0]} among these prompts", f"there are {', '.join(known)}")
    return [
        # A class of that name would be taken for the total of all classes.
        replace(task, kind=f"class {ALL}") if task.kind == ALL else task
        for task in tasks
        if not names or task.kind in names
    ]


def by_class(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """The tasks of each class, the classes in the order in which they first appear."""
    classes: dict[str, list[Task]] = {}
    for task in tasks:
        classes.setdefault(task.kind, []).append(task)
    return classes


def in_turns(classes: Sequence[Sequence[Task]]) -> list[Task]:
    """One task of each class after the other, so that what is cut off is of all classes."""
    return [task for tasks in zip_longest(*classes) for task in tasks if task]


def read_tasks(path: str, *, kind: str = OWN) -> list[Task]:
    """The tasks of a file of JSON lines, or of stdin for `-`, in its order; blank lines are skipped.

    `kind`: the class of rows that name none. Raises LacliError with the file and the line for what is no prompt, and
    for a file that cannot be read.
    """
    return tasks_in(path, json_lines, task_from_row, kind)


def tasks_in(
    path: str, rows: Callable[[Stream, str], Rows], form: Callable[[Row, str], Task], kind: str, first: int = 0
) -> list[Task]:
    """The tasks of a file whose format is read by `rows` and whose rows are understood by `form`.

    `first`: read only the first `first` tasks, 0 for all.
    """
    with opened(path) as file:
        tasks = [_task(row, place, kind, form) for place, row in islice(rows(file, path), first or None)]
    if not tasks:
        raise LacliError(f"{path} holds no prompts", EXAMPLE)
    return tasks


@contextmanager
def opened(path: str) -> Iterator[Stream]:
    """Open a file of prompts, or stdin for `-`. Raises LacliError where it cannot be read."""
    try:
        from_stdin = path == STDIN
        with open(0 if from_stdin else os.path.expanduser(path), "rb", closefd=not from_stdin) as file:
            yield file
    except OSError as error:
        raise LacliError(f"cannot read {path}: {reason_of(error)}", "check the file's name") from error


FLAGS_ALONE = {"temperature", "stop", "mode", "response_format", *(field.name for field in fields(SamplingSettings))}
"""What would change the answer of a row, and is said of all rows by flags."""

LIMITS = ("n_predict", "max_new_tokens", "max_completion_tokens")
"""Names of flags and of other programs for max_tokens; `n` is a number of answers there, and a column of data sets."""

SLIPPED = ("max_tokens", "system")
"""Fields without which a row is answered otherwise, in silence."""

SLIP = 0.9
"""Likeness from which a field's name is one of them misspelt: max_token has 0.95, sytem 0.91, min_tokens 0.8."""


def json_lines(file: Stream, path: str) -> Rows:
    """The JSON value of each line that is not blank. Raises LacliError for one that has none."""
    for place, found in each_line(file, path):
        if isinstance(found, LacliError):
            raise found
        yield place, found


def each_line(file: Stream, path: str) -> Rows:
    """The JSON value of each line that is not blank, or in its place the LacliError about one that has none."""
    if file.peek(len(BOM)).startswith(BOM):
        file.read(len(BOM))
    number = 0
    while line := file.readline(MAX_TEXT + 1):
        number += 1
        place, rest = f"{path}:{number}", line
        while len(rest) > MAX_TEXT and not rest.endswith(BREAK):
            rest = file.readline(MAX_TEXT + 1)
        if len(line) > MAX_TEXT:
            yield place, LacliError(f"{place}: a line of more than {MAX_TEXT >> 20} MiB", EXAMPLE)
        elif line.strip():
            try:
                yield place, parsed(line.rstrip(), path, number)
            except LacliError as error:
                yield place, error


def parsed(raw: bytes, path: str, line: int) -> object:
    """The JSON value of what begins on line `line` of a file. Raises LacliError with the place of what is wrong."""
    try:
        found: object = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        place = f"{path}:{line + raw.count(BREAK, 0, error.start)}"
        raise LacliError(f"{place}: not UTF-8 text, byte {raw[error.start]:#04x}", "convert it with iconv") from error
    except json.JSONDecodeError as error:
        place = f"{path}:{line + error.lineno - 1}"
        what = error.msg.removesuffix(" starting at")
        raise LacliError(f"{place}: not JSON, {what} at column {error.colno}", EXAMPLE) from error
    except (ValueError, RecursionError) as error:
        raise LacliError(f"{path}:{line}: JSON too deep, or with too long a number, to be read", EXAMPLE) from error
    return found


def task_from_row(row: Row, kind: str = OWN) -> Task:
    """The task of a row with `turns`, as Spec-Bench and MT-Bench have them, or with one `prompt`.

    `kind`: the class of a row that names none. Raises LacliError for another row, or a field of the wrong type.
    """
    for field in row:
        if field in FLAGS_ALONE:
            flag = "--json-schema" if field == "response_format" else "the flag"
            raise LacliError(f"{field} is no field of a row", f"give {flag}, for all rows")
        if field in SLIPPED:
            continue
        if meant := ["max_tokens"] if field in LIMITS else suggest(field, SLIPPED, least=SLIP):
            raise LacliError(f"{field} is no field of a row", offered(meant[:1]))
    turns = row.get("turns")
    if turns is None:
        if row.get("prompt") is None:
            if "messages" in row:
                raise LacliError("only lacli run --prompts takes messages", f'write "system" and "prompt", or {TURNS}')
            raise LacliError("no prompt", f'a row has "prompt", or {TURNS}')
        turns = [text_of(row, "prompt")]
    elif row.get("prompt") is not None:
        raise LacliError("a row has prompt and turns", "drop one of them")
    elif not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise LacliError("turns is not a list of questions", f"write {TURNS}")
    return Task(
        turns=tuple(checked(turn, "turns") for turn in turns),
        kind=optional_text(row, "class") or optional_text(row, "category") or kind,
        name=name_of(row),
        system=optional_text(row, "system"),
        raw=_raw(row),
        max_tokens=_max_tokens(row),
        reference=_reference(row),
        id=id_of(row),
    )


def _raw(row: Row) -> bool:
    """Whether the text is continued as it stands. Raises LacliError for what is neither true nor false."""
    raw = row.get("raw")
    if not isinstance(raw, bool | None):
        raise LacliError("raw is neither true nor false", "write true, or leave it out")
    return bool(raw)


def id_of(row: Row) -> str | int | float | None:
    """The id of a row as it is written, None without one. Raises LacliError for one that is no text and no number."""
    field = next((field for field in ID_FIELDS if row.get(field) is not None), "")
    found = row[field] if field else None
    if isinstance(found, bool) or not isinstance(found, str | int | float | None) or found != found:
        raise LacliError(f"{field} is neither a text nor a number", "write one of them")
    return encodable(found, field) if isinstance(found, str) else found


def name_of(row: Row) -> str:
    """The id of a row as a text, "" where it has none. Raises LacliError as `id_of` does."""
    found = id_of(row)
    return "" if found is None else str(found)


def text_of(row: Row, field: str) -> str:
    """A field that must be a text. Raises LacliError."""
    text = row[field]
    if not isinstance(text, str):
        raise LacliError(f"{field} is not a text", "put it into quotes")
    return checked(text, field)


def optional_text(row: Row, field: str) -> str:
    """The same, "" where the row has none."""
    return "" if row.get(field) in (None, "") else text_of(row, field)


def checked(text: str, field: str) -> str:
    """The text of a field. Raises LacliError for a blank one, and as `encodable` does."""
    if not text.strip():
        raise LacliError(f"{field} is empty", "leave the row out")
    return encodable(text, field)


def encodable(text: str, field: str) -> str:
    """The text of a field. Raises LacliError for half a surrogate pair, which JSON can write and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LacliError(f"{field} holds half a surrogate pair", "write the whole character") from error
    return text


def _names(classes: str | None) -> list[str]:
    return [name.strip() for name in classes.split(",")] if classes is not None else []


def _task(row: object, place: str, kind: str, form: Callable[[Row, str], Task]) -> Task:
    if not isinstance(row, dict):
        raise LacliError(f"{place}: not a JSON object", EXAMPLE)
    try:
        return form(row, kind)
    except LacliError as error:
        raise LacliError(f"{place}: {error.what}", error.hint) from error


def _max_tokens(row: Row) -> int:
    field = next((field for field in ("limit", "max_tokens") if row.get(field) is not None), "")
    if not field:
        return 0
    limit = row[field]
    if type(limit) is not int or limit < 1:
        raise LacliError(f"{field} is not a number of tokens", f'write "{field}": 256, or leave it out')
    return limit


def _reference(row: Row) -> str:
    """The right answer: a text, or a list with one for each turn; lists of anything else are of no use here."""
    reference = row.get("reference")
    texts = reference if isinstance(reference, list) else [reference]
    return "\n\n".join(text for text in texts if isinstance(text, str))

"""What a benchmark asks: tasks, the prompts that ship with lacli, and prompt files of a user's own."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from io import BufferedReader
from typing import Annotated, Self

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, model_validator
from pydantic_core import from_json

from lacli.errors import LacliError, UsageError, reason_of
from lacli.text.checked import WithoutNull, checked
from lacli.text.files import MAX_TEXT, STDIN
from lacli.text.format import did_you_mean, size_in_words

OWN = "own"
"""The class of a row that names none."""

ALL = "all"
"""The class of a result over all classes."""

EXAMPLE = 'a row is a JSON object, for example {"prompt": "..."}'


@dataclass(frozen=True)
class Task:
    """One conversation to decode, or one text to continue.

    `turns`: the user's messages, at least one; each is asked after the answer to the one before it. `kind`: its class.
    `raw`: without a chat template. `max_tokens`: of an answer; 0 leaves that to the benchmark. `name`, `reference`: its
    id in a public data set, and the right answer if the set has one.
    """

    turns: tuple[str, ...]
    kind: str = OWN
    name: str = ""
    system: str = ""
    raw: bool = False
    max_tokens: int = 0
    reference: str = ""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("the text is empty")
    return text


Text = Annotated[str, AfterValidator(_not_blank)]


class Row(WithoutNull):
    """A line of a file of prompts, with `turns` as Spec-Bench and MT-Bench have them, or with one `prompt`."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())

    prompt: Text = ""
    turns: list[Text] = Field(default=[], min_length=1)
    kind: str = Field(OWN, validation_alias=AliasChoices("class", "category"))
    id: str | int | float | None = Field(None, validation_alias=AliasChoices("task_id", "question_id", "id"))
    system: str = ""
    raw: bool = False
    max_tokens: int = Field(0, ge=1, validation_alias=AliasChoices("limit", "max_tokens"))

    @model_validator(mode="after")
    def _has_one_prompt(self) -> Self:
        if sum(map(bool, self.ways)) != 1:
            raise ValueError('a row has a "prompt", or "turns": ["first question", "second question"]')
        return self

    @property
    def ways(self) -> Sequence[object]:
        """The fields of which a row has one."""
        return self.prompt, self.turns

    @property
    def task(self) -> Task:
        """What the row asks."""
        turns = tuple(self.turns or [self.prompt])
        return Task(turns, self.kind or OWN, system=self.system, raw=self.raw, max_tokens=self.max_tokens)


def tasks_of(prompts: str | None, classes: str | None) -> list[Task]:
    """The tasks of the file `prompts`, or those that ship with lacli; of `classes`, with commas between, or of all.

    Raises UsageError for a class that has no task.
    """
    tasks = read_tasks(prompts or str(files("lacli") / "data" / "bench_prompts.jsonl"))
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


def read_tasks(path: str) -> list[Task]:
    """The tasks of a file of JSON lines, or of stdin for `-`, in its order; blank lines are skipped.

    Raises LacliError with the file and the line for what is no prompt, and for a file that cannot be read.
    """
    tasks = []
    with opened(path) as file:
        for place, row in each_line(file, path):
            try:
                if isinstance(row, LacliError):
                    raise row
                tasks.append(checked(Row, row).task)
            except LacliError as error:
                raise LacliError(f"{place}: {error.what}", error.hint or EXAMPLE) from error
    if not tasks:
        raise LacliError(f"{path} holds no prompts", EXAMPLE)
    return tasks


@contextmanager
def opened(path: str) -> Iterator[BufferedReader]:
    """Open a file of prompts, or stdin for `-`. Raises LacliError if it cannot be read."""
    try:
        from_stdin = path == STDIN
        with open(0 if from_stdin else os.path.expanduser(path), "rb", closefd=not from_stdin) as file:
            yield file
    except OSError as error:
        raise LacliError(f"cannot read {path}: {reason_of(error)}", "check the file's name") from error


def each_line(file: BufferedReader, path: str) -> Iterator[tuple[str, object]]:
    """Yield the file and line of each line that is not blank, with its JSON value or the LacliError about it."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_TEXT + 1), b""), start=1):
        place = f"{path}:{number}"
        if len(line) > MAX_TEXT:
            raise LacliError(f"{place}: longer than {size_in_words(MAX_TEXT)}", EXAMPLE)
        if line.strip():
            try:
                yield place, from_json(line.removeprefix(codecs.BOM_UTF8))
            except ValueError as error:
                yield place, LacliError(f"not JSON: {error}", EXAMPLE)

"""The points of a benchmark (modes and values of W, N and G), and its prompts, lacli's own or from a file."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product
from typing import IO, Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import from_json

from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.settings import ModelSettings, fit_to_batch
from lacli.settings import MODES, DecodeSettings, ModeName
from lacli.terminal.input import STDIN
from lacli.text.files import MAX_TEXT
from lacli.text.format import did_you_mean, size_in_words
from lacli.text.json_schema import checked, without_null

Name = TypeVar("Name", bound=str)

SIZES: Mapping[ModeName, Sequence[str]] = {"lookahead": ("window", "ngram", "guesses"), "jacobi": ("window",)}
"""The fields of the sizes that can be swept, by mode."""


@dataclass(frozen=True)
class Axes:
    """The modes to compare, and the values of W, N and G to sweep; () for the default value alone."""

    modes: tuple[ModeName, ...] = MODES
    windows: tuple[int, ...] = ()
    ngrams: tuple[int, ...] = ()
    guesses: tuple[int, ...] = ()


@dataclass(frozen=True)
class Point:
    """Settings to measure, one point of a sweep. `name`: its label, "" for mode and sizes."""

    settings: DecodeSettings
    name: str = ""

    @property
    def mode(self) -> ModeName:
        return self.settings.mode

    @property
    def label(self) -> str:
        """`name`, or else mode and sizes, such as "lookahead W=15 N=5 G=15". It is unique within the sweep."""
        return self.name or _label(self.mode, vars(self.settings))


def parse_names(text: str, known: Sequence[Name], kind: str) -> list[Name]:
    """Return the comma-separated names in `text`, ordered as in `known`.

    Raises UsageError for any other name, which the message calls a `kind`, such as "mode".
    """
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        hint = did_you_mean(unknown[0], known, f"take one of {', '.join(known)}")
        raise UsageError(f"there is no {kind} {unknown[0]!r}", hint)
    return [name for name in known if name in names]


def parse_numbers(text: str, flag: str) -> list[int]:
    """Return the comma-separated numbers in `text`, each once. Raises UsageError about `flag` for anything else."""
    items = [item.strip() for item in text.split(",")]
    if wrong := [item for item in items if not re.fullmatch(r"\d{1,9}", item)]:
        raise UsageError(f"{flag} {wrong[0]!r} is no number", f"{flag} 5 or {flag} 1,5,10 for example")
    return list(dict.fromkeys(map(int, items)))


def points(axes: Axes, base: DecodeSettings, model_settings: ModelSettings) -> tuple[list[Point], list[str]]:
    """Return the points to measure, plain decoding and auto first, and a sentence for each setting that cannot run.

    A mode is combined only with the values of its own sizes. An axis without values has the value of `base`; but G
    equals W if W has several values. A setting cannot run if its steps have more rows than a batch of `model_settings`.
    """
    windows, ngrams = axes.windows or (base.window,), axes.ngrams or (base.ngram,)
    sizes: list[dict[str, Any]] = [
        {"window": window, "ngram": ngram, "guesses": guesses}
        for window, ngram in product(windows, ngrams)
        # G = W if W is swept, as the paper's law needs it.
        for guesses in axes.guesses or (window if len(windows) > 1 else base.guesses,)
    ]
    # Plain decoding never rolls back, and a context that can do so costs more.
    found = {Point(replace(base, mode="plain").constrained(max_rollback=-1)): None}
    skipped: dict[str, None] = {}
    for mode, each in product(sorted(axes.modes, key=lambda mode: mode != "auto"), sizes):
        own = {name: each[name] for name in SIZES.get(mode, ())}
        try:
            settings = fit_to_batch(replace(base, mode=mode, **own), model_settings)
        except UsageError as error:
            skipped[f"{_label(mode, each)}: {error.what}"] = None
        else:
            if mode != "plain":
                found[Point(settings)] = None
    return list(found), list(skipped)


def _label(mode: ModeName, sizes: Mapping[str, Any]) -> str:
    return " ".join([mode, *(f"{name[0].upper()}={sizes[name]}" for name in SIZES.get(mode, ()))])


OWN = "own"
"""The class of a row that names no class."""

LEAST_PROMPTS, LEAST_TOKENS = 4, 200
"""The least numbers of prompts and tokens for a verdict: one prompt of 16 tokens tells nothing."""

ALL = "all"
"""The class of a result over all classes."""

EXAMPLE = 'a row is a JSON object, for example {"prompt": "..."}'


@dataclass(frozen=True)
class Task:
    """One conversation to decode, or one text to continue.

    `turns`: the user's messages, at least one, in their order. `kind`: its class. `raw`: continue the text without a
    chat template. `max_tokens`: limit of an answer, 0 for the benchmark's default. `name`: its id in a public data set.
    `reference`: the right answer in the data set, if any.
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


class Row(BaseModel):
    """A line of a prompts file. It has one `prompt`, or `turns` as in Spec-Bench and MT-Bench."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())

    prompt: Text = ""
    turns: list[Text] = Field(default=[], min_length=1)
    kind: str = Field(OWN, validation_alias=AliasChoices("class", "category"))
    id: str | int | float | None = Field(None, validation_alias=AliasChoices("task_id", "question_id", "id"))
    system: str = ""
    raw: bool = False
    max_tokens: int = Field(0, ge=1, validation_alias=AliasChoices("limit", "max_tokens"))

    _without_null = model_validator(mode="before")(without_null)

    @model_validator(mode="after")
    def _has_one_prompt(self) -> Self:
        if sum(map(bool, self.ways)) != 1:
            raise ValueError('a row needs one of "prompt" and "turns": ["first question", "second question"]')
        return self

    @property
    def ways(self) -> Sequence[object]:
        """The values of the fields that can hold the question, such as `prompt`. A row sets exactly one of them."""
        return self.prompt, self.turns

    @property
    def task(self) -> Task:
        turns = tuple(self.turns or [self.prompt])
        return Task(turns, self.kind or OWN, system=self.system, raw=self.raw, max_tokens=self.max_tokens)


def tasks_of(prompts: str | None, classes: str | None) -> list[Task]:
    """Return the tasks of the file `prompts`, None for lacli's own.

    `classes`: a comma-separated list of the classes to take, None for all. Raises UsageError for an unknown class.
    """
    tasks = read_tasks(prompts or str(files("lacli") / "data" / "bench_prompts.jsonl"))
    known = [*by_class(tasks)]
    names = known if classes is None else parse_names(classes, known, "prompt class")
    return [task for task in tasks if task.kind in names]


def by_class(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """Group tasks by class. The classes are in the order of their first tasks."""
    classes: dict[str, list[Task]] = {}
    for task in tasks:
        classes.setdefault(task.kind, []).append(task)
    return classes


def read_tasks(path: str) -> list[Task]:
    """Return the tasks of a file of JSON lines (`-`: stdin), in the order of its lines.

    Raises LacliError with the file and line of an invalid row, and for an unreadable file or one without prompts.
    """
    tasks = []
    for place, row in read_lines(path):
        try:
            if isinstance(row, LacliError):
                raise row
            tasks.append(checked(Row, row).task)
        except LacliError as error:
            raise LacliError(f"{place}: {error.what}", error.hint or EXAMPLE) from error
    if not tasks:
        raise LacliError(f"{path} holds no prompts", EXAMPLE)
    return tasks


def read_lines(path: str, say: Callable[[str], object] | None = None) -> Iterator[tuple[str, object]]:
    """Yield the place (file:line) of each line that is not blank, and its JSON value, or a LacliError if it is no JSON.

    `path`: `-` is stdin. With `say`, a file that begins with neither { nor [ has a plain prompt a line: `say` gets a
    sentence, and the values are {"prompt": line}. Raises LacliError for an unreadable file and for too long a line.
    """
    try:
        from_stdin = path == STDIN
        with open(0 if from_stdin else os.path.expanduser(path), "rb", closefd=not from_stdin) as file:
            yield from _parse_lines(file, path, say)
    except OSError as error:
        raise LacliError(f"cannot read {path}: {reason_of(error)}", "check the file's name") from error


def _parse_lines(file: IO[bytes], path: str, say: Callable[[str], object] | None) -> Iterator[tuple[str, object]]:
    is_text = None if say else False
    for number, line in enumerate(iter(lambda: file.readline(MAX_TEXT + 1), b""), start=1):
        place = f"{path}:{number}"
        if len(line) > MAX_TEXT:
            raise LacliError(f"{place}: the line is longer than {size_in_words(MAX_TEXT)}", EXAMPLE)
        line = line.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")
        if start := line.strip()[:1]:
            if is_text is None and say and (is_text := start not in b"{["):
                say(f"{path} is not JSON, and each of its lines is a prompt")
            try:
                yield place, {"prompt": line.decode()} if is_text else from_json(line)
            except ValueError as error:
                words = str(error).replace("line 1 column", "character").replace("EOF while parsing", "it ends in")
                yield place, LacliError(f"not JSON: {words}", EXAMPLE)

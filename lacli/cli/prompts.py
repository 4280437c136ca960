"""The command `lacli run --prompts`: answers the prompts of a file, several at a time, with a JSON line for each."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from pydantic import AliasChoices, Field

from lacli.bench.plan import EXAMPLE, Row, read_lines
from lacli.errors import Interrupted, LacliError, PromptError, SamplingError, UsageError, reason_of
from lacli.interrupts import second_ctrl_c_ends
from lacli.llamacpp.sampling import SamplingSettings
from lacli.model import AnswerOptions, Model
from lacli.report import counts
from lacli.serve.protocol import Message, Sampled, Stops
from lacli.settings import PARALLEL
from lacli.terminal.screen import Screen
from lacli.text.files import lock
from lacli.text.format import counted, listed
from lacli.text.json_schema import checked
from lacli.text.template import as_messages

if TYPE_CHECKING:
    from lacli.cli.options import Loading, PromptOptions

ASKED = ("id", "custom_id", "prompt", "messages", "system")
"""Fields of a row that its answer's line repeats."""

BEGINNING = b'{"index": '
"""The beginning of an answer's line."""

Line = Mapping[str, Any]
"""A line of the answers as a mapping: the answer to a row, or its error."""


@dataclass
class Answers:
    """Writes answers with `write`, one JSON line each.

    `answered`: indices of rows whose last line has no error. `models`: file names of the models that answered.
    """

    write: Callable[[str], object]
    answered: set[int] = field(default_factory=set)
    models: set[str] = field(default_factory=set)

    def add(self, row: Line) -> None:
        self.write(json.dumps(row, ensure_ascii=False))
        self.count(row)

    def count(self, row: Line) -> None:
        if "error" in row:
            self.answered.discard(row["index"])
        else:
            self.answered.add(row["index"])
            self.models.add(str(row.get("model")))


def write_line(file: FileIO, name: str, line: str) -> None:
    """Append `line` to `file`. If that fails, remove the part written and raise LacliError with the file's `name`."""
    left, end = f"{line}\n".encode(), file.seek(0, os.SEEK_END)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        file.truncate(end)
        raise LacliError(f"cannot write {name}: {reason_of(error)}", "free disk space; rerun to continue") from error


@contextmanager
def answers_in(name: str | None, rows: Sequence[PromptRow], screen: Screen) -> Iterator[Answers]:
    """Open the file of answers `name` (None: standard output), and remove its last line if the line is incomplete.

    `rows`: the questions. Raises LacliError, and changes nothing, if the file is in use or does not answer `rows`.
    """
    if name is None:
        yield Answers(screen.line)
        return
    with open(os.path.expanduser(name), "a+b", buffering=0) as file:
        answers, whole = Answers(partial(write_line, file, name)), 0
        try:
            lock(file)
            file.seek(0)
            for line in file:
                if not line.endswith(b"\n") and BEGINNING.startswith(line[: len(BEGINNING)]):
                    file.truncate(whole)
                    break
                row = json.loads(line)
                if type(row["index"]) is not int or not {"text", "error"} & row.keys():
                    raise ValueError("a line has no answer and no error")
                asked = rows[row["index"]].repeated if 0 <= row["index"] < len(rows) else {}
                if "error" not in row and any(row.get(part) != asked.get(part) for part in ASKED):
                    raise LacliError(f"row {row['index']} of {name} answers another prompt", "give another name to -o")
                answers.count(row)
                whole += len(line)
        except BlockingIOError:
            raise LacliError(f"another run is writing {name}", "wait for its end, or give another name to -o") from None
        except (ValueError, LookupError, TypeError) as error:
            raise LacliError(f"{name} has a line that is not an answer", "give another name to -o") from error
        yield answers


class AskedRow(Sampled, Row):
    """A prompt's row, or its `body` in OpenAI's batch format. `tools` and `logit_bias` are read only to refuse them."""

    messages: list[Message] = Field(default=[], min_length=1)
    max_tokens: int = Field(0, ge=1, validation_alias=AliasChoices("limit", "max_completion_tokens", "max_tokens"))
    stop: Stops | None = None
    n: Literal[1] = 1
    tools: list[Any] = []

    @property
    def ways(self) -> Sequence[object]:
        return self.prompt, self.turns, self.messages


@dataclass(frozen=True)
class PromptRow:
    """A question to ask. `error`: why it cannot be asked, "" if it can.

    `repeated`: fields that the answer's line repeats. `messages`: all messages before the first answer. `turns`: later
    questions. `options`: for each answer; `raw` None means raw if the model has no chat template.
    """

    repeated: Line
    messages: Sequence[Mapping[str, Any]] = ()
    turns: Sequence[str] = ()
    options: AnswerOptions = field(default_factory=AnswerOptions)
    error: str = ""


def read_rows(path: str, question: PromptOptions, sampling: SamplingSettings, screen: Screen) -> list[PromptRow]:
    """Return the rows of the file `path` (`-`: stdin): JSON lines, or one plain prompt a line.

    A bad row has an `error`, which is shown. `question`, `sampling`: for rows without own settings. Raises LacliError
    for a file without rows.
    """
    rows = [_row(found, place, question, sampling) for place, found in read_lines(path, screen.note)]
    if not rows:
        raise LacliError(f"{path} holds no prompts", EXAMPLE)
    for error in filter(None, [row.error for row in rows]):
        screen.warn(error)
    return rows


def _row(found: object, place: str, question: PromptOptions, sampling: SamplingSettings) -> PromptRow:
    request: Line = found if isinstance(found, dict) else {}
    repeated = {name: request[name] for name in ("id", "custom_id") if isinstance(request.get(name), str | int | float)}
    try:
        if isinstance(found, LacliError):
            raise found
        row = checked(AskedRow, request.get("body", found))
        raw = row.raw or question.raw or request.get("url") == "/v1/completions"
        if row.tools or row.logit_bias:
            raise UsageError("a row has tools or logit_bias", "leave them out, or ask lacli serve")
        if row.messages and raw:
            raise UsageError("messages need the chat template", "drop raw, or give a prompt instead of messages")
        options = AnswerOptions(
            raw=raw or (False if row.messages else None),
            max_tokens=row.max_tokens or question.max_tokens,
            stop=question.stops if row.stop is None else row.stop,
            sampling=row.sampling(sampling, lambda text: []),
        )
    except LacliError as error:
        return PromptRow(repeated, error=f"{place}: {error}")
    system = row.system or ("" if raw else question.system)
    if messages := [each.for_template for each in row.messages]:
        if system and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": system}, *messages]
        return PromptRow({**repeated, "messages": messages}, messages, (), options)
    first, *turns = row.turns or [row.prompt]
    repeated |= {"prompt": row.turns or row.prompt, **({"system": system} if system else {})}
    return PromptRow(repeated, as_messages(first, system), turns, options)


def answer_file(
    prompts: str,
    answers: str | None,
    parallel: int | None,
    name: str | None,
    question: PromptOptions,
    loading: Loading,
    screen: Screen,
) -> None:
    """Answer the prompts of the file `prompts`, and write a JSON line for each to `answers` (None: standard output).

    Prompts that have an answer in `answers` are skipped. `parallel`: answers at a time, None for the default. `name`:
    the model, None for SmolLM2. Raises Interrupted after Ctrl-C, and at the end LacliError if a prompt has no answer.
    """
    rows = read_rows(prompts, question, loading.sampling, screen)
    with answers_in(answers, rows, screen) as lines:
        if lines.answered:
            by = f"in {answers} already, by {listed(sorted(lines.models))}"
            screen.note(f"{len(lines.answered):,} of {counted(len(rows), 'answer')} {by}")
        if left := [index for index in range(len(rows)) if index not in lines.answered]:
            slots = min(parallel or (1 if loading.decode_settings.strict else PARALLEL), len(left))
            with loading.opened(name, question, screen, slots) as engine, Model(engine) as model:
                try:
                    # `timeout -s INT` sends the signal to a program and to its group: two within 50 ms are one.
                    with second_ctrl_c_ends(0.05), screen.waiting(shown=answers is not None) as say:
                        screen.note(asyncio.run(_answer_all(model, rows, left, lines, say)))
                except KeyboardInterrupt:
                    what = f"stopped: {len(lines.answered):,} of {counted(len(rows), 'answer')} written"
                    raise Interrupted(what, "the same command with -o continues") from None
        if failed := len(rows) - len(lines.answered):
            what = f"no answer to {failed:,} of {counted(len(rows), 'prompt')}"
            raise LacliError(what, 'see "error" in their lines')


async def _answer_all(
    model: Model, rows: Sequence[PromptRow], left: Sequence[int], lines: Answers, say: Callable[[str], None]
) -> str:
    """Answer rows `left` (indices). After each, add a line to `lines` and `say` how many are done. Return a summary."""
    begin, done, tokens, indices, engine = perf_counter(), 0, 0, iter(left), model.engine

    async def answer_next() -> None:
        nonlocal done, tokens
        for index in indices:
            row = {"index": index, **rows[index].repeated, **await _answered(model, rows[index])}
            lines.add(row)
            done, tokens = done + 1, tokens + row.get("predicted_n", 0)
            say(f"answers: {done:,}/{len(left):,}")

    # One task more than slots tokenizes the next prompt before a slot is free.
    await asyncio.gather(*(answer_next() for _ in range(engine.slots + 1)))
    seconds = perf_counter() - begin
    slots = f"{engine.slots} at a time in {engine.context.cells:,} cells"
    rate = f"{counted(tokens, 'token')} in {seconds:,.2f} s, {tokens / seconds:,.1f} tokens/s together"
    return f"{counted(len(left), 'answer')}, {slots}: {rate}"


async def _answered(model: Model, row: PromptRow) -> Line:
    """Return the fields of a row's line: text, statistics and, if a turn failed, `error`."""
    if row.error:
        return {"error": row.error}
    line: dict[str, Any] = {"model": model.engine.model.path.name}
    messages, texts, options = [*row.messages], list[str](), row.options.copy()
    if options["raw"] is None:
        # Without a template the text of the conversation is continued.
        options["raw"] = model.engine.prompts.template.stands_in
    numbers: dict[str, float] = {}
    try:
        for turn in ("", *row.turns):
            if turn:
                messages += as_messages(turn, "", [("", texts[-1])])[1:]
            prompt = "\n\n".join(each["content"] for each in messages) if options["raw"] else messages
            async with model.astream(prompt, **options) as stream:
                answer = await stream.answer()
            texts.append(answer.text)
            line |= {"text": texts if row.turns else texts[0], "finish_reason": answer.finish_reason}
            if answer.warnings:
                line["warnings"] = answer.warnings
            if answer.seed is not None:
                line["seed"] = options["seed"] = answer.seed
            numbers = {name: round(numbers.get(name, 0) + n, 2) for name, n in counts(answer.statistics).items()}
    except (PromptError, SamplingError, UsageError) as error:
        line.pop("finish_reason", None)
        line["error"] = str(error)
    return {**line, **numbers}

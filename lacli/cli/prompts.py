"""`lacli run --prompts`: the prompts of a file through one model, several at a time, and a line for each answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from lacli import PARALLEL
from lacli.answer_options import AnswerOptions
from lacli.bench.tasks import EXAMPLE, Row, Task, each_line, opened
from lacli.engine.answer import Answer
from lacli.errors import Interrupted, LacliError, OutputError, PromptError, SamplingError, UsageError, reason_of
from lacli.llamacpp.sampling import SamplingSettings, new_seed
from lacli.model import Model, Prompt
from lacli.serve.protocol import Message, Sampled
from lacli.stats import RunStatistics
from lacli.terminal.interrupts import ctrl_c_calls, second_ctrl_c_ends
from lacli.terminal.screen import Screen
from lacli.text.checked import checked
from lacli.text.files import STDIN, Closing, is_terminal, lock
from lacli.text.format import counted
from lacli.text.template import as_messages

if TYPE_CHECKING:
    from lacli.cli.prompt_options import PromptOptions
    from lacli.cli.run import Loading, Output

HEARD_S = 0.25
"""Seconds after which Ctrl-C is heard at the latest."""

TWICE_S = 0.05
"""Ignore a repeated SIGINT within this many seconds: `timeout -s INT` sends one to a program and one to its group."""

MOST_TOLD = 5
"""Rows that cannot be asked of which a line on the screen tells; each has its own among the answers."""

ROW_ERRORS = (PromptError, SamplingError, UsageError)
"""What is wrong with a row, and not with the model."""

BEGINNING = b'{"index": '
"""The beginning of an answer's line."""

Line = Mapping[str, Any]
"""What became of a row."""


class Answers(Closing):
    """Answers as JSON lines on standard output, or in a file to which a second run adds; a row's later line counts.

    `answered`: the indices of the rows that have an answer.
    """

    def __init__(self, name: str | None, screen: Screen) -> None:
        """Raises LacliError for a file of anything else, which stays as it is."""
        self.answered: set[int] = set()
        self._name, self._screen = name, screen
        self._file: IO[bytes] | None = None
        if name is None:
            return
        what, hint = f"{name} has a line that is no answer", "give another name to -o"
        try:
            self._file = open(os.path.expanduser(name), "a+b", buffering=0)  # noqa: SIM115  # closed by close()
            lock(self._file)
            self._read(self._file)
        except (OSError, ValueError, LookupError, TypeError) as error:
            self.close()
            if isinstance(error, BlockingIOError):
                what, hint = f"another run is writing {name}", f"wait for its end, or {hint}"
            elif isinstance(error, OSError):
                what = f"cannot write {name}: {reason_of(error)}"
            raise LacliError(what, hint) from error

    def _read(self, file: IO[bytes]) -> None:
        """Take in the answers of earlier runs, and cut off a last line that one broke off in."""
        file.seek(0)
        whole = 0
        for line in file:
            if not line.endswith(b"\n") and BEGINNING.startswith(line[: len(BEGINNING)]):
                file.truncate(whole)
                return
            row = json.loads(line)
            if type(row["index"]) is not int or not {"text", "error"} & row.keys():
                raise ValueError("no answer")
            self._count(row)
            whole += len(line)

    def add(self, row: Line) -> None:
        """Write what became of a row. Raises OutputError if it cannot be written."""
        line = json.dumps(row, ensure_ascii=False)
        try:
            if self._file:
                self._file.write(f"{line}\n".encode())
            else:
                self._screen.line(line)
        except OSError as error:
            if not self._file:
                raise
            hint = "the same command goes on behind the answers that are there"
            raise OutputError(f"cannot write {self._name}: {reason_of(error)}", hint) from error
        self._count(row)

    def _count(self, row: Line) -> None:
        self.answered.discard(row["index"])
        if "error" not in row:
            self.answered.add(row["index"])

    def close(self) -> None:
        if self._file:
            self._file.close()


Stops = Annotated[list[str], BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)]

Nothing = Annotated[list[Any], Field(max_length=0)]


class AskedRow(Sampled, Row):
    """A row, or the `body` of a request. What would change an answer and is not read here has to be empty."""

    messages: list[Message] = Field(default=[], min_length=1)
    max_tokens: int = Field(0, ge=1, validation_alias=AliasChoices("limit", "max_completion_tokens", "max_tokens"))
    stop: Stops | None = None
    n: Literal[1] = 1
    tools: Nothing = []
    functions: Nothing = []
    logit_bias: None = None

    @property
    def ways(self) -> Sequence[object]:
        return self.prompt, self.turns, self.messages


@dataclass(frozen=True)
class PromptRow:
    """What a row asks, and how.

    `repeated`: what the line of its answer begins with: ids, the prompt, the system prompt. `task`: its turns, unless
    it has `messages`. `error`: why it cannot be asked, "" if it can.
    """

    repeated: Mapping[str, Any] = field(default_factory=dict)
    task: Task = Task(())
    messages: Sequence[Mapping[str, str]] = ()
    sampling: SamplingSettings = SamplingSettings()
    stops: Sequence[str] = ()
    error: str = ""


def read_rows(path: str, question: PromptOptions, sampling: SamplingSettings) -> list[PromptRow]:
    """Read the rows of a file of JSON lines, or of stdin for `-`; a row that is none has an error.

    `question`, `sampling`: what holds where a row says nothing. Raises LacliError for a file that cannot be read, and
    for one without rows.
    """
    with opened(path) as file:
        rows = [_row(found, place, question, sampling) for place, found in each_line(file, path)]
    if not rows:
        raise LacliError(f"{path} holds no prompts", EXAMPLE)
    return rows


def _row(found: object, place: str, question: PromptOptions, sampling: SamplingSettings) -> PromptRow:
    """Read a row, or the `body` of a request in OpenAI's batch files."""
    if isinstance(found, LacliError):
        return PromptRow(error=f"{place}: {found}")
    row: Mapping[str, Any] = found if isinstance(found, dict) else {}
    ids = {name: row[name] for name in ("id", "custom_id") if isinstance(row.get(name), str | int | float)}
    body = row.get("body", found)
    if isinstance(body, dict) and row.get("url") == "/v1/completions":
        body = {**body, "raw": True}
    try:
        return _understood(checked(AskedRow, body), ids, question, sampling)
    except LacliError as error:
        return PromptRow(ids, error=f"{place}: {error}")


def _understood(row: AskedRow, ids: dict[str, Any], question: PromptOptions, sampling: SamplingSettings) -> PromptRow:
    """Complete a row with the flags. Raises LacliError for what cannot be asked."""
    raw = row.raw or question.raw
    system = row.system or ("" if raw else question.system)
    messages = [each.for_template for each in row.messages]
    if messages and raw:
        raise LacliError("messages need the chat template", "drop raw, or give a prompt")
    if messages and system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    task = replace(row.task, system=system, max_tokens=row.max_tokens or question.max_tokens, raw=raw)
    told = {"messages": messages} if messages else {"prompt": row.turns or row.prompt}
    repeated = {**ids, **told, **({"system": system} if system and not messages else {})}
    stops = question.stops if row.stop is None else tuple(row.stop)
    return PromptRow(repeated, task, messages, row.sampling(sampling, lambda text: []), stops)


def ask_all(
    prompts: str,
    answers: str | None,
    parallel: int | None,
    question: PromptOptions,
    loading: Loading,
    output: Output,
    screen: Screen,
) -> None:
    """Answer the prompts of a file, with a line for each in the file `answers`, or on standard output for None.

    `parallel`: answers at a time, None for what suits. `question`: how rows are asked that say nothing else. Raises
    Interrupted after Ctrl-C, and LacliError behind the last answer if a prompt has none.
    """
    rows = read_rows(prompts, question, loading.sampling)
    name = None if answers == STDIN else answers
    with Answers(name, screen) as lines:
        if lines.answered:
            screen.note(f"{len(lines.answered):,} of {counted(len(rows), 'answer')} in {name} already")
        left = [index for index in range(len(rows)) if index not in lines.answered]
        bad = [index for index in left if rows[index].error]
        for index in bad:
            lines.add({"index": index, **rows[index].repeated, "error": rows[index].error})
        for index in bad[:MOST_TOLD]:
            screen.warn(rows[index].error)
        left = [index for index in left if not rows[index].error]
        if left:
            several = loading.model_settings.replicas > 1
            most = parallel or (1 if loading.decode_settings.strict or several else PARALLEL)
            slots = min(most, len(left))
            with loading.opened(question, screen, slots, verbose=output.verbose) as engine, Model(engine) as model:
                # Lines on the same terminal show how far it is.
                shown = not output.verbose and (name is not None or not is_terminal(sys.stdout))
                told = _answer_all(model, rows, left, lines, screen, shown=shown)
                (screen.say if output.stats else screen.note)(told)
        if failed := len(rows) - len(lines.answered):
            what = f"no answer to {failed:,} of {counted(len(rows), 'prompt')}"
            raise LacliError(what, '"error" in its line says why')


def _answer_all(
    model: Model, rows: Sequence[PromptRow], left: Sequence[int], lines: Answers, screen: Screen, *, shown: bool
) -> str:
    """Answer the rows at the indices `left`; return what the answers were, and how fast.

    `shown`: a bar on the terminal tells how far that is. Raises Interrupted after Ctrl-C, and what ended the model or
    the output; what is answered by then is written.
    """
    begin, tokens = perf_counter(), 0
    # One thread more than there are slots: its prompt is cut into tokens before a slot is free.
    pool = ThreadPoolExecutor(model.engine.slots + 1)
    waiting = {pool.submit(_line, model, index, rows[index]) for index in left}
    pressed: list[bool] = []
    bar = screen.progress(len(left), "answers") if shown else nullcontext(lambda: None)
    # Ctrl-C is heard between two lines.
    with second_ctrl_c_ends(TWICE_S), ctrl_c_calls(lambda: pressed.append(True)):
        try:
            with bar as advance:
                while waiting:
                    if pressed:
                        raise KeyboardInterrupt
                    done, waiting = wait(waiting, HEARD_S, FIRST_COMPLETED)
                    for each in done:
                        lines.add(row := each.result())
                        tokens += row.get("predicted_n", 0)
                        advance()
        except BaseException as error:
            model.close()
            pool.shutdown(cancel_futures=True)
            if not isinstance(error, KeyboardInterrupt):
                raise
            for each in waiting:
                if not each.cancelled() and not each.exception():
                    lines.add(each.result())
            what = f"stopped: {len(lines.answered):,} of {counted(len(rows), 'answer')} written"
            raise Interrupted(what, "the same command with -o goes on") from None
    pool.shutdown()
    seconds, engine = perf_counter() - begin, model.engine
    slots = f"{engine.slots} at a time in {engine.context.cells:,} tokens"
    rate = f"{tokens / seconds:,.1f} tokens/s together"
    return f"{counted(len(left), 'answer')}, {slots}: {counted(tokens, 'token')} in {seconds:,.2f} s, {rate}"


def _line(model: Model, index: int, row: PromptRow) -> Line:
    """The line of a row's answers: to its prompt, or to each of its turns behind those before it; or of an error.

    Beside the error of a later turn the answers before it stay.
    """
    seed = row.sampling.seed if row.sampling.seed >= 0 else new_seed()
    line: Line = {"index": index, **row.repeated, "model": model.engine.model.path.name}
    texts: list[str] = []
    numbers: dict[str, float] = {}
    end: Line = {}
    try:
        for turn in row.task.turns:
            answer = _answer(model, row, turn, texts, seed)
            texts.append(answer.text)
            end = {"finish_reason": answer.finish_reason}
            numbers = {
                name: round(numbers.get(name, 0) + value, 2) for name, value in _numbers(answer.statistics).items()
            }
    except ROW_ERRORS as error:
        end = {"error": str(error)}
    if not texts:
        return {**line, **end}
    drawn = {} if row.sampling.drawn_seed is None else {"seed": seed}
    return {**line, "text": texts if row.task.turns[1:] else texts[0], **end, **drawn, **numbers}


def _answer(model: Model, row: PromptRow, turn: str, texts: Sequence[str], seed: int) -> Answer:
    """The answer to a row's messages, or to a turn behind the `texts` of those before it."""
    task = row.task
    history = [*zip(task.turns, texts, strict=False)]
    raw = not row.messages and (task.raw or model.engine.prompts.template.stands_in)
    if row.messages:
        prompt: Prompt = row.messages
    elif raw:
        before = [task.system] * bool(task.system) + [part for exchange in history for part in exchange]
        prompt = "\n\n".join([*before, turn])
    else:
        prompt = as_messages(turn, task.system, history)
    options = AnswerOptions(raw=raw, max_tokens=task.max_tokens, stop=row.stops, sampling=row.sampling, seed=seed)
    return model.stream(prompt, **options).answer()


def _numbers(run: RunStatistics) -> dict[str, float]:
    """What an answer was and cost, named as in llama-server's timings; its steps had other sequences in them too."""
    return {
        "prompt_n": run.prompt_tokens,
        "cache_n": run.reused_tokens,
        "prompt_ms": round(run.prompt_s * 1e3, 2),
        "predicted_n": run.tokens,
        "predicted_ms": round(run.predicted_s * 1e3, 2),
        "steps": run.steps,
        "draft_n": run.drafted,
        "draft_n_accepted": run.accepted,
    }

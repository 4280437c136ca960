"""`lacli run --prompts`: the prompts of a file through one model, several at a time, and a line for each answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any

from lacli import PARALLEL
from lacli.answer_options import AnswerOptions
from lacli.cli.prompt_rows import PromptRow, read_rows
from lacli.engine.answer import Answer
from lacli.errors import Interrupted, LacliError, OutputError, PromptError, SamplingError, UsageError, reason_of
from lacli.llamacpp.sampling import new_seed
from lacli.model import Model, Prompt
from lacli.stats import RunStatistics
from lacli.terminal.interrupts import ctrl_c_calls, second_ctrl_c_ends
from lacli.terminal.screen import Screen
from lacli.text.files import Closing, is_file, lock
from lacli.text.format import counted
from lacli.text.question import STDIN
from lacli.text.template import as_messages

if TYPE_CHECKING:
    from lacli.cli.prompt_options import PromptOptions
    from lacli.cli.run import Loading, Output
    from lacli.terminal.screen import Say

REFRESH_S = 0.25
"""Seconds after which the line about the progress is written anew: nobody reads faster changes."""

TWICE_S = 0.05
"""Ignore a repeated SIGINT within this many seconds: `timeout -s INT` sends one to a program and one to its group."""

MOST_TOLD = 5
"""Rows that cannot be asked of which a line on the screen tells; each has its own among the answers."""

ROW_ERRORS = (PromptError, SamplingError, UsageError)
"""What is wrong with a row, and not with the model."""

BEGINNING = b'{"index": '
"""The beginning of an answer's line."""

Row = Mapping[str, Any]


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
        try:
            self._file = open(os.path.expanduser(name), "a+b", buffering=0)  # noqa: SIM115  # closed by close()
            lock(self._file)
            self._read(self._file)
        except (OSError, ValueError, LookupError, TypeError) as error:
            self.close()
            what, hint = f"{name} has a line that is no answer", "give another name to -o"
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

    def add(self, row: Row) -> None:
        """Write what became of a row. Raises OutputError if it cannot be written."""
        line = json.dumps(row, ensure_ascii=False)
        if self._file is None:
            self._screen.line(line)
        else:
            try:
                self._file.write(f"{line}\n".encode())
            except OSError as error:
                hint = "the same command goes on behind the answers that are there"
                raise OutputError(f"cannot write {self._name}: {reason_of(error)}", hint) from error
        self._count(row)

    def _count(self, row: Row) -> None:
        self.answered.discard(row["index"])
        if "text" in row and "error" not in row:
            self.answered.add(row["index"])

    def close(self) -> None:
        if self._file:
            self._file.close()


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
        bad = [index for index, row in enumerate(rows) if row.error and index not in lines.answered]
        for place, index in enumerate(bad):
            lines.add({"index": index, **rows[index].repeated, "error": rows[index].error})
            if place < MOST_TOLD:
                screen.warn(rows[index].error)
        left = [index for index in range(len(rows)) if index not in {*lines.answered, *bad}]
        if lines.answered:
            screen.note(f"{len(lines.answered):,} of {counted(len(rows), 'answer')} in {name} already")
        if left:
            several = loading.replicas.groups or loading.replicas.count
            most = parallel or (1 if loading.decode_settings.strict or several else PARALLEL)
            opened = loading.opened(question, output, screen, min(most, len(left)))
            with opened as engine, Model(engine) as model:
                asked = PromptList(model, rows, left, lines)
                # Lines on the same terminal show how far it is, and a pipe may lead back to it.
                asked.run(screen, shown=not output.verbose and (name is not None or is_file(sys.stdout)))
                (screen.say if output.stats else screen.note)(asked.words)
        if failed := len(rows) - len(lines.answered):
            what = f"no answer to {failed:,} of {counted(len(rows), 'prompt')}"
            raise LacliError(what, '"error" in its line says why')


class PromptList:
    """The rows of a list that have no answer yet, on their way through a model."""

    def __init__(self, model: Model, rows: Sequence[PromptRow], left: Sequence[int], lines: Answers) -> None:
        """`left`: the indices of the rows that are to be answered."""
        self._model, self._rows, self._left, self._lines = model, rows, left, lines
        self._running: dict[int, RunStatistics] = {}
        self._done = self._tokens = 0
        self._begin = perf_counter()

    def run(self, screen: Screen, *, shown: bool) -> None:
        """Answer them all. `shown`: a line on the terminal tells how far that is.

        Raises Interrupted after Ctrl-C, and what ended the model or the output; what is answered by then is written.
        """
        # One thread more than there are slots: its prompt is cut into tokens before a slot is free.
        pool = ThreadPoolExecutor(self._model.engine.slots + 1)
        waiting = {pool.submit(self._line, index) for index in self._left}
        pressed: list[bool] = []
        # Ctrl-C is heard between two lines.
        with second_ctrl_c_ends(TWICE_S), ctrl_c_calls(lambda: pressed.append(True)):
            try:
                with screen.waiting(shown=shown) as say:
                    while waiting:
                        if pressed:
                            raise KeyboardInterrupt
                        done, waiting = wait(waiting, REFRESH_S, FIRST_COMPLETED)
                        for each in done:
                            self._take(each.result())
                        self._tell(say)
            except BaseException as error:
                self._model.close()
                pool.shutdown(cancel_futures=True)
                if not isinstance(error, KeyboardInterrupt):
                    raise
                for each in waiting:
                    if not each.cancelled() and not each.exception():
                        self._take(each.result())
                what = f"stopped: {len(self._lines.answered):,} of {counted(len(self._rows), 'answer')} written"
                raise Interrupted(what, "the same command with -o goes on") from None
        pool.shutdown()

    @property
    def words(self) -> str:
        """What the answers were, and how fast."""
        seconds = perf_counter() - self._begin
        rate = f"{self._tokens / seconds:,.1f} tokens/s together"
        engine = self._model.engine
        slots = f"{engine.slots} at a time in {engine.context.cells:,} tokens"
        answers = f"{counted(self._done, 'answer')}, {slots}"
        return f"{answers}: {counted(self._tokens, 'token')} in {seconds:,.2f} s, {rate}"

    def _line(self, index: int) -> Row:
        """The line of a row's answer, or of the error about it."""
        asked = self._rows[index]
        line: Row = {"index": index, **asked.repeated, "model": self._model.engine.model.path.name}
        try:
            return {**line, **self._answered(index, asked)}
        except ROW_ERRORS as error:
            return {**line, "error": _in_flags(error)}

    def _answered(self, index: int, row: PromptRow) -> Row:
        """The answer to a prompt, or to each of its turns behind those before it.

        Beside the error of a later turn the answers before it stay. Raises ROW_ERRORS of the first.
        """
        seed = row.sampling.seed if row.sampling.seed >= 0 else new_seed()
        texts: list[str] = []
        numbers: dict[str, float] = {}
        ended: Row = {}
        for turn in row.task.turns:
            try:
                answer = self._answer(index, row, turn, texts, seed)
            except ROW_ERRORS as error:
                if not texts:
                    raise
                ended = {"error": _in_flags(error)}
                break
            ended = {"finish_reason": answer.finish_reason}
            texts.append(answer.text)
            numbers = {
                name: round(numbers.get(name, 0) + value, 2) for name, value in _numbers(answer.statistics).items()
            }
        drawn = {} if row.sampling.drawn_seed is None else {"seed": seed}
        return {"text": texts if row.task.turns[1:] else texts[0], **ended, **drawn, **numbers}

    def _answer(self, index: int, row: PromptRow, turn: str, texts: Sequence[str], seed: int) -> Answer:
        """The answer to a row's messages, or to a turn behind the `texts` of those before it."""
        task = row.task
        history = [*zip(task.turns, texts, strict=False)]
        raw = not row.messages and (task.raw or self._model.engine.prompts.template.stands_in)
        if row.messages:
            prompt: Prompt = row.messages
        elif raw:
            before = [task.system] * bool(task.system) + [part for exchange in history for part in exchange]
            prompt = "\n\n".join([*before, turn])
        else:
            prompt = as_messages(turn, task.system, history)
        options = AnswerOptions(raw=raw, max_tokens=task.max_tokens, stop=row.stops, sampling=row.sampling, seed=seed)
        stream = self._model.stream(prompt, **options)
        self._running[index] = stream.statistics
        try:
            return stream.answer()
        finally:
            del self._running[index]

    def _tell(self, say: Say) -> None:
        """Show how far it is."""
        tokens = self._tokens + sum(run.tokens for run in [*self._running.values()])
        count = f"{len(self._rows) - len(self._left) + self._done:,}/{len(self._rows):,}"
        say(f"{count} answers, {tokens / (perf_counter() - self._begin):,.1f} tokens/s together")

    def _take(self, row: Row) -> None:
        self._lines.add(row)
        self._done += 1
        self._tokens += row.get("predicted_n", 0)


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


def _in_flags(error: LacliError) -> str:
    """An error's sentence with the names of flags, if a `Model` has put those of options in their place."""
    return str(error.__cause__ if isinstance(error.__cause__, type(error)) else error)

"""`lacli run --prompts`: the prompts of a file through one model, several at a time, and a line for each answer."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING

from lacli import PARALLEL
from lacli.api.model import Model, Prompt
from lacli.api.options import AnswerOptions
from lacli.cli.answer_lines import Lines, LinesFile, Row
from lacli.cli.prompt_rows import PromptRow, read_rows
from lacli.errors import Interrupted, LacliError, PromptError, SamplingError, UsageError
from lacli.llamacpp.sampling import new_seed
from lacli.session.generation import Answer
from lacli.session.report import describe
from lacli.stats import RunStatistics
from lacli.terminal.interrupts import ctrl_c_calls, second_ctrl_c_ends
from lacli.terminal.screen import Screen
from lacli.text.files import is_file
from lacli.text.format import MINUTE, counted, listed
from lacli.text.question import STDIN
from lacli.text.template import as_messages

if TYPE_CHECKING:
    from lacli.cli.prompt_options import PromptOptions
    from lacli.cli.run import Loading, Output
    from lacli.terminal.waiting import Say

REFRESH_S = 0.25
"""Seconds after which the line about the progress is written anew: nobody reads faster changes."""

TWICE_S = 0.05
"""Seconds in which a second SIGINT is no other press: `timeout -s INT` sends one to a program and one to its group."""

MOST_TOLD = 5
"""Rows that cannot be asked of which a line on the screen tells; each has its own among the answers."""

ROW_ERRORS = (PromptError, SamplingError, UsageError)
"""What is wrong with a row, and not with the model."""

COUNTED = ("predicted_n", "draft_n", "draft_n_accepted")
"""Numbers of the answers that are added up."""


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
    Interrupted after Ctrl-C, and LacliError behind the last answer where a prompt has none.
    """
    rows = read_rows(prompts, question, loading.sampling)
    name = None if answers == STDIN else answers
    with LinesFile(name, screen, [row.repeated for row in rows]) if name is not None else Lines(screen) as lines:
        bad = [index for index, row in enumerate(rows) if row.error and index not in lines.answered]
        for index in bad:
            lines.add({"index": index, **rows[index].repeated, "error": rows[index].error})
        _tell_bad([rows[index].error for index in bad], screen)
        left = [index for index in range(len(rows)) if index not in {*lines.answered, *bad}]
        of = f", of {listed(sorted(lines.models))}" if lines.models else ""
        known = f"{_are(len(lines.answered), len(rows))} {lines.place} already{of}"
        if lines.answered and not left:
            screen.note(f"{known} and not asked again, whatever the other flags; another -o asks anew")
        if left:
            several = loading.replicas.groups or loading.replicas.count
            most = parallel or (1 if loading.decode_settings.strict or several else PARALLEL)
            with (
                loading.opened(question, output, screen, min(most, len(left))) as session,
                Model(session) as model,
            ):
                own = session.model.path.name
                if lines.models - {own}:
                    more = f"{counted(len(left), 'more answer')} will come from {own}; another -o keeps models apart"
                    screen.say(f"lacli: {known}; {more}")
                elif lines.answered:
                    screen.note(f"{known}; another -o asks anew")
                asked = PromptList(model, rows, left, lines)
                # Lines on the same terminal show how far it is, and a pipe may lead back to it.
                asked.run(screen, shown=not output.verbose and (name is not None or is_file(sys.stdout)))
                if output.stats:
                    screen.say("\n".join(f"{subject:9} {text}" for subject, text in asked.report()))
                else:
                    screen.note(asked.words)
    if failed := len(rows) - len(lines.answered):
        raise LacliError(f"no answer to {failed:,} of {counted(len(rows), 'prompt')}", '"error" in its line says why')


class PromptList:
    """The prompts of a list that have no answer yet, on their way through a model.

    `seconds`: of all of them.
    """

    def __init__(
        self,
        model: Model,
        rows: Sequence[PromptRow],
        left: Sequence[int],
        lines: Lines,
    ) -> None:
        """`left`: the indices of the rows that are to be answered."""
        self._done = self._failed = 0
        self._sums = Counter[str]()
        self.seconds = 0.0
        self._model, self._rows, self._left, self._lines = model, rows, left, lines
        self._coming = iter(left)
        self._running: dict[int, RunStatistics] = {}
        self._arrivals: SimpleQueue[Row | BaseException] = SimpleQueue()

    def run(self, screen: Screen, *, shown: bool) -> None:
        """Answer them all. `shown`: a line on the terminal tells how far that is.

        Raises Interrupted after Ctrl-C, and what ended the model or the output; what is answered by then is written.
        """
        self._begin = perf_counter()
        # One more than there are places: its prompt is cut into tokens before a place is free.
        workers = [Thread(target=self._work, daemon=True) for _ in range(self._model.session.texts + 1)]
        with second_ctrl_c_ends(TWICE_S), ctrl_c_calls(lambda: self._arrivals.put(KeyboardInterrupt())):
            try:
                with screen.waiting(shown=shown) as say:
                    self._tell(say)
                    for worker in workers:
                        worker.start()
                    for _ in self._left:
                        self._take(self._next(say))
            except KeyboardInterrupt:
                self._model.close()
                for worker in workers:
                    worker.join()
                while not self._arrivals.empty():
                    if isinstance(row := self._arrivals.get(), dict):
                        self._take(row)
                what = f"stopped: {_are(len(self._lines.answered), len(self._rows))}"
                raise Interrupted(f"{what} {self._lines.place}", self._lines.way_on) from None
        self.seconds = perf_counter() - self._begin

    @property
    def words(self) -> str:
        """What the answers were, and how fast."""
        answers, tokens = len(self._left) - self._failed, self._sums["predicted_n"]
        rate = f"{tokens / self.seconds:,.1f} tokens/s together" if self.seconds else ""
        return f"{counted(answers, 'answer')}, {counted(tokens, 'token')} in {_duration(self.seconds, 2)}: {rate}"

    def report(self) -> list[tuple[str, str]]:
        """The same in rows, with what they were decoded with."""
        session, guessed = self._model.session, self._sums["draft_n"]
        room = f"{counted(session.texts, 'text')} at a time in {session.engine.cells:,} tokens"
        rows = [
            ("model", f"{session.model.description}, {room}"),
            ("mode", describe(session.settings)),
            ("answers", self.words),
        ]
        return rows + [("guesses", f"{self._sums['draft_n_accepted']:,} of {guessed:,} came true")] * bool(guessed)

    def _work(self) -> None:
        """Answer one prompt after another, in a thread beside others."""
        for index in self._coming:
            asked = self._rows[index]
            line: Row = {"index": index, **asked.repeated, "model": self._model.session.model.path.name}
            try:
                self._arrivals.put({**line, **self._answered(index, asked)})
            except ROW_ERRORS as error:
                self._arrivals.put({**line, "error": _in_flags(error)})
            except Exception as error:
                # The main thread raises it.
                self._arrivals.put(error)
                return

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
        raw = not row.messages and (task.raw or self._model.session.prompts.template.stands_in)
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
            answer = stream.answer()
        finally:
            del self._running[index]
        return answer

    def _next(self, say: Say) -> Row:
        """Wait for what becomes of a prompt. Raises KeyboardInterrupt at Ctrl-C, and what ended the model."""
        while True:
            self._tell(say)
            with suppress(Empty):
                arrival = self._arrivals.get(timeout=REFRESH_S)
                if isinstance(arrival, BaseException):
                    raise arrival
                return arrival

    def _take(self, row: Row) -> None:
        self._lines.add(row)
        self._failed += "error" in row
        self._done += 1
        self._sums.update({name: value for name, value in row.items() if name in COUNTED})

    def _tell(self, say: Say) -> None:
        """Say how many answers are there, and how fast all texts go on together."""
        seconds = perf_counter() - self._begin
        tokens = self._sums["predicted_n"] + sum(run.tokens for run in [*self._running.values()])
        there = len(self._rows) - len(self._left)
        count = f"{there + self._done:,}/{len(self._rows):,}"
        words = f"{count} answers, {f'{tokens / seconds:,.1f} tokens/s together' if tokens else 'reading the prompts'}"
        say(words, f"{count} answers", count)


def _are(answers: int, every: int) -> str:
    """That `answers` of `every` answer are somewhere, as the beginning of a sentence."""
    return f"{answers:,} of {counted(every, 'answer')} {'is' if answers == 1 else 'are'}"


def _tell_bad(errors: Sequence[str], screen: Screen) -> None:
    """Say what is wrong with the first rows that cannot be asked, quiet or not."""
    for error in errors[:MOST_TOLD]:
        screen.warn(error)
    if (more := len(errors) - MOST_TOLD) > 0:
        screen.warn(f"{counted(more, 'more row')} cannot be asked")


def _numbers(run: RunStatistics) -> dict[str, float]:
    """What an answer was and cost, named as in llama-server's timings; its steps had other texts in them too."""
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


def _duration(seconds: float, digits: int = 0) -> str:
    """Seconds in words, with `digits` of a second: 0.52 s, 42 s, 5 min."""
    return f"{seconds:.{digits}f} s" if seconds < 2 * MINUTE else f"{seconds / MINUTE:,.0f} min"


def _in_flags(error: LacliError) -> str:
    """An error's sentence with the names of flags, where a `Model` has put those of options in their place."""
    return str(error.__cause__ if isinstance(error.__cause__, type(error)) else error)

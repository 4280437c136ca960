"""The timed answers of a benchmark: every prompt answered by every contender, in turns, until the time is up.

Turns are taken answer by answer, so what slows the machine down for a while slows all contenders alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from time import perf_counter

from lacli.bench.sweep import Point
from lacli.bench.tasks import Task
from lacli.decode import Decoder
from lacli.errors import LacliError
from lacli.stats import Step, core_wanted_s
from lacli.terminal.screen import Screen
from lacli.tree import Origin

NAME_LENGTH = 24

MOST_TOKENS = 5
"""Tokens that a step brings at most over many prompts: lookahead brought 4.7 in edits of code, its best class."""

LEAST_ROOM = 8
"""Tokens that an answer must have place for behind its prompt, or the prompt is left out."""


class TimeUp(Exception):
    """Raised where an answer would go on beyond the deadline."""


@dataclass(frozen=True)
class Trial:
    """One timed answer.

    `ids`, `text`: all generated tokens and their text, None where another program does not tell. `tokens`: generated in
    `seconds`, the wall time from the end of the prefill to the last step. `step_count`, `rows`: llama_decode calls
    after the prefill, and rows in all of them (None: unknown). `first_token_s`: seconds from the start to the first
    token. `steps`: each step, where lacli decoded. `own_limit`: True for a program that stops at a limit of its own, so
    that its answer may be shorter or longer.
    """

    ids: tuple[int, ...] | None
    text: str | None
    tokens: int
    step_count: int
    rows: int | None
    drafted: int | None
    accepted: int
    seconds: float
    prompt_s: float
    first_token_s: float
    steps: tuple[Step, ...] = ()
    own_limit: bool = False

    def core_wanted_s(self, threads: int) -> float:
        """Processor seconds that the answer takes where no thread waits for a core."""
        return core_wanted_s(threads, self.seconds, sum(step.decode_s for step in self.steps), self.prompt_s)

    def same(self, plain: Trial) -> bool | None:
        """Whether this is plain decoding's answer; None where another program does not tell what it said.

        An answer with a limit of its own counts as far as both go.
        """
        if not self.own_limit:
            return self.ids == plain.ids
        if self.ids is not None:
            return all(theirs == ours for theirs, ours in zip(self.ids, plain.ids or (), strict=False))
        if not self.text:
            return None
        ours = plain.text or ""
        return self.text.startswith(ours) or ours.startswith(self.text)


@dataclass(frozen=True)
class Exchange:
    """One turn of a task as a model gets it.

    `prompt`: token ids. `max_tokens`: of the answer, which is given up at the time `deadline` of `perf_counter`.
    """

    task: Task
    turn: int
    prompt: tuple[int, ...]
    max_tokens: int
    deadline: float = inf

    @property
    def name(self) -> str:
        """The task's name, or how it begins, and the turn where there are several."""
        name = self.task.name or " ".join(self.task.turns[0].split())[:NAME_LENGTH]
        return f"{name} ({self.turn + 1})" if self.task.turns[1:] else name


@dataclass(frozen=True)
class Asker:
    """Turns a task into prompts for a context of `cells` cells.

    `prompt`: makes the token ids of a task's next turn, behind the answers to the turns before.
    """

    prompt: Callable[[Task, Sequence[str]], list[int]]
    cells: int

    def exchange(self, task: Task, answers: Sequence[str]) -> Exchange | None:
        """The turn that follows `answers`; None where its prompt and an answer do not fit into the context."""
        prompt = self.prompt(task, answers)
        room = self.cells - len(prompt)
        if room < LEAST_ROOM:
            return None
        return Exchange(task, len(answers), tuple(prompt), min(task.max_tokens, room))


@dataclass(frozen=True)
class Contender:
    """A point of the sweep, or another program, that answers prompts.

    `point`: None for another program. `baseline`: the number of the plain decoding it is compared with. `answer`:
    decodes and times one answer. `memory`: MiB of its context, 0 for another program.
    """

    label: str
    point: Point | None
    baseline: int
    answer: Callable[[Exchange], Trial]
    memory: float = 0.0

    @property
    def mode(self) -> str:
        """How it decodes, or which program it is."""
        return self.point.settings.mode if self.point else self.label


def accepted_guesses(steps: Sequence[Step]) -> int:
    """Tokens of these steps that were guessed before."""
    return sum(origin is not Origin.MODEL for step in steps for origin in step.origins)


def timed(decoder: Decoder, exchange: Exchange, text: Callable[[Sequence[int]], str]) -> Trial:
    """Decode one answer to its end. `text`: detokenizes; called after the clock has stopped.

    Raises TimeUp behind the first step after the exchange's deadline.
    """
    begin = perf_counter()
    first_token_s = 0.0
    steps = []
    with closing(decoder.generate(exchange.prompt, exchange.max_tokens)) as taken:
        for step in taken:
            first_token_s = first_token_s or perf_counter() - begin
            steps.append(step)
            if not step.finish and perf_counter() > exchange.deadline:
                raise TimeUp
    seconds = perf_counter() - begin - decoder.prompt_s
    ids = tuple(token for step in steps for token in step.tokens)
    return Trial(
        ids=ids,
        text=text(ids),
        tokens=len(ids),
        step_count=len(steps),
        rows=sum(step.rows for step in steps),
        drafted=sum(step.drafted for step in steps),
        accepted=accepted_guesses(steps),
        seconds=seconds,
        prompt_s=decoder.prompt_s,
        first_token_s=first_token_s,
        steps=tuple(steps),
    )


@dataclass
class Rounds:
    """Trials by contender and exchange, as far as they have got; iterate it to go on by one trial.

    `contenders`: the first is plain decoding. `repetitions`: answers to each exchange at most, None for as many as end
    before `deadline`, which is a time of `perf_counter`. `left_out`: tasks whose prompts are too long for the context.
    `failures`: the error after which another program was given up; an error of a mode ends the benchmark.
    `prompt_token_s`: seconds that a token of a prompt took the last time.
    """

    contenders: Sequence[Contender]
    tasks: Sequence[Task]
    repetitions: int | None
    asker: Asker
    deadline: float = inf
    exchanges: list[Exchange] = field(default_factory=list)
    left_out: list[Task] = field(default_factory=list)
    trials: dict[tuple[int, int], list[Trial]] = field(default_factory=dict)
    failures: dict[int, LacliError] = field(default_factory=dict)
    prompt_token_s: float = 0.0

    def warm_up(self, exchange: Exchange, screen: Screen, *, leave_out: bool) -> None:
        """Let every contender take a few steps, which load kernels and are not counted.

        A program that fails is left out. So is a setting of jacobi or lookahead whose steps
        are too dear to pay, if `leave_out` says so.
        """
        able: list[Contender] = []
        plain_s = 0.0
        for contender in self.contenders:
            try:
                trial = self._answered(contender, exchange)
            except LacliError as error:
                if contender.point:
                    raise
                screen.note(f"left out: {contender.label}: {error}")
                continue
            # The first step may load kernels, and in the last one there is no room for guesses.
            if contender.point and (steps := trial.steps[1:-1]):
                step_s = min(step.seconds for step in steps)
                plain_s = plain_s or step_s
                # Others may draft less in their next steps.
                fixed = contender.mode in ("jacobi", "lookahead")
                if (
                    leave_out
                    and fixed
                    and step_s > min(contender.point.settings.max_step_tokens, MOST_TOKENS) * plain_s
                ):
                    why = f"a step takes {step_s / plain_s:.0f} plain ones, more than it brings tokens"
                    screen.note(f"left out: {contender.label}: {why}; --modes measures it")
                    continue
            able.append(contender)
        self.contenders = able

    def __iter__(self) -> Iterator[None]:
        try:
            yield from self._first()
            rest = count(1) if self.repetitions is None else range(1, self.repetitions)
            for repetition in rest if self.exchanges else ():
                for number in range(len(self.exchanges)):
                    yield from self._answer(number, rotation=repetition + number)
        except TimeUp:
            return

    def of(self, contender: int, exchange: int) -> list[Trial]:
        """A contender's trials on one exchange, one a repetition."""
        return self.trials.get((contender, exchange), [])

    def _first(self) -> Iterator[None]:
        """The first repetition, in which plain decoding's answers become the history of the turns that follow."""
        for task in self.tasks:
            answers: list[str] = []
            while len(answers) < len(task.turns):
                exchange = self.asker.exchange(task, answers)
                if exchange is None:
                    self.left_out.append(task)
                    break
                number = len(self.exchanges)
                self.exchanges.append(exchange)
                yield from self._answer(number, rotation=0)
                answers.append(self.of(0, number)[0].text or "")

    def _answer(self, number: int, rotation: int) -> Iterator[None]:
        """One exchange answered by everyone; who begins changes, so that no place in the order is a favour."""
        everyone = len(self.contenders)
        for place in range(everyone):
            contender = (place + rotation) % everyone
            if contender not in self.failures:
                self._try(contender, number)
            yield

    def _try(self, contender: int, number: int) -> None:
        try:
            trial = self._answered(self.contenders[contender], self.exchanges[number])
        except LacliError as error:
            if self.contenders[contender].point:
                raise
            self.failures[contender] = error
        else:
            self.trials.setdefault((contender, number), []).append(trial)

    def _answered(self, contender: Contender, exchange: Exchange) -> Trial:
        """Raises TimeUp at the deadline, and before an answer whose prompt would not be read by then."""
        if perf_counter() + self.prompt_token_s * len(exchange.prompt) > self.deadline:
            raise TimeUp
        trial = contender.answer(replace(exchange, deadline=self.deadline))
        self.prompt_token_s = trial.prompt_s / len(exchange.prompt)
        return trial

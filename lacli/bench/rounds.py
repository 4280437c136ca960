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
from lacli.engine.engine import Engine, SequenceOptions
from lacli.stats import Step
from lacli.terminal.screen import Screen


class TimeUp(Exception):
    """Raised where an answer would go on beyond the deadline."""


@dataclass(frozen=True)
class Trial:
    """One timed answer.

    `ids`, `text`: all generated tokens and their text. `seconds`: wall time from the end of the prefill to the last
    step. `first_token_s`: seconds from the start to the first token.
    """

    ids: tuple[int, ...]
    text: str
    seconds: float
    prompt_s: float
    first_token_s: float
    steps: tuple[Step, ...]


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


Ask = Callable[[Task, Sequence[str]], Exchange | None]
"""Makes the turn of a task that follows `answers`; None if its prompt and an answer do not fit into the context."""


@dataclass(frozen=True)
class Contender:
    """A point of the sweep, and what decodes and times one answer with it."""

    point: Point
    answer: Callable[[Exchange], Trial]

    @property
    def label(self) -> str:
        return self.point.label

    @property
    def mode(self) -> str:
        return self.point.settings.mode


def timed(engine: Engine, exchange: Exchange, options: SequenceOptions, text: Callable[[Sequence[int]], str]) -> Trial:
    """Decode one answer to its end. `text`: detokenizes; called after the clock has stopped.

    Raises TimeUp behind the first step after the exchange's deadline.
    """
    begin = perf_counter()
    first_token_s = prompt_s = 0.0
    steps: list[Step] = []
    with closing(engine.decode(exchange.prompt, options)) as taken:
        for sequence, step, _ in taken:
            if step is None or sequence is None:
                continue
            first_token_s = first_token_s or perf_counter() - begin
            prompt_s = sequence.prompt_s
            steps.append(step)
            if not step.finish and perf_counter() > exchange.deadline:
                raise TimeUp
    seconds = perf_counter() - begin - prompt_s
    ids = tuple(token for step in steps for token in step.tokens)
    return Trial(ids, text(ids), seconds, prompt_s, first_token_s, tuple(steps))


@dataclass
class Rounds:
    """Trials by contender and exchange, as far as they have got; iterate it to go on by one trial.

    `contenders`: the first is plain decoding. `repetitions`: answers to each exchange at most, None for as many as end
    before `deadline`, which is a time of `perf_counter`. `left_out`: tasks whose prompts are too long for the context.
    `prompt_token_s`: seconds that a token of a prompt took the last time.
    """

    contenders: Sequence[Contender]
    tasks: Sequence[Task]
    repetitions: int | None
    ask: Ask
    deadline: float = inf
    exchanges: list[Exchange] = field(default_factory=list)
    left_out: list[Task] = field(default_factory=list)
    trials: dict[tuple[int, int], list[Trial]] = field(default_factory=dict)
    prompt_token_s: float = 0.0

    def warm_up(self, exchange: Exchange, screen: Screen, *, leave_out: bool) -> None:
        """Let every contender take a few steps, which load kernels and are not counted.

        With `leave_out` a setting of jacobi or lookahead is left out if its step costs more than it can bring.
        """
        able: list[Contender] = []
        plain_s = 0.0
        for contender in self.contenders:
            # The first step may load kernels, and in the last one there is no room for drafts.
            if steps := self._answered(contender, exchange).steps[1:-1]:
                step_s = min(step.seconds for step in steps)
                plain_s = plain_s or step_s
                # Other modes may draft less in their next steps.
                fixed = contender.mode in ("jacobi", "lookahead")
                if leave_out and fixed and step_s > contender.point.settings.max_step_tokens * plain_s:
                    why = f"a step takes {step_s / plain_s:.0f} plain ones, more than it can bring tokens"
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
                exchange = self.ask(task, answers)
                if exchange is None:
                    self.left_out.append(task)
                    break
                number = len(self.exchanges)
                self.exchanges.append(exchange)
                yield from self._answer(number, rotation=0)
                answers.append(self.of(0, number)[0].text)

    def _answer(self, number: int, rotation: int) -> Iterator[None]:
        """One exchange answered by everyone; who begins changes, so that no place in the order is a favour."""
        everyone = len(self.contenders)
        for place in range(everyone):
            contender = (place + rotation) % everyone
            trial = self._answered(self.contenders[contender], self.exchanges[number])
            self.trials.setdefault((contender, number), []).append(trial)
            yield

    def _answered(self, contender: Contender, exchange: Exchange) -> Trial:
        """Raises TimeUp at the deadline, and before an answer whose prompt would not be read by then."""
        if perf_counter() + self.prompt_token_s * len(exchange.prompt) > self.deadline:
            raise TimeUp
        trial = contender.answer(replace(exchange, deadline=self.deadline))
        self.prompt_token_s = trial.prompt_s / len(exchange.prompt)
        return trial

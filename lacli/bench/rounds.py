"""The timed answers of a benchmark: every prompt answered by every point, until the time is up.

The points take turns answer by answer, so a slow spell of the machine slows all points alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from time import perf_counter

from lacli.bench.plan import LEAST_PROMPTS, LEAST_TOKENS, Point, Task
from lacli.engine.engine import Engine, SequenceOptions
from lacli.errors import LacliError
from lacli.stats import Step


class TimeUp(Exception):
    """Raised when the time of a benchmark is over."""


@dataclass(frozen=True)
class Trial:
    """One timed answer.

    `ids`, `text`: all generated tokens and their text. `seconds`: wall time from the end of the prefill to the last
    step. `prompt_s`: seconds of the prefill. `first_token_s`: seconds from the start to the first token.
    """

    ids: tuple[int, ...]
    text: str
    seconds: float
    prompt_s: float
    first_token_s: float
    steps: tuple[Step, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the answer ended before the deadline."""
        return self.steps[-1].finish is not None


@dataclass(frozen=True)
class Exchange:
    """One turn of a task, ready to decode. `turn`: its index. `prompt`: tokens. `max_tokens`: limit of the answer."""

    task: Task
    turn: int
    prompt: tuple[int, ...]
    max_tokens: int


Ask = Callable[[Task, Sequence[str]], Exchange | None]
"""Makes a task's next turn from its earlier answers; None if the prompt does not fit into the context."""

Answer = Callable[[Point, Exchange, float], Trial]
"""Decodes the answer of a point to an exchange, until a deadline, which is a time of `perf_counter`."""


def time_answer(
    engine: Engine,
    exchange: Exchange,
    options: SequenceOptions,
    detokenize: Callable[[Sequence[int]], str],
    deadline: float = inf,
) -> Trial:
    """Decode and time one answer, up to its end or to the first step after `deadline`, a time of `perf_counter`."""
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
            if perf_counter() > deadline:
                break
    seconds = perf_counter() - begin - prompt_s
    ids = tuple(token for step in steps for token in step.tokens)
    return Trial(ids, detokenize(ids), seconds, prompt_s, first_token_s, tuple(steps))


@dataclass
class Rounds:
    """The answers of all points (settings) to all exchanges (prompts). Each step of an iteration adds one trial.

    `points`: plain decoding first. `ask`: makes a task's next turn. `answer`: decodes the answer to a turn.
    `repetitions`: limit of a point's answers to an exchange, None for all that begin before `deadline`, a time of
    `perf_counter`. `left_out`: tasks that are too long for the context. `trials`: by indices of point and exchange.
    `prompt_token_s`, `token_s`: seconds a token of the last prefill, and of each point's last answer.
    """

    points: list[Point]
    tasks: Sequence[Task]
    ask: Ask
    answer: Answer
    repetitions: int | None = None
    deadline: float = inf
    exchanges: list[Exchange] = field(default_factory=list)
    left_out: list[Task] = field(default_factory=list)
    trials: dict[tuple[int, int], list[Trial]] = field(default_factory=dict)
    prompt_token_s: float = 0.0
    token_s: dict[int, float] = field(default_factory=dict)
    interrupted: bool = False

    def warm_up(self) -> None:
        """Decode 4 plain tokens on the shortest prompt to estimate `token_s`. Raises LacliError if no prompt fits."""
        asked = [self.ask(task, []) for task in self.tasks]
        shortest = min((each for each in asked if each), key=lambda each: len(each.prompt), default=None)
        if shortest is None:
            raise LacliError("no prompt fits into the context", "give it more tokens with -c")
        warm = self.answer(self.points[0], replace(shortest, max_tokens=4), self.deadline)
        # The first step may load kernels; the fastest of the three others is hardly delayed.
        step_s = min((step.seconds for step in warm.steps[1:]), default=0.0)
        self.token_s = dict.fromkeys(range(len(self.points)), step_s)

    def __iter__(self) -> Iterator[None]:
        try:
            yield from self._first()
            rest = count(1) if self.repetitions is None else range(1, self.repetitions)
            for repetition in rest if self.exchanges else ():
                for number in range(len(self.exchanges)):
                    able = [at for at in range(len(self.points)) if self.of(at, number)]
                    yield from self._answer(number, able, repetition + number)
        except TimeUp:
            return

    def of(self, point: int, exchange: int) -> list[Trial]:
        """Return the trials of a point on an exchange, both given by their index, one a repetition."""
        return self.trials.get((point, exchange), [])

    def has_answered(self, point: int) -> bool:
        return any(number == point for number, _ in self.trials)

    def _first(self) -> Iterator[None]:
        """Take the first repetition's trials; yield after each. Plain decoding's answers are later turns' history."""
        for task in self.tasks:
            answers: list[str] = []
            while len(answers) < len(task.turns):
                exchange = self.ask(task, answers)
                if exchange is None:
                    self.left_out.append(task)
                    break
                number = len(self.exchanges)
                exchange, able = self._fitted(exchange)
                self.exchanges.append(exchange)
                yield from self._answer(number, able, number)
                answers.append(self.of(0, number)[0].text)

    def _fitted(self, exchange: Exchange) -> tuple[Exchange, list[int]]:
        """Return the exchange, and the indices in `points` of the settings that answer it.

        If time is short, the returned exchange has a lower limit (16 tokens or more), or the last points are left out.
        """
        able = [*range(len(self.points))]
        prompts = min(LEAST_PROMPTS, sum(len(task.turns) for task in self.tasks)) - len(self.exchanges)
        if prompts < 1:
            return exchange, able
        # The estimates are rough, so 20% of the time stays in reserve.
        share_s = 0.8 * (self.deadline - perf_counter()) / prompts
        while True:
            reading_s = len(able) * len(exchange.prompt) * self.prompt_token_s
            tokens = (share_s - reading_s) / (sum(self.token_s.get(at, 0.0) for at in able) or 1e-9)
            if len(able) <= 2 or tokens >= min(exchange.max_tokens, LEAST_TOKENS // LEAST_PROMPTS):
                return replace(exchange, max_tokens=int(min(exchange.max_tokens, max(tokens, 16)))), able
            able.pop()

    def _answer(self, number: int, able: Sequence[int], turn: int) -> Iterator[None]:
        """Answer exchange `number` by the points `able`, all given by index, and yield after each answer.

        The first two points answer before the rest; an odd `turn` reverses the order within each group. Raises TimeUp
        after an answer cut by the deadline, and before an answer whose prefill would end too late.
        """
        exchange, way = self.exchanges[number], -1 if turn % 2 else 1
        for at in (*able[:2][::way], *able[2:][::way]):
            # Plain decoding's first answer begins even if the time is up: the report needs it.
            if self.trials and perf_counter() + self.prompt_token_s * len(exchange.prompt) > self.deadline:
                raise TimeUp
            trial = self.answer(self.points[at], exchange, self.deadline)
            self.prompt_token_s = trial.prompt_s / len(exchange.prompt)
            self.token_s[at] = trial.seconds / len(trial.ids)
            # A cut answer adds little to complete answers.
            if trial.is_whole or not self.has_answered(at):
                self.trials.setdefault((at, number), []).append(trial)
            yield
            if not trial.is_whole:
                raise TimeUp

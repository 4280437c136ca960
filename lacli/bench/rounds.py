"""The timed answers of a benchmark: every prompt answered by every contender, in turns, one repetition after another.

Turns are taken answer by answer, so what slows the machine down for a while slows all contenders alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from lacli.bench.sweep import Point
from lacli.bench.tasks import Task
from lacli.cache import SingleEngine
from lacli.decode import Decoder, TextState
from lacli.errors import LacliError
from lacli.stats import Step, core_wanted_s
from lacli.tree import Origin, Tree

NAME_LENGTH = 24

LEAST_ROOM = 8
"""Tokens that an answer must have place for behind its prompt, or the prompt is left out."""


@dataclass(frozen=True)
class Trial:
    """One timed answer.

    `ids`, `text`: all generated tokens and their text, None where another program does not tell. `tokens`: generated in
    `seconds`, the wall time from the end of the prefill to the last step. `step_count`, `rows`: llama_decode calls
    after the prefill, and rows in all of them (None: unknown). `first_token_s`: seconds from the start to the first
    token. `steps`: each step, where lacli decoded. `trees`: the draft of each step, where a second answer would draft
    otherwise. `own_limit`: True for a program that stops at a limit of its own, so that its answer may be shorter or
    longer.
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
    trees: tuple[Tree, ...] = ()
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
    """One turn of a task as a model gets it. `prompt`: token ids. `max_tokens`: of the answer."""

    task: Task
    turn: int
    prompt: tuple[int, ...]
    max_tokens: int

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
    decodes and times one answer. `memory`: MiB of its context, 0 for another program. `texts`: decoded at a time.
    """

    label: str
    point: Point | None
    baseline: int
    answer: Callable[[Exchange], Trial]
    memory: float = 0.0
    texts: int = 1

    @property
    def mode(self) -> str:
        """How it decodes, or which program it is."""
        return self.point.settings.mode if self.point else self.label


class NotingDecoder(Decoder):
    """A decoder for one answer that notes the tree of each step, so that the same steps can be taken again.

    Mode auto goes by the clock: it drafts otherwise the next time, and where it parts from plain depends on its steps.
    """

    def _learn_anew(self) -> None:
        self.trees: list[Tree] = []
        super()._learn_anew()

    def _decode(self, texts: Sequence[TextState], prompts: Sequence[SingleEngine] = ()) -> list[Tree] | None:
        trees = super()._decode(texts, prompts)
        self.trees += trees or ()
        return trees


def accepted_guesses(steps: Sequence[Step]) -> int:
    """Tokens of these steps that were guessed before."""
    return sum(origin is not Origin.MODEL for step in steps for origin in step.origins)


def timed(decoder: Decoder, exchange: Exchange, text: Callable[[Sequence[int]], str]) -> Trial:
    """Decode one answer to its end. `text`: detokenizes; called after the clock has stopped."""
    begin = perf_counter()
    first_token_s = 0.0
    steps = []
    for step in decoder.generate(exchange.prompt, exchange.max_tokens):
        first_token_s = first_token_s or perf_counter() - begin
        steps.append(step)
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
        trees=tuple(decoder.trees) if isinstance(decoder, NotingDecoder) else (),
    )


@dataclass
class Rounds:
    """Trials by contender and exchange, as far as they have got; iterate it to go on by one trial.

    `contenders`: the first is plain decoding. `left_out`: tasks whose prompts are too long for the context. `failures`:
    the error after which another program was given up; an error of a mode ends the benchmark. `is_cut`: the time was up
    before all had answered.
    """

    contenders: Sequence[Contender]
    tasks: Sequence[Task]
    repetitions: int
    asker: Asker
    exchanges: list[Exchange] = field(default_factory=list)
    left_out: list[Task] = field(default_factory=list)
    trials: dict[tuple[int, int], list[Trial]] = field(default_factory=dict)
    failures: dict[int, LacliError] = field(default_factory=dict)
    is_cut: bool = False

    def __iter__(self) -> Iterator[None]:
        yield from self._first()
        for repetition in range(1, self.repetitions):
            for number in range(len(self.exchanges)):
                yield from self._answer(number, rotation=repetition + number)

    def within(self, seconds: float | None) -> Iterator[None]:
        """Go on until all have answered an exchange, `seconds` after the beginning; None: to the end."""
        begin = perf_counter()
        for count, _ in enumerate(self, start=1):
            yield
            if seconds is not None and count % len(self.contenders) == 0 and perf_counter() - begin > seconds:
                self.is_cut = count < self.most
                return

    @property
    def most(self) -> int:
        """Answers that there will be, where no prompt is left out."""
        return sum(len(task.turns) for task in self.tasks) * len(self.contenders) * self.repetitions

    def take_in(self, further: Rounds) -> None:
        """Add what the same contenders have answered to other tasks, whole or as far as the time went."""
        first = len(self.exchanges)
        self.exchanges += further.exchanges
        self.trials |= {(place, first + number): found for (place, number), found in further.trials.items()}
        asked = {exchange.task for exchange in further.exchanges}
        self.tasks = [*self.tasks, *(task for task in further.tasks if task in asked)]
        self.left_out += further.left_out
        self.failures |= further.failures

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
        count = len(self.contenders)
        for place in range(count):
            contender = (place + rotation) % count
            if contender not in self.failures:
                self._try(contender, number)
            yield
        self._forget_trees(number)

    def _try(self, contender: int, number: int) -> None:
        try:
            trial = self.contenders[contender].answer(self.exchanges[number])
        except LacliError as error:
            if self.contenders[contender].point:
                raise
            self.failures[contender] = error
        else:
            self.trials.setdefault((contender, number), []).append(trial)

    def _forget_trees(self, number: int) -> None:
        """Drop the trees of answers that are plain's: they take memory and will not be decoded again."""
        for place, contender in enumerate(self.contenders):
            trials, plain = self.of(place, number), self.of(contender.baseline, number)
            if trials and plain and trials[-1].trees and trials[-1].same(plain[0]):
                trials[-1] = replace(trials[-1], trees=())

"""Benchmark rounds on toy contexts, with a clock that moves only when they decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from lacli.bench.plan import Point, Task
from lacli.bench.report import Machine
from lacli.bench.rounds import Exchange, Rounds, Trial, time_answer
from lacli.engine.engine import Engine, SequenceOptions
from lacli.settings import DecodeSettings
from tests.fakes.clock import ClockedContext, FakeClock

PLAIN = DecodeSettings(mode="plain")
LOOKUP = DecodeSettings(mode="lookup")
JACOBI = DecodeSettings(mode="jacobi", window=3)
LOOKAHEAD = DecodeSettings(mode="lookahead", window=3, ngram=3, guesses=2)

CELLS = 256
MACHINE = Machine(
    {"engine": "toy.cpp", "n_ctx": CELLS, "flash_attn": "auto", "type_k": "f16", "type_v": "f16", "sampling": "none"},
    "toy 1M F32 with toy.cpp on a processor, 1 thread",
    comparable=True,
)  # fmt: skip

Cost = Callable[[int, int], float]
"""Seconds of a decode call, by the batch's rows and its rows with outputs."""


def free(rows: int, outputs: int) -> float:
    """Return the seconds of a call if every call takes one second."""
    return 1.0


def dear(rows: int, outputs: int) -> float:
    """Return the seconds of a call if each row takes one second."""
    return float(rows)


def task(*turns: str, kind: str = "own", max_tokens: int = 20) -> Task:
    return Task(turns, kind, max_tokens=max_tokens)


TASKS = (task("1 2 3 1 2", kind="code"), task("4 5 6 4 5 6 4", kind="edit"), task("7 8 7 8", kind="edit"))


def tokens_of(task: Task, answers: Sequence[str]) -> list[int]:
    """Return the toy prompt of a task's next turn, after `answers`; each word of the texts is a token's number."""
    said = [part for turn, answer in zip(task.turns, answers, strict=False) for part in (turn, answer)]
    return [int(word) for part in [*said, task.turns[len(answers)]] for word in part.split()]


def ask(task: Task, answers: Sequence[str]) -> Exchange | None:
    """Return the next exchange of a task after `answers`; None if the cells have room for fewer than 8 tokens."""
    prompt = tokens_of(task, answers)
    room = CELLS - len(prompt)
    return Exchange(task, len(answers), tuple(prompt), min(task.max_tokens, room)) if room >= 8 else None


def field(
    clock: FakeClock,
    cost: Cost,
    *settings: DecodeSettings,
    tasks: Sequence[Task] = TASKS,
    repetitions: int | None = 2,
    deadline: float = inf,
) -> Rounds:
    """Return rounds of the tasks in all settings. Each setting has a context whose calls take `cost(rows, outputs)`."""
    contexts = {each: ClockedContext(ids=each.ids, clock=clock, cost=cost) for each in settings}

    def answer(point: Point, exchange: Exchange, deadline: float) -> Trial:
        engine = Engine(contexts[point.settings], point.settings)
        return time_answer(engine, exchange, SequenceOptions(exchange.max_tokens), words, deadline)

    return Rounds([Point(each) for each in settings], tasks, ask, answer, repetitions, deadline)


def words(tokens: Sequence[int]) -> str:
    """Return the text of toy tokens: their numbers with spaces."""
    return " ".join(map(str, tokens))


def played(rounds: Rounds, most: int = -1) -> Rounds:
    """Run at most `most` trials of the rounds, all with -1; return the rounds."""
    for count, _ in enumerate(rounds, start=1):
        if count == most:
            break
    return rounds

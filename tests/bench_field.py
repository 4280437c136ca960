"""A benchmark's field on toy engines: contenders that really decode, with a clock that the test moves. No test here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lacli.bench.rounds import (
    Asker,
    Contender,
    Exchange,
    Trial,
    timed,
)
from lacli.bench.sweep import Point
from lacli.bench.tasks import Task
from lacli.decode import Decoder
from lacli.settings import DecodeSettings
from tests.fakes.clock import ClockedEngine, FakeClock

PLAIN = DecodeSettings(mode="plain")
LOOKUP = DecodeSettings(mode="lookup")
LOOKAHEAD = DecodeSettings(mode="lookahead", window=3, ngram=3, guesses=2)


def contender(
    settings: DecodeSettings,
    clock: FakeClock,
    cost: Callable[[int, int], float] = lambda rows, outputs: 1.0,
    number: int = 0,
) -> tuple[Contender, ClockedEngine]:
    """One that answers on an engine of its own, whose calls take as long as `cost` says."""
    engine = ClockedEngine(sequences=settings.sequences, clock=clock, cost=cost)
    point = Point(settings)

    def answer(exchange: Exchange) -> Trial:
        return timed(Decoder(engine, settings), exchange, words)

    return Contender(point.label, point, number, answer), engine


def words(tokens: Sequence[int]) -> str:
    """The text of toy tokens."""
    return " ".join(map(str, tokens))


def tokens_of(task: Task, answers: Sequence[str]) -> list[int]:
    """Toy tokens of a task's next turn behind the answers before: their numbers."""
    said = [part for turn, answer in zip(task.turns, answers, strict=False) for part in (turn, answer)]
    return [int(word) for part in [*said, task.turns[len(answers)]] for word in part.split()]


def asker(cells: int = 256) -> Asker:
    return Asker(tokens_of, cells)


def task(*turns: str, kind: str = "own", limit: int = 20) -> Task:
    return replace(Task(turns, kind), limit=limit)

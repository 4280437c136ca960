"""Contenders of a benchmark on toy engines, with a clock that moves as they decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lacli.auto import step_cost as step_costs
from lacli.bench.report import Machine
from lacli.bench.results import Result, results
from lacli.bench.rounds import (
    Ask,
    Contender,
    Exchange,
    Rounds,
    Trial,
    timed,
)
from lacli.bench.sweep import Point
from lacli.bench.tasks import Task
from lacli.engine.engine import Engine, SequenceOptions
from lacli.settings import DecodeSettings
from tests.fakes.clock import ClockedContext, FakeClock

PLAIN = DecodeSettings(mode="plain")
LOOKUP = DecodeSettings(mode="lookup")
LOOKAHEAD = DecodeSettings(mode="lookahead", window=3, ngram=3, guesses=2)


MACHINE = Machine(
    {"build_number": "0", "n_ctx": 256, "flash_attn": "auto", "type_k": "f16", "type_v": "f16", "sampling": "none",
     "peak_memory_mib": 2.0},
    "toy 1M F32 on a processor, 1 thread",
    comparable=True,
)  # fmt: skip

COST = step_costs.Cost(
    (step_costs.StepCost(64, tuple(step_costs.Point(rows, rows**0.6, rows**0.6) for rows in (1, 2, 4, 8, 16, 32))),),
    measured_at=1e9,
    budget=1e3,
)
"""What steps of the 7M model are taken to cost, so that nothing is measured for mode auto."""


def contender(
    settings: DecodeSettings,
    clock: FakeClock,
    cost: Callable[[int, int], float] = lambda rows, outputs: 1.0,
) -> tuple[Contender, ClockedContext]:
    """A contender with an engine of its own, whose calls take `cost(rows, outputs)` seconds."""
    engine = ClockedContext(sequences=settings.sequences, clock=clock, cost=cost)

    def answer(exchange: Exchange) -> Trial:
        return timed(Engine(engine, settings), exchange, SequenceOptions(exchange.max_tokens), words)

    return Contender(Point(settings), answer), engine


def words(tokens: Sequence[int]) -> str:
    """The text of toy tokens."""
    return " ".join(map(str, tokens))


def tokens_of(task: Task, answers: Sequence[str]) -> list[int]:
    """Toy tokens of a task's next turn behind the answers before: their numbers."""
    said = [part for turn, answer in zip(task.turns, answers, strict=False) for part in (turn, answer)]
    return [int(word) for part in [*said, task.turns[len(answers)]] for word in part.split()]


def asker(cells: int = 256) -> Ask:
    """Toy prompts for a context of so many cells."""

    def ask(task: Task, answers: Sequence[str]) -> Exchange | None:
        prompt = tokens_of(task, answers)
        room = cells - len(prompt)
        return Exchange(task, len(answers), tuple(prompt), min(task.max_tokens, room)) if room >= 8 else None

    return ask


def task(*turns: str, kind: str = "own", max_tokens: int = 20) -> Task:
    return replace(Task(turns, kind), max_tokens=max_tokens)


def played(rounds: Rounds, most: int = -1) -> Rounds:
    """The rounds after `most` trials, or at their end."""
    for count, _ in enumerate(rounds, start=1):
        if count == most:
            break
    return rounds


Cost = Callable[[int, int], float]
TASKS = (task("1 2 3 1 2", kind="code"), task("4 5 6 4 5 6 4", kind="edit"), task("7 8 7 8", kind="edit"))


def free(rows: int, outputs: int) -> float:
    """Every call takes a second, whatever it has to compute."""
    return 1.0


def dear(rows: int, outputs: int) -> float:
    """A row costs a second, and a batch saves nothing."""
    return float(rows)


def run(clock: FakeClock, cost: Cost, *settings: DecodeSettings, repetitions: int = 2) -> tuple[Rounds, list[Result]]:
    """TASKS answered in all settings, and what that adds up to."""
    rounds = played(Rounds([contender(each, clock, cost)[0] for each in settings], TASKS, repetitions, asker()))
    return rounds, results(rounds)


def wrong(trial: Trial) -> Trial:
    """The same answer with another token in the middle."""
    ids = list(trial.ids)
    ids[7] = (ids[7] + 1) % 12
    return replace(trial, ids=tuple(ids))

"""How much of a benchmark fits into the time there is: prompts a class, repetitions and tokens of an answer.

Arithmetic on speeds measured before; nothing is decoded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from lacli.bench.tasks import Task

FULL = (8, 5, 128)
LADDER = (
    *(FULL, (8, 3, 128), (8, 2, 128), (8, 2, 96), (6, 2, 96), (6, 2, 64), (5, 2, 64), (4, 2, 64), (3, 2, 64)),
    *((3, 2, 48), (2, 2, 48), (2, 2, 32), (1, 2, 32), (1, 1, 32), (1, 1, 16)),
)
"""(prompts a class, repetitions, tokens of an answer), from what is wanted down to what is the least.

Prompts differ more than repetitions, so they are what is kept longest.
"""

FEWER_CLASSES = (6, 4, 3, 2, 1)


@dataclass(frozen=True)
class Wish:
    """What the user has fixed; None is ours to choose. seconds: the time there is, None: as long as it takes."""

    each: int | None = None
    repetitions: int | None = None
    limit: int | None = None
    seconds: float | None = None

    @property
    def fixed(self) -> bool:
        """Whether nothing is left to choose, or to leave out."""
        return self.seconds is None or bool(self.each and self.repetitions and self.limit)


@dataclass(frozen=True)
class Pace:
    """What was seen at the start. token_s: seconds a token of each point; prompt_s: seconds a token of a prompt."""

    token_s: tuple[float, ...]
    prompt_s: float


@dataclass(frozen=True)
class Plan:
    """What is run; each task says how many tokens its answers may have.

    limit: that number for a task that has none of its own. seconds: how long it takes at most, as far as the pace
    tells.
    """

    tasks: tuple[Task, ...]
    repetitions: int
    limit: int
    seconds: float


def choose(tasks: Sequence[Task], wish: Wish, pace: Pace, size: Callable[[Task], int]) -> Plan:
    """The largest plan that fits, or the smallest one there is. size: tokens of a task's first prompt."""
    plan = None
    for plan in _plans(tasks, wish, pace, size):
        if wish.seconds is None or plan.seconds <= wish.seconds:
            break
    assert plan, "there is at least one plan"
    return plan


def by_class(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """The tasks of each class, the classes in the order in which they first appear."""
    classes: dict[str, list[Task]] = {}
    for task in tasks:
        classes.setdefault(task.kind, []).append(task)
    return classes


def _plans(tasks: Sequence[Task], wish: Wish, pace: Pace, size: Callable[[Task], int]) -> Iterator[Plan]:
    """Ever smaller ones; with no end to the time the first is everything."""
    classes = by_class(tasks)
    ladder = LADDER if wish.seconds is not None else ((len(tasks), *FULL[1:]),)
    fewer = [] if wish.fixed else [count for count in FEWER_CLASSES if count < len(classes)]
    counts = [len(classes)] * len(ladder) + fewer
    for step, count in enumerate(counts):
        each, repetitions, limit = ladder[min(step, len(ladder) - 1)]
        chosen = [task for members in list(classes.values())[:count] for task in members[: wish.each or each]]
        limited = [replace(task, limit=_limit(task, limit, wish)) for task in chosen]
        repeats = wish.repetitions or repetitions
        yield Plan(
            tuple(limited),
            repeats,
            wish.limit or limit,
            repeats * sum(_cost(task, pace, size(task)) for task in limited),
        )


def _limit(task: Task, limit: int, wish: Wish) -> int:
    if wish.limit:
        return wish.limit
    return task.limit or limit if wish.seconds is None else min(task.limit or limit, limit)


def _cost(task: Task, pace: Pace, size: int) -> float:
    """Seconds for all points to answer all turns once; a turn's prompt holds the turns before it."""
    turns = len(task.turns)
    read = sum((turn + 1) * size + turn * task.limit for turn in range(turns))
    return len(pace.token_s) * pace.prompt_s * read + sum(pace.token_s) * task.limit * turns

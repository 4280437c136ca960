"""How much of a benchmark fits into the time there is: prompts a class, repetitions and tokens of an answer.

Arithmetic on speeds measured before; nothing is decoded here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

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
class Speed:
    """What was seen of a contender at the start, in seconds.

    A token, a step, a token of a prompt, and what an answer takes beside these (a program's start).
    """

    token_s: float
    step_s: float
    prompt_s: float
    start_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What is run; each task says how many tokens its answers may have.

    seconds: how long it takes if no answer ends early and all go at the pace that was seen.
    """

    tasks: tuple[Task, ...]
    repetitions: int
    seconds: float

    @property
    def limit(self) -> int:
        """Tokens of the longest answer."""
        return max(task.limit for task in self.tasks)


def choose(tasks: Sequence[Task], wish: Wish, speeds: Sequence[Speed], sizes: Mapping[Task, int], cells: int) -> Plan:
    """The largest plan that fits, or the smallest one there is. sizes: tokens of the first prompts; cells: context."""
    plan = None
    for plan in _plans(tasks, wish, speeds, sizes, cells):
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


def _plans(
    tasks: Sequence[Task], wish: Wish, speeds: Sequence[Speed], sizes: Mapping[Task, int], cells: int
) -> Iterator[Plan]:
    """Ever smaller ones; with no end to the time the first is everything."""
    classes = by_class(tasks)
    ladder = LADDER if wish.seconds is not None else ((len(tasks), *FULL[1:]),)
    fewer = [] if wish.fixed else [count for count in FEWER_CLASSES if count < len(classes)]
    counts = [len(classes)] * len(ladder) + fewer
    for step, count in enumerate(counts):
        each, repetitions, limit = ladder[min(step, len(ladder) - 1)]
        rows = zip_longest(*(members[: wish.each or each] for members in list(classes.values())[:count]))
        # Class by class in turns, so that what an interrupt leaves is about all of them.
        chosen = [task for row in rows for task in row if task]
        repeats = wish.repetitions or repetitions
        limited, seconds = [], 0.0
        for task in chosen:
            room = max(cells - sizes[task], 1)
            limited.append(replace(task, limit=min(_limit(task, limit, wish), room)))
            seconds += repeats * _cost(limited[-1], speeds, sizes[task])
        yield Plan(tuple(limited), repeats, seconds)


def _limit(task: Task, limit: int, wish: Wish) -> int:
    if wish.limit:
        return wish.limit
    return task.limit or limit if wish.seconds is None else min(task.limit or limit, limit)


def _cost(task: Task, speeds: Sequence[Speed], size: int) -> float:
    """Seconds for everyone to answer all turns once; a turn's prompt holds the turns before it."""
    turns = len(task.turns)
    read = sum((turn + 1) * size + turn * task.limit for turn in range(turns))
    answers = sum(speed.start_s + speed.token_s * task.limit for speed in speeds)
    return sum(speed.prompt_s for speed in speeds) * read + turns * answers

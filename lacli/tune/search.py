"""The search: everyone answers a few prompts beside plain decoding, the better half goes on to more of them.

Knows contenders, prompts and a clock, no model and no screen. The winner was chosen here because it looked best, partly
by luck, so that how fast it really is has to be measured anew (`confirm.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from math import ceil, log2
from time import perf_counter

from lacli.bench.plan import Speed
from lacli.bench.results import ALL, Answered, Result, overall, results
from lacli.bench.rounds import Asker, Contender, Rounds
from lacli.bench.tasks import Task

LADDER = ((8, 128), (6, 96), (4, 64), (3, 48), (2, 32), (1, 32), (1, 16))
"""(prompts, tokens of an answer) of a round, from what is wanted down to what is the least."""

FIRST = 0.4
"""The part of the time that the first round may take, where everyone answers."""

LATE = 1.25
"""Times what a round should take, after which it has no further prompt."""

LEAST = 2
"""Candidates that are compared however little time there is."""


@dataclass
class Entrant:
    """A candidate in the search. expected: its speed against plain's before it was tried. rounds: that it was in."""

    contender: Contender
    expected: float = 1.0
    rounds: int = 0
    answered: list[Answered] = field(default_factory=list)

    @property
    def result(self) -> Result | None:
        """All of its answers beside plain's; None where there is none yet."""
        return Result(ALL, 0, tuple(self.answered)) if self.answered else None

    @property
    def value(self) -> float:
        """Times plain's speed, by which the better half is chosen; 0 where nothing was answered."""
        return self.result.speedup.value if self.result else 0.0


@dataclass(frozen=True)
class Round:
    """One round: who answers which tasks. number: from 1; of: with those that follow. end: when it has to be over."""

    number: int
    of: int
    entrants: tuple[Entrant, ...]
    tasks: tuple[Task, ...]
    end: float

    @property
    def answers(self) -> int:
        """Answers of all, plain decoding's among them, where no prompt is left out."""
        return sum(len(task.turns) for task in self.tasks) * (len(self.entrants) + 1)


class Search:
    """Rounds in which the field is halved; ask for one, play it, and go on until one candidate is left.

    entrants: all candidates, in the order in which they were given. plain: its pace, in seconds. sizes: tokens of the
    tasks' prompts. limit: tokens of an answer, None: as time allows. end: when the clock says that it is over.
    """

    def __init__(
        self,
        plain: Contender,
        entrants: Sequence[Entrant],
        tasks: Sequence[Task],
        asker: Asker,
        pace: Speed,
        end: float,
        *,
        limit: int | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.entrants = tuple(entrants)
        self._plain = plain
        self._sizes = {task: len(asker.prompt(task, [])) for task in tasks}
        self._tasks = cycle(tasks)
        self._count = len(tasks)
        self._asker = asker
        self._pace = pace
        self._end = end
        self._limit = limit
        self._clock = clock
        self._alive = self.entrants
        self._rounds = 0

    @property
    def best(self) -> Entrant | None:
        """The candidate that did best among those that got furthest; None where none has answered."""
        return next(iter(self.ranked), None)

    @property
    def ranked(self) -> list[Entrant]:
        """Those that have answered, the best first: by how far they came, and how fast they were."""
        tried = [each for each in self.entrants if each.answered]
        return sorted(tried, key=lambda each: (each.rounds, each.value), reverse=True)

    def next_round(self) -> Round | None:
        """Who answers what next; None where one candidate is left, or no time."""
        now = self._clock()
        if len(self._alive) < 2 and self._rounds or not self._alive or (self._rounds and now >= self._end):
            return None
        left = max(ceil(log2(len(self._alive))), 1)
        share = max(self._end - now, 0.0) * max(1 / left, 0.0 if self._rounds else FIRST)
        prompts, limit = self._affordable(share)
        if not self._rounds:
            self._alive = self._as_many_as_fit(share, limit)
        self._rounds += 1
        for each in self._alive:
            each.rounds = self._rounds
        tasks = [self._limited(task, limit) for task in islice(self._tasks, prompts)]
        end = min(now + LATE * share, self._end)
        return Round(self._rounds, self._rounds + left - 1, self._alive, tuple(tasks), end)

    def play(self, current: Round) -> Iterator[None]:
        """Let the round's entrants answer, an answer at a time; what an interrupt leaves counts too.

        Then the better half is left.
        """
        for turn, task in enumerate(current.tasks):
            yield from self._answers(task, turn)
            if self._clock() >= current.end:
                break
        self._alive = tuple(
            sorted(self._alive, key=lambda each: each.value, reverse=True)[: ceil(len(self._alive) / 2)]
        )

    def _answers(self, task: Task, turn: int) -> Iterator[None]:
        """One task answered by all, plain decoding first; who follows changes from task to task."""
        place = turn * len(self._alive) // 3 % len(self._alive)
        order = (*self._alive[place:], *self._alive[:place])
        field = [replace(each.contender, baseline=0) for each in order]
        rounds = Rounds([self._plain, *field], [task], 1, self._asker)
        try:
            for _ in rounds:
                yield
                if self._clock() >= self._end and self._settled(order):
                    return
        finally:
            for found in overall(results(rounds)):
                if found.contender:
                    order[found.contender - 1].answered += found.answered

    def _settled(self, order: Sequence[Entrant]) -> bool:
        """Whether everyone has answered something, so that the time may end the round."""
        return all(each.answered for each in order)

    def _affordable(self, seconds: float) -> tuple[int, int]:
        """Prompts, and tokens of their answers, for which so many seconds are enough."""
        for prompts, limit in LADDER:
            limit = self._limit or limit
            once = self._seconds(self._alive, limit)
            if once * min(prompts, self._count) <= seconds:
                return max(min(prompts, self._count), min(int(seconds / once), self._count)), limit
        return 1, self._limit or LADDER[-1][1]

    def _as_many_as_fit(self, seconds: float, limit: int) -> tuple[Entrant, ...]:
        """The most promising entrants, as many as can answer one prompt in so many seconds."""
        most = len(self._alive)
        while most > LEAST and self._seconds(self._alive[:most], limit) > seconds:
            most -= 1
        return self._alive[:most]

    def _seconds(self, entrants: Sequence[Entrant], limit: int) -> float:
        """How long one prompt of ordinary length takes, read once a mode and answered by everyone."""
        size = sum(self._sizes.values()) / len(self._sizes)
        tokens = self._pace.token_s * (1 + sum(1 / (each.value or each.expected) for each in entrants))
        return tokens * limit + self._pace.prompt_s * size * len({each.contender.mode for each in entrants} | {"plain"})

    def _limited(self, task: Task, limit: int) -> Task:
        room = max(self._asker.cells - self._sizes[task], 1)
        return replace(task, limit=min(task.limit or limit, limit, room))

"""The last round: the search's winner beside plain decoding and mode auto, on all prompts, several times.

The winner was not chosen by what is measured here, so its ratios are not flattered. No model and no screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from time import perf_counter

from lacli.bench.plan import Speed
from lacli.bench.results import Result, overall, results
from lacli.bench.rounds import Asker, Contender, Rounds
from lacli.bench.statistics import Ratio
from lacli.bench.tasks import Task
from lacli.settings import DecodeSettings

CLEARLY = 1.02
"""Times as fast, from which on one thing is called faster than another: less is what machines differ by from run to
run."""

LADDER = (
    *((0, 5, 128), (0, 3, 128), (0, 2, 128), (0, 1, 128), (0, 1, 96), (40, 1, 96), (24, 1, 96), (16, 1, 96)),
    *((12, 1, 96), (8, 1, 96), (8, 1, 64), (6, 1, 64), (5, 1, 48), (4, 1, 48), (4, 1, 32), (3, 1, 32), (3, 1, 16)),
)
"""(prompts, repetitions, tokens of an answer), from what is wanted down to the least; 0: all prompts.

Prompts say more than repetitions, and of fewer than three there is no interval.
"""

ENOUGH = 5
"""Answers of each that say something where they are too few prompts for an interval."""

LEAST = 3
"""Prompts of which there is an interval."""

PLAIN, AUTO, WINNER = 0, 1, 2


@dataclass(frozen=True)
class Confirmed:
    """What the last round has found, as far as it got. best: the setting to use.

    tried, winner: what won the search, and how it did here; None where there was nothing to search.
    """

    best: DecodeSettings
    plain: Result
    auto: Result
    tried: DecodeSettings | None = None
    winner: Result | None = None

    @property
    def enough(self) -> bool:
        """Whether there are answers enough to go by."""
        return says_something(self.auto)

    @property
    def used(self) -> Result:
        """The result of the setting to use."""
        if self.winner and self.best == self.tried:
            return self.winner
        return self.plain if self.best.mode == "plain" else self.auto

    @property
    def used_over_auto(self) -> Ratio:
        """Its speed against auto's, pair by pair."""
        return self.used.measured_by(self.auto).speedup

    @property
    def unsure(self) -> bool:
        """Whether the search's winner looks faster than all others and is not used."""
        over = self.winner_over_auto
        looks = self.winner and over and min(self.winner.speedup.value, over.value) >= CLEARLY
        return bool(looks) and self.best != self.tried

    @property
    def winner_over_auto(self) -> Ratio | None:
        """The search's winner against auto, whichever of them is used."""
        return self.winner.measured_by(self.auto).speedup if self.winner else None


def says_something(result: Result) -> bool:
    """Whether its answers are enough to say how fast it is."""
    return result.speedup.low is not None or len(result.trials) >= ENOUGH


class LastRound:
    """Plain decoding, auto and the winner of a search, in turns; iterate it to go on by one answer.

    speeds: of each of them, in this order. end: when the clock says that it is over.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        tasks: Sequence[Task],
        asker: Asker,
        speeds: Sequence[Speed],
        end: float,
        *,
        limit: int | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        chosen, repetitions = _affordable(tasks, asker, speeds, limit, end - clock())
        field = [replace(each, baseline=PLAIN) for each in contenders]
        self.rounds = Rounds(field, chosen, repetitions, asker)
        self._end = end
        self._clock = clock

    def __iter__(self) -> Iterator[None]:
        for number, _ in enumerate(self.rounds, start=1):
            yield
            # Whole turns only, so that everyone has answered the same.
            if number % len(self.rounds.contenders) == 0 and self._clock() >= self._end:
                return

    def confirmed(self) -> Confirmed | None:
        """What was found so far; None where somebody has not answered yet."""
        found = {result.contender: result for result in overall(results(self.rounds))}
        if len(found) < len(self.rounds.contenders):
            return None
        settings = [each.point.settings for each in self.rounds.contenders if each.point]
        plain, auto, winner = found[PLAIN], found[AUTO], found.get(WINNER)
        tried = settings[WINNER] if winner else None
        return Confirmed(settings[_best(auto, winner)], plain, auto, tried, winner)


def _affordable(
    tasks: Sequence[Task], asker: Asker, speeds: Sequence[Speed], limit: int | None, seconds: float
) -> tuple[list[Task], int]:
    """The tasks with the lengths of their answers, and repetitions, for which so many seconds are enough."""
    sizes = [len(asker.prompt(task, [])) for task in tasks]
    chosen: list[Task] = []
    repetitions = 1
    for prompts, repetitions, most in LADDER:
        count = min(prompts or len(tasks), len(tasks))
        repetitions = max(repetitions, ceil(ENOUGH / count)) if count < LEAST else repetitions
        chosen = [
            replace(task, limit=min(limit or task.limit or most, limit or most, max(asker.cells - size, 1)))
            for task, size in zip(tasks[:count], sizes, strict=False)
        ]
        once = sum(_seconds(task, size, speeds) for task, size in zip(chosen, sizes, strict=False))
        if repetitions * once <= seconds:
            break
    return chosen, repetitions


def _seconds(task: Task, size: int, speeds: Sequence[Speed]) -> float:
    """How long everyone takes to answer a task once; a turn's prompt is taken to be as long as the first one's."""
    return len(task.turns) * sum(each.prompt_s * size + each.token_s * task.limit + each.start_s for each in speeds)


def _best(auto: Result, winner: Result | None) -> int:
    """Who is to be used: the winner where it is clearly and surely faster than both, else auto, unless it is slower.

    Auto goes on to adapt itself to what it is asked, which a setting does not: one that only looks faster is left.
    """
    if winner and _surely(winner.speedup) and _surely(winner.measured_by(auto).speedup):
        return WINNER
    return AUTO if auto.speedup.value >= 1 else PLAIN


def _surely(ratio: Ratio) -> bool:
    return ratio.value >= CLEARLY and ratio.low is not None and ratio.low >= 1

"""The last round: the search's winner beside plain decoding and mode auto, on all prompts, several times.

The winner was not chosen by what is measured here, so its ratios are not flattered. No model and no screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from lacli.bench.plan import Speed, Wish, choose
from lacli.bench.results import Result, overall, results
from lacli.bench.rounds import Asker, Contender, Rounds
from lacli.bench.statistics import Ratio
from lacli.bench.tasks import Task
from lacli.settings import DecodeSettings

CLEARLY = 1.02
"""Times as fast, from which on one thing is called faster than another: less is what machines differ by from run to
run."""

ENOUGH = 5
"""Answers of each that say something where they are too few prompts for an interval."""

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
        return self.auto.speedup.low is not None or len(self.auto.trials) >= ENOUGH

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
    def winner_over_auto(self) -> Ratio | None:
        """The search's winner against auto, whichever of them is used."""
        return self.winner.measured_by(self.auto).speedup if self.winner else None


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
        sizes = {task: len(asker.prompt(task, [])) for task in tasks}
        wish = Wish(limit=limit, seconds=max(end - clock(), 0.0))
        plan = choose(tasks, wish, speeds, sizes, asker.cells)
        field = [replace(each, baseline=PLAIN) for each in contenders]
        self.rounds = Rounds(field, plan.tasks, plan.repetitions, asker)
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


def _best(auto: Result, winner: Result | None) -> int:
    """Who is to be used. Plain where nothing is clearly faster; auto where the winner is not clearly faster than it.

    Auto goes on to adapt itself to what it is asked, which a setting does not.
    """
    pays = winner is not None and winner.speedup.value >= CLEARLY
    if winner and pays and winner.measured_by(auto).speedup.value >= CLEARLY:
        return WINNER
    if auto.speedup.value >= CLEARLY:
        return AUTO
    return WINNER if pays else PLAIN

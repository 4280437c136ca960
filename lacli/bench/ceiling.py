"""The ceiling: how much faster than plain decoding an oracle is here, and mode auto's share of that.

The oracle answers beside plain decoding, in turns, as everyone does; how it drafts is `oracle.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from statistics import mode

from lacli.bench.oracle import oracle_in
from lacli.bench.results import results
from lacli.bench.rounds import (
    Contender,
    Exchange,
    Rounds,
    Trial,
    timed,
)
from lacli.bench.statistics import Ratio
from lacli.bench.sweep import Point
from lacli.engine import Engine, Sampler
from lacli.settings import DecodeSettings
from lacli.staircase import Cost, Staircase

MANY = 4
"""Repetitions of a benchmark from which on the oracle answers twice."""


@dataclass(frozen=True)
class Ceiling:
    """The most that guesses could reach in one class. rows: of such steps. ratio: the speed over plain decoding's.

    It is what an oracle reached, and at least 1: plain steps are always possible.
    """

    rows: int
    ratio: Ratio

    def share(self, speedup: float) -> float | None:
        """The part that a speed-up is of what can be won: 0 is plain's speed or less and 1 the ceiling.

        None where nothing can be won.
        """
        above = self.ratio.value - 1
        return max(speedup - 1, 0.0) / above if above > 0 else None


PLAIN = Ceiling(1, Ratio(1.0))
"""Where not even guesses that all come true are worth their rows."""


Ceilings = Mapping[tuple[int, str], Ceiling]
"""By contender and class."""


@dataclass(frozen=True)
class Asking:
    """What an oracle needs of a session: contexts for a point, what tokens are drawn with, and what they say."""

    open_engine: Callable[[Point], AbstractContextManager[Engine]]
    sampler: Sampler | None
    text: Callable[[Sequence[int]], str]


@dataclass
class Oracles:
    """The oracle's answers beside plain decoding's; iterate `rounds` to go on by one.

    rows: of its steps, by exchange, as far as it has got.
    """

    rounds: Rounds
    rows: Mapping[Exchange, int]

    @property
    def ceilings(self) -> dict[str, Ceiling]:
        """By class, of what has been answered."""
        return {
            result.kind: Ceiling(mode(self.rows[each.exchange] for each in result.answered), result.speedup)
            if result.speedup.value > 1
            else PLAIN
            for result in results(self.rounds)
            if result.contender
        }


@contextmanager
def oracles(asking: Asking, rounds: Rounds, number: int, cost: Cost) -> Iterator[Oracles]:
    """An oracle for a contender's exchanges, in a context that is closed in the end.

    cost: the staircases that its steps are chosen by.
    """
    contender = rounds.contenders[number]
    assert contender.point and cost.staircases, "another program has no oracle, and neither has an unknown machine"
    settings, plain = contender.point.settings, rounds.contenders[contender.baseline]
    most = max(best_rows(staircase, settings.back) for staircase in cost.staircases)
    point = replace(contender.point, settings=chain(settings, most))
    rows: dict[Exchange, int] = {}
    known: dict[Exchange, tuple[int, ...]] = {}
    with asking.open_engine(point) as engine:

        def plainly(exchange: Exchange) -> Trial:
            trial = plain.answer(exchange)
            known[exchange] = trial.ids or ()
            return trial

        def foretold(exchange: Exchange) -> Trial:
            rows[exchange] = min(best_rows(cost.at(len(exchange.prompt)), settings.back), most)
            decoder = oracle_in(
                engine, point.settings, exchange.prompt, known[exchange], rows[exchange], asking.sampler
            )
            return timed(decoder, exchange, asking.text)

        both = [replace(plain, baseline=0, answer=plainly), Contender("oracle", point, 0, foretold)]
        repetitions = 2 if rounds.repetitions >= MANY else 1
        yield Oracles(Rounds(both, rounds.tasks, repetitions, rounds.asker), rows)


def best_rows(staircase: Staircase, back: int = -1) -> int:
    """The rows of a step that bring most tokens a second where all guesses come true. back: as in DecodeSettings."""
    possible = [point for point in staircase.points if back < 0 or point.rows <= 1 + back]
    return max(possible, key=lambda point: point.rows / point.every).rows


def chain(settings: DecodeSettings, rows: int) -> DecodeSettings:
    """The settings for steps of one chain with so many rows."""
    return replace(settings, mode="lookup", lookup_draft=rows - 1) if rows > 1 else replace(settings, mode="plain")


def of_results(found: Mapping[int, Oracles]) -> Ceilings:
    """The ceilings of several contenders, as far as their oracles have got."""
    return {(number, kind): each for number, oracle in found.items() for kind, each in oracle.ceilings.items()}

"""Results of a benchmark by point and class: ratios of paired trials, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import exp, log, sqrt
from statistics import fmean, median, stdev
from typing import Literal

from lacli.bench.plan import ALL, LEAST_PROMPTS, LEAST_TOKENS, Point
from lacli.bench.rounds import Exchange, Rounds, Trial
from lacli.modes import common_prefix
from lacli.stats import RunStatistics

SpeedVerdict = Literal["faster", "slower", "cannot tell"]

NORMAL = 1.959964
STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""97.5% points of the normal distribution, and of Student's t with 1 to 9 degrees of freedom."""


@dataclass(frozen=True)
class Ratio:
    """A speed in multiples of plain decoding's. `low`, `high`: its 95% interval, None with fewer than 3 `prompts`."""

    value: float
    low: float | None = None
    high: float | None = None
    prompts: int = 1


def paired_ratio(plain: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Ratio:
    """Return the speed of a mode in multiples of plain decoding's, from seconds a token by prompt and repetition.

    The n-th repetitions of a prompt run one after the other, so slow drifts of the machine cancel in their ratio. The
    value is the geometric mean over prompts of the median over repetitions: exchanging the modes gives the inverse. The
    interval is Student's t interval of these medians' logs; with fewer than three prompts there is none.
    """
    pairs = list(zip(plain, other, strict=True))
    assert pairs and all(len(one) == len(two) > 0 for one, two in pairs), "each run needs its pair"
    logs = [median(log(one / two) for one, two in zip(*pair, strict=True)) for pair in pairs]
    value, prompts = fmean(logs), len(logs)
    if prompts < 3:
        return Ratio(exp(value), prompts=prompts)
    reach = student_point(prompts - 1) * stdev(logs) / sqrt(prompts)
    return Ratio(exp(value), exp(value - reach), exp(value + reach), prompts)


def student_point(freedom: int) -> float:
    """Return the 97.5% point of Student's t by degrees of `freedom`. From 10 on Fisher's expansion is right to 0.2%."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    first = (NORMAL**3 + NORMAL) / (4 * freedom)
    second = (5 * NORMAL**5 + 16 * NORMAL**3 + 3 * NORMAL) / (96 * freedom**2)
    return NORMAL + first + second


@dataclass(frozen=True)
class Answered:
    """The answers to one exchange, one a repetition: `trials` of a point, and `plain` of plain decoding."""

    exchange: Exchange
    trials: tuple[Trial, ...]
    plain: tuple[Trial, ...]

    @property
    def is_identical(self) -> bool:
        """Whether the point's answers equal plain decoding's as far as both go: the deadline may cut an answer."""
        expected = self.plain[0].ids
        return all(common_prefix(each.ids, expected) == min(len(each.ids), len(expected)) for each in self.trials)


@dataclass(frozen=True)
class BenchResult:
    """One point's answers to the prompts of one class, `kind`. `number`: the point's index in `Rounds.points`.

    Only repetitions with answers to all exchanges count as samples; the first repetition always has them.
    """

    kind: str
    number: int
    point: Point
    answered: tuple[Answered, ...]

    @property
    def is_plain(self) -> bool:
        return self.point.mode == "plain"

    @cached_property
    def trials(self) -> list[Trial]:
        return [trial for each in self.answered for trial in each.trials]

    @cached_property
    def sums(self) -> RunStatistics:
        found = RunStatistics()
        for trial in self.trials:
            for step in trial.steps:
                found.add(step)
        return found

    @cached_property
    def speeds(self) -> list[float]:
        """Tokens a second over all prompts, for each repetition that has all answers."""
        return [1 / _pace(turn) for turn in zip(*(each.trials for each in self.answered), strict=False)]

    @cached_property
    def speedup(self) -> Ratio:
        """The speed in multiples of plain decoding's. In its mean, a conversation counts as one prompt."""
        tasks = [[*turns] for _, turns in groupby(self.answered, lambda each: id(each.exchange.task))]
        return paired_ratio(
            [[_pace(pair) for pair in zip(*(each.plain for each in turns), strict=False)] for turns in tasks],
            [[_pace(pair) for pair in zip(*(each.trials for each in turns), strict=False)] for turns in tasks],
        )

    @cached_property
    def is_enough(self) -> bool:
        """Whether the point and plain decoding have enough prompts and tokens for a verdict."""
        tokens = min(self.sums.tokens, sum(len(trial.ids) for each in self.answered for trial in each.plain))
        return self.speedup.prompts >= LEAST_PROMPTS and tokens >= LEAST_TOKENS

    @property
    def verdict(self) -> SpeedVerdict:
        """Faster or slower than plain decoding; "cannot tell" with too few answers or if the interval includes 1."""
        low, high = self.speedup.low, self.speedup.high
        if not self.is_enough or low is None or high is None or low <= 1 <= high:
            return "cannot tell"
        return "faster" if low > 1 else "slower"

    @property
    def identical(self) -> int:
        """Number of exchanges whose answers all equal plain decoding's."""
        return sum(each.is_identical for each in self.answered)


def results(rounds: Rounds) -> list[BenchResult]:
    """Return a result for each point with answers: class by class and then, if there are several, over all classes."""
    kinds = list(dict.fromkeys(exchange.task.kind for exchange in rounds.exchanges))
    shown = [*kinds, ALL] if len(kinds) > 1 else kinds
    found = [_result(rounds, kind, number) for kind in shown for number in range(len(rounds.points))]
    return [each for each in found if each.answered]


def _result(rounds: Rounds, kind: str, point: int) -> BenchResult:
    answered = []
    for number, exchange in enumerate(rounds.exchanges):
        # The time may have ended between the two answers.
        pairs = list(zip(rounds.of(point, number), rounds.of(0, number), strict=False))
        if pairs and kind in (ALL, exchange.task.kind):
            trials, plain = zip(*pairs, strict=True)
            answered.append(Answered(exchange, trials, plain))
    return BenchResult(kind, point, rounds.points[point], tuple(answered))


def overall(found: Sequence[BenchResult]) -> list[BenchResult]:
    """Return the results over all classes; if there is only one class, the results of this class."""
    return [result for result in found if result.kind == ALL] or list(found)


def _pace(trials: Sequence[Trial]) -> float:
    """Return the mean seconds a token of several trials."""
    return sum(trial.seconds for trial in trials) / sum(len(trial.ids) for trial in trials)

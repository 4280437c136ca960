"""What the trials of a benchmark add up to: a result for each contender in each class, and over all classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal

from lacli.bench.rounds import Contender, Exchange, Rounds, Trial
from lacli.bench.statistics import Ratio, paired_ratio
from lacli.bench.tasks import ALL
from lacli.stats import Step
from lacli.tree import Origin

Verdict = Literal["faster", "slower", "cannot tell"]

LEAST_PROMPTS, LEAST_TOKENS = 4, 200
"""What a ratio needs: of one prompt of 16 tokens it says nothing."""


@dataclass(frozen=True)
class Answered:
    """One exchange's answers by a contender and by plain decoding beside it, a trial a repetition."""

    exchange: Exchange
    trials: tuple[Trial, ...]
    plain: tuple[Trial, ...]

    @property
    def is_identical(self) -> bool:
        """Whether all of its answers are plain decoding's."""
        return all(trial.ids == self.plain[0].ids for trial in self.trials)


@dataclass(frozen=True)
class Result:
    """What one contender did in one class. `by`: the contender, `number` of the rounds. `answered`: its exchanges.

    Only complete repetitions count as samples; the first one always is.
    """

    kind: str
    number: int
    by: Contender
    answered: tuple[Answered, ...]

    @property
    def label(self) -> str:
        return self.by.label

    @property
    def is_plain(self) -> bool:
        return self.by.mode == "plain"

    @cached_property
    def trials(self) -> list[Trial]:
        return [trial for each in self.answered for trial in each.trials]

    @cached_property
    def _steps(self) -> list[Step]:
        return [step for trial in self.trials for step in trial.steps]

    @property
    def prompts(self) -> int:
        return len(self.answered)

    @property
    def tokens(self) -> int:
        """Tokens generated in all trials, end tokens among them."""
        return sum(len(trial.ids) for trial in self.trials)

    @property
    def steps(self) -> int:
        """Steps of all trials: llama_decode calls, those of the prefill not counted."""
        return len(self._steps)

    @property
    def rows(self) -> float:
        """Rows of a step, the mean of all."""
        return sum(step.rows for step in self._steps) / self.steps

    @property
    def drafted(self) -> int:
        """Drafted tokens that were verified."""
        return sum(step.drafted for step in self._steps)

    @property
    def accepted(self) -> int:
        """Drafted tokens that were accepted."""
        return sum(origin is not Origin.MODEL for step in self._steps for origin in step.origins)

    @property
    def compression(self) -> float:
        """S, tokens a step (Equation 6 of the paper)."""
        return self.tokens / self.steps

    @property
    def step_s(self) -> float:
        """Seconds of a step, the mean of all; the prefill is not counted."""
        return sum(trial.seconds for trial in self.trials) / self.steps

    @cached_property
    def speeds(self) -> list[float]:
        """Tokens a second of each complete repetition, its prompts taken together."""
        return [1 / _pace(turn) for turn in zip(*(each.trials for each in self.answered), strict=False)]

    @property
    def speed(self) -> float:
        """The median repetition's tokens a second."""
        return median(self.speeds)

    @property
    def first_token_s(self) -> float:
        """Median seconds from the beginning to the first token."""
        return median([trial.first_token_s for trial in self.trials])

    @cached_property
    def speedup(self) -> Ratio:
        """Plain decoding's seconds a token over this contender's, pair by pair.

        The turns of a conversation are much alike, so they count as one prompt.
        """
        tasks: list[list[Answered]] = []
        for each in self.answered:
            if each.exchange.turn and tasks:
                tasks[-1].append(each)
            else:
                tasks.append([each])
        return paired_ratio(
            [[_pace(pair) for pair in zip(*(each.plain for each in turns), strict=False)] for turns in tasks],
            [[_pace(pair) for pair in zip(*(each.trials for each in turns), strict=False)] for turns in tasks],
        )

    @cached_property
    def is_enough(self) -> bool:
        """Whether there are enough prompts, and tokens of both sides, for a ratio to mean something."""
        tokens = min(self.tokens, sum(len(trial.ids) for each in self.answered for trial in each.plain))
        return self.speedup.prompts >= LEAST_PROMPTS and tokens >= LEAST_TOKENS

    @property
    def verdict(self) -> Verdict:
        """Whether a setting is faster than plain decoding, if its answers are enough and its interval leaves out 1."""
        if self.is_enough and self.speedup.surely_faster:
            return "faster"
        return "slower" if self.is_enough and self.speedup.surely_slower else "cannot tell"

    @property
    def identical(self) -> int:
        """Prompts whose answers are all plain decoding's."""
        return sum(each.is_identical for each in self.answered)


def results(rounds: Rounds) -> list[Result]:
    """Class by class a result for each contender that has finished something there, then the same over all classes."""
    kinds = list(dict.fromkeys(exchange.task.kind for exchange in rounds.exchanges))
    shown = [*kinds, ALL] if len(kinds) > 1 else kinds
    found = [_result(rounds, kind, number) for kind in shown for number in range(len(rounds.contenders))]
    return [each for each in found if each.answered]


def overall(found: Sequence[Result]) -> list[Result]:
    """The results over all classes, or those of the only one."""
    return [result for result in found if result.kind == ALL] or list(found)


def _result(rounds: Rounds, kind: str, contender: int) -> Result:
    answered = []
    for number, exchange in enumerate(rounds.exchanges):
        if kind in (ALL, exchange.task.kind):
            # The time may have been up between the two.
            pairs = list(zip(rounds.of(contender, number), rounds.of(0, number), strict=False))
            if pairs:
                trials, plain = zip(*pairs, strict=True)
                answered.append(Answered(exchange, trials, plain))
    return Result(kind, contender, rounds.contenders[contender], tuple(answered))


def _pace(trials: Sequence[Trial]) -> float:
    """Seconds a token of several trials taken together."""
    return sum(trial.seconds for trial in trials) / sum(len(trial.ids) for trial in trials)

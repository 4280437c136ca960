"""What the trials of a benchmark add up to: a result for each contender in each class, and over all classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from statistics import median

from lacli.bench.rounds import Contender, Exchange, Rounds, Trial
from lacli.bench.statistics import Ratio, paired_ratio
from lacli.bench.tasks import ALL
from lacli.check.judge import parting
from lacli.stats import Step

Counts = tuple[int, ...]

LEAST_PROMPTS, LEAST_TOKENS = 4, 200
"""What a ratio needs: one prompt of 16 tokens once gave 108.93x where the steps' costs allowed 3.0x."""


@dataclass(frozen=True)
class Acceptance:
    """How far the guesses of some steps were accepted.

    histogram[k]: steps that brought k+1 tokens. guessed[k]: those among them that had guesses which could be accepted.
    """

    histogram: Counts = ()
    guessed: Counts = ()

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Acceptance:
        """The acceptance of the steps of one run or of several."""
        return cls(_counts(steps), _counts([step for step in steps if step.drafted]))

    @property
    def position_rates(self) -> list[float]:
        """The share of the steps with guesses that accepted at least one, at least two and so on, while any did."""
        steps = sum(self.guessed)
        return [sum(self.guessed[depth:]) / steps for depth in range(1, len(self.guessed))]

    @property
    def hit_rate(self) -> float:
        """The share of the steps with guesses that accepted at least one."""
        return self.position_rates[0] if len(self.guessed) > 1 else 0.0


@dataclass(frozen=True)
class Answered:
    """One exchange's answers by a contender and by the plain decoding that it is measured by, a trial a repetition."""

    number: int
    exchange: Exchange
    trials: tuple[Trial, ...]
    plain: tuple[Trial, ...]

    @cached_property
    def other(self) -> Trial | None:
        """The first of its answers that is not plain's, None where none is known to be."""
        return next((trial for trial in self.trials if trial.same(self.plain[0]) is False), None)

    @cached_property
    def parts_at(self) -> int | None:
        """The first token of that answer that differs from plain's; None where its tokens are not known."""
        if self.other is None or self.other.ids is None:
            return None
        return parting(self.plain[0].ids or (), self.other.ids)

    @property
    def known(self) -> bool:
        """Whether all of its answers can be compared with plain's."""
        return all(trial.same(self.plain[0]) is not None for trial in self.trials)


@dataclass(frozen=True)
class Result:
    """What one contender did in one class. `by`: the contender, `number` of the rounds. `answered`: its exchanges.

    Only complete repetitions count as samples; the first one always is.
    """

    kind: str
    number: int
    by: Contender
    answered: tuple[Answered, ...]

    @cached_property
    def trials(self) -> list[Trial]:
        return list(chain.from_iterable(each.trials for each in self.answered))

    @property
    def prompts(self) -> int:
        return len(self.answered)

    @property
    def tokens(self) -> int:
        """Tokens generated in all trials, end tokens among them."""
        return sum(trial.tokens for trial in self.trials)

    @property
    def steps(self) -> int:
        """Steps of all trials: llama_decode calls, those of the prefill not counted."""
        return sum(trial.step_count for trial in self.trials)

    @property
    def rows(self) -> int | None:
        """Rows of all steps; None where another program does not say."""
        return _sum([trial.rows for trial in self.trials])

    @property
    def drafted(self) -> int | None:
        """Guesses that could have been accepted; None where another program does not say."""
        return _sum([trial.drafted for trial in self.trials])

    @property
    def accepted(self) -> int:
        """Guesses that were."""
        return sum(trial.accepted for trial in self.trials)

    @property
    def seconds(self) -> float:
        """Of all trials, the prefill not counted."""
        return sum(trial.seconds for trial in self.trials)

    @property
    def compression(self) -> float:
        """S, tokens a step (Equation 6 of the paper)."""
        return self.tokens / self.steps

    @property
    def rows_per_step(self) -> float | None:
        return None if self.rows is None else self.rows / self.steps

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / self.steps

    @cached_property
    def speeds(self) -> list[float]:
        """Tokens a second of each complete repetition, its prompts taken together."""
        return [speed(turn) for turn in zip(*(each.trials for each in self.answered), strict=False)]

    @property
    def speed(self) -> float:
        """The median repetition's tokens a second."""
        return median(self.speeds)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts, each counted once."""
        return sum(len(each.exchange.prompt) for each in self.answered)

    @property
    def first_token_s(self) -> float:
        """Median seconds from the beginning to the first token."""
        return median([trial.first_token_s for trial in self.trials])

    @cached_property
    def speedup(self) -> Ratio:
        """Plain decoding's seconds a token over this contender's, pair by pair."""
        return paired_ratio(
            _paces([each.plain for each in turns] for turns in self._conversations),
            _paces([each.trials for each in turns] for turns in self._conversations),
        )

    @cached_property
    def least_tokens(self) -> int:
        """The tokens of this contender or of plain decoding beside it, whichever has fewer."""
        return min(self.tokens, sum(trial.tokens for each in self.answered for trial in each.plain))

    @property
    def is_enough(self) -> bool:
        """Whether there are enough prompts and tokens for a ratio to mean something."""
        return self.speedup.prompts >= LEAST_PROMPTS and self.least_tokens >= LEAST_TOKENS

    @property
    def _conversations(self) -> list[list[Answered]]:
        """The exchanges of each task together: its turns are much alike, so they are no prompts of their own."""
        tasks: list[list[Answered]] = []
        for each in self.answered:
            if each.exchange.turn and tasks:
                tasks[-1].append(each)
            else:
                tasks.append([each])
        return tasks

    @cached_property
    def acceptance(self) -> Acceptance:
        return Acceptance.of([step for trial in self.trials for step in trial.steps])

    @cached_property
    def parted(self) -> list[Answered]:
        """The exchanges with an answer that is not plain's."""
        return [each for each in self.answered if each.other]

    @property
    def identical(self) -> int | None:
        """Prompts whose answers are all plain's; None where another program does not tell what it said."""
        return self.prompts - len(self.parted) if all(each.known for each in self.answered) else None


def results(rounds: Rounds) -> list[Result]:
    """Class by class a result for each contender that has finished something there, then the same over all classes.

    A program that was given up has answered a part of the prompts only, so it has none over all of them.
    """
    kinds = list(dict.fromkeys(exchange.task.kind for exchange in rounds.exchanges))
    shown = [*kinds, ALL] if len(kinds) > 1 else kinds
    found = [_result(rounds, kind, number) for kind in shown for number in range(len(rounds.contenders))]
    return [each for each in found if each.answered and not (each.kind == ALL and each.number in rounds.failures)]


def overall(found: Sequence[Result]) -> list[Result]:
    """The results over all classes, or those of the only one."""
    return [result for result in found if result.kind == ALL] or list(found)


def speed(trials: Sequence[Trial]) -> float:
    """Tokens a second of several trials taken together."""
    return sum(trial.tokens for trial in trials) / sum(trial.seconds for trial in trials)


def _result(rounds: Rounds, kind: str, contender: int) -> Result:
    by, answered = rounds.contenders[contender], []
    for number, exchange in enumerate(rounds.exchanges):
        if kind in (ALL, exchange.task.kind):
            trials, plain = rounds.of(contender, number), rounds.of(by.baseline, number)
            # An interrupt may have come between the two, and another program may count no token after the first.
            if trials and plain and all(trial.tokens for trial in trials):
                answered.append(_paired(Answered(number, exchange, tuple(trials), ()), plain))
    return Result(kind, contender, by, tuple(answered))


def _paired(answered: Answered, plain: Sequence[Trial]) -> Answered:
    pairs = min(len(answered.trials), len(plain))
    return replace(answered, trials=answered.trials[:pairs], plain=tuple(plain[:pairs]))


def _paces(conversations: Iterable[Sequence[Sequence[Trial]]]) -> list[list[float]]:
    """Seconds a token of each conversation and repetition, its turns taken together."""
    return [[1 / speed(turn) for turn in zip(*turns, strict=False)] for turns in conversations]


def _counts(steps: Sequence[Step]) -> Counts:
    counted = Counter(len(step.tokens) for step in steps)
    return tuple(counted[length] for length in range(1, max(counted, default=0) + 1))


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None

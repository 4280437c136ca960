"""What the trials of a benchmark add up to: a result for each contender in each class, and in all.

Arithmetic on finished trials; how a result is shown is `rows.py` and `report.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from lacli.bench.acceptance import Acceptance
from lacli.bench.rounds import Exchange, Rounds, Trial
from lacli.bench.statistics import Ratio, median, paired_ratio
from lacli.check.judge import parting

ALL = "all"
"""The class of a result over all classes."""


@dataclass(frozen=True)
class Parting:
    """An answer that is not plain's: of which exchange, and which of its tokens differs first (None: not known)."""

    exchange: int
    at: int | None


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
    def parting(self) -> Parting | None:
        """Where that answer leaves plain's."""
        if self.other is None:
            return None
        at = parting(self.plain[0].ids or (), self.other.ids) if self.other.ids is not None else None
        return Parting(self.number, at)

    @property
    def known(self) -> bool:
        """Whether all of its answers can be compared with plain's."""
        return all(trial.same(self.plain[0]) is not None for trial in self.trials)


@dataclass(frozen=True)
class Result:
    """What one contender did in one class. answered: exchanges, each with as many trials of both sides.

    A repetition counts as a sample where it has all of them, which the first one always has.
    """

    kind: str
    contender: int
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

    def measured_by(self, plain: Result) -> Result:
        """The same beside another plain decoding, as far as both have answered."""
        theirs = {each.number: each.trials for each in plain.answered}
        pairs = [(each, theirs[each.number]) for each in self.answered if each.number in theirs]
        return replace(self, answered=tuple(_paired(*pair) for pair in pairs))

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
        return Acceptance.of(chain.from_iterable(trial.steps for trial in self.trials))

    @cached_property
    def parted(self) -> list[Answered]:
        """The exchanges with an answer that is not plain's."""
        return [each for each in self.answered if each.parting]

    @property
    def partings(self) -> list[Parting]:
        return [each.parting for each in self.parted if each.parting]

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
    return [each for each in found if each.answered and not (each.kind == ALL and each.contender in rounds.failures)]


def overall(found: Sequence[Result]) -> list[Result]:
    """The results over all classes, or those of the only one."""
    return [result for result in found if result.kind == ALL] or list(found)


def speed(trials: Sequence[Trial]) -> float:
    """Tokens a second of several trials taken together."""
    return sum(trial.tokens for trial in trials) / sum(trial.seconds for trial in trials)


def _result(rounds: Rounds, kind: str, contender: int) -> Result:
    baseline = rounds.contenders[contender].baseline
    answered = []
    for number, exchange in enumerate(rounds.exchanges):
        if kind in (ALL, exchange.task.kind):
            trials, plain = rounds.of(contender, number), rounds.of(baseline, number)
            # An interrupt may have come between the two, and another program may count no token after the first.
            if trials and plain and all(trial.tokens for trial in trials):
                answered.append(_paired(Answered(number, exchange, tuple(trials), ()), plain))
    return Result(kind, contender, tuple(answered))


def _paired(answered: Answered, plain: Sequence[Trial]) -> Answered:
    pairs = min(len(answered.trials), len(plain))
    return replace(answered, trials=answered.trials[:pairs], plain=tuple(plain[:pairs]))


def _paces(conversations: Iterable[Sequence[Sequence[Trial]]]) -> list[list[float]]:
    """Seconds a token of each conversation and repetition, its turns taken together."""
    return [[1 / speed(turn) for turn in zip(*turns, strict=False)] for turns in conversations]


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None

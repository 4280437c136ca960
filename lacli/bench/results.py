"""What the trials of a benchmark add up to: a result for each contender in each class, and in all.

Arithmetic on finished trials; how a result is shown is `rows.py` and `report.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest

from lacli.bench.acceptance import Acceptance
from lacli.bench.rounds import Exchange, Rounds, Trial
from lacli.bench.statistics import Ratio, median, paired_ratio
from lacli.judge import parting

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

    @property
    def parting(self) -> Parting | None:
        """Where the first of its answers leaves plain's, and None where all are plain's."""
        for trial in self.trials:
            if not same(self.plain[0], trial):
                at = parting(self.plain[0].ids or (), trial.ids) if trial.ids is not None else None
                return Parting(self.number, at)
        return None


@dataclass(frozen=True)
class Result:
    """What one contender did in one class. answered: exchanges, each with as many trials of both sides."""

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
        """Tokens a second of each repetition, its prompts taken together."""
        turns = zip_longest(*(each.trials for each in self.answered))
        return [speed([trial for trial in turn if trial]) for turn in turns]

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
        plain = [[trial.seconds_a_token for trial in each.plain] for each in self.answered]
        own = [[trial.seconds_a_token for trial in each.trials] for each in self.answered]
        return paired_ratio(plain, own)

    @cached_property
    def acceptance(self) -> Acceptance:
        return Acceptance.of(chain.from_iterable(trial.steps for trial in self.trials))

    @cached_property
    def partings(self) -> list[Parting]:
        return [each.parting for each in self.answered if each.parting]

    @property
    def identical(self) -> int:
        """Prompts whose answers are all plain's."""
        return self.prompts - len(self.partings)


def results(rounds: Rounds) -> list[Result]:
    """Class by class a result for each contender that has finished something there, then the same over all classes."""
    kinds = list(dict.fromkeys(exchange.task.kind for exchange in rounds.exchanges))
    shown = [*kinds, ALL] if len(kinds) > 1 else kinds
    found = [_result(rounds, kind, number) for kind in shown for number in range(len(rounds.contenders))]
    return [result for result in found if result.answered]


def overall(found: Sequence[Result]) -> list[Result]:
    """The results over all classes, or those of the only one."""
    return [result for result in found if result.kind == ALL] or list(found)


def same(plain: Trial, trial: Trial) -> bool:
    """Whether an answer is plain's; another program's may end elsewhere, and counts as far as both go."""
    if trial.steps:
        return trial.ids == plain.ids
    if trial.ids is not None:
        return all(theirs == ours for theirs, ours in zip(trial.ids, plain.ids or (), strict=False))
    ours, theirs = plain.text or "", trial.text or ""
    return ours.startswith(theirs) or theirs.startswith(ours)


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
            pairs = min(len(trials), len(plain))
            if pairs and all(trial.tokens for trial in trials):
                answered.append(Answered(number, exchange, tuple(trials[:pairs]), tuple(plain[:pairs])))
    return Result(kind, contender, tuple(answered))


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None

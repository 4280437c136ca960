"""How the n-gram pool grows with the text, how often it has a candidate, and what these are worth.

Fed step by step while a run goes on, since a pool shows only what it holds now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lacli.pool import NgramPool
from lacli.stats import Step

CHECKPOINTS = (64, 128, 256, 512)
"""Generated tokens at which the pool is looked at."""


@dataclass(frozen=True)
class Matches:
    """Steps and their tokens, and those of them that had a match; add two to merge runs.

    A step has a match when its lookup found a continuation in the pool, or in modes that ask no pool, when anything
    was drafted.
    """

    steps: int = 0
    tokens: int = 0
    matched_steps: int = 0
    matched_tokens: int = 0

    def __add__(self, other: Matches) -> Matches:
        return Matches(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.matched_steps + other.matched_steps,
            self.matched_tokens + other.matched_tokens,
        )

    def __sub__(self, other: Matches) -> Matches:
        """What came after `other`, an earlier count of the same run."""
        return Matches(
            self.steps - other.steps,
            self.tokens - other.tokens,
            self.matched_steps - other.matched_steps,
            self.matched_tokens - other.matched_tokens,
        )

    @property
    def hit_rate(self) -> float:
        """h, the share of the steps that had a match."""
        return self.matched_steps / self.steps if self.steps else 0.0

    @property
    def match_length(self) -> float:
        """L, mean tokens of a step with a match, the model's own included; 1 where there was none."""
        return self.matched_tokens / self.matched_steps if self.matched_steps else 1.0

    @property
    def predicted(self) -> float:
        """1 + h (L - 1) tokens a step.

        That is S itself where steps without a match bring one token each. With N = 2 or 3 the window's own guesses
        can be accepted, and S is larger by what they bring then.
        """
        return 1 + self.hit_rate * (self.match_length - 1)

    @property
    def tokens_per_step(self) -> float:
        """S as it was measured."""
        return self.tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True)
class Growth:
    """The pool when `checkpoint` tokens had been generated; add two of the same checkpoint to merge runs.

    keys, ngrams: sums over the runs. so_far: all steps up to here. recent: those since the checkpoint before.
    """

    checkpoint: int
    runs: int
    keys: int
    ngrams: int
    so_far: Matches
    recent: Matches

    def __add__(self, other: Growth) -> Growth:
        assert self.checkpoint == other.checkpoint
        return Growth(
            self.checkpoint,
            self.runs + other.runs,
            self.keys + other.keys,
            self.ngrams + other.ngrams,
            self.so_far + other.so_far,
            self.recent + other.recent,
        )

    @property
    def mean_keys(self) -> float:
        """First tokens that a run's pool has n-grams for, mean over the runs."""
        return self.keys / self.runs

    @property
    def mean_ngrams(self) -> float:
        """N-grams in a run's pool, those of the prompt included, mean over the runs."""
        return self.ngrams / self.runs


@dataclass
class PoolGrowth:
    """The pool of one run, looked at when the text reaches a checkpoint; `observe` each step as it comes.

    matches: all steps so far.
    """

    checkpoints: tuple[int, ...] = CHECKPOINTS
    matches: Matches = Matches()
    _rows: list[Growth] = field(default_factory=list)

    def observe(self, step: Step, pool: NgramPool) -> None:
        """Count a step that has just been made with this pool."""
        tokens = len(step.tokens)
        matched = bool(step.drafted) if pool.found is None else pool.found
        self.matches += Matches(1, tokens, int(matched), tokens * matched)
        while len(self._rows) < len(self.checkpoints) and self.matches.tokens >= self.checkpoints[len(self._rows)]:
            self._look(pool)

    def rows(self) -> list[Growth]:
        """One for each checkpoint that the text has reached."""
        return list(self._rows)

    def _look(self, pool: NgramPool) -> None:
        held = pool.statistics()
        before = self._rows[-1].so_far if self._rows else Matches()
        self._rows.append(
            Growth(
                checkpoint=self.checkpoints[len(self._rows)],
                runs=1,
                keys=held.keys,
                ngrams=held.ngrams,
                so_far=self.matches,
                recent=self.matches - before,
            )
        )


def merged(runs: Iterable[PoolGrowth]) -> list[Growth]:
    """The rows of several runs, one for each checkpoint that any of them has reached."""
    together: dict[int, Growth] = {}
    for row in (row for run in runs for row in run.rows()):
        earlier = together.get(row.checkpoint)
        together[row.checkpoint] = earlier + row if earlier else row
    return [together[checkpoint] for checkpoint in sorted(together)]

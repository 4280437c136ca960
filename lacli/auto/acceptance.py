"""What mode auto learns from accepted guesses: how often each kind comes true, what may be lost, which sources pay."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from lacli.settings import window_rows

DECAY = 0.98
"""Weight of a try when the next one of its kind comes: about the last fifty decide. Source: docs/auto.md."""

PRIOR_TRIES = 6.0
"""Tries that an expectation counts as beside those of a text; it fades with them."""

MEAN_DECAY, MEAN_PRIOR = 0.998, 12.0
"""Weight of a try in the mean of all texts when the next one of its kind comes, and tries of an expectation there."""

MAX_PROBABILITY = 0.999
"""Two guesses for one place that are both certain would contradict each other."""


class AcceptanceEstimate:
    """Hits over tries for each kind of guess, recent tries weighing most; the source defines its kinds.

    A text begins with the mean of those before it. `probability`: of each kind now; always the same list.

    >>> estimate = AcceptanceEstimate([0.5, 0.9])
    >>> estimate.record(0, True)
    >>> estimate.probability[0] > 0.5
    True
    """

    def __init__(self, expected: Sequence[float]) -> None:
        """Begin with the `expected` probability of each kind."""
        self._expected = tuple(expected)
        self._all_hits = [0.0] * len(expected)
        self._all_tries = [0.0] * len(expected)
        self.probability = [0.0] * len(expected)
        self.begin()

    def for_text(self) -> AcceptanceEstimate:
        """Return the estimate of one of several texts: they share what all texts show, and nothing else."""
        other = copy(self)
        other.probability = [*self.probability]
        other.begin()
        return other

    def begin(self) -> None:
        """Begin a text: what all texts before it showed counts as PRIOR_TRIES, since texts differ."""
        mean = [
            (hits + MEAN_PRIOR * chance) / (tries + MEAN_PRIOR) if tries else chance
            for hits, tries, chance in zip(self._all_hits, self._all_tries, self._expected, strict=True)
        ]
        self._hits = [PRIOR_TRIES * chance for chance in mean]
        self._tries = [PRIOR_TRIES] * len(mean)
        self.probability[:] = [min(chance, MAX_PROBABILITY) for chance in mean]

    def record(self, kind: int, hit: bool) -> None:
        """Record whether a guess of this kind came true."""
        hits = self._hits[kind] = self._hits[kind] * DECAY + hit
        tries = self._tries[kind] = self._tries[kind] * DECAY + 1.0
        self._all_hits[kind] = self._all_hits[kind] * MEAN_DECAY + hit
        self._all_tries[kind] = self._all_tries[kind] * MEAN_DECAY + 1.0
        self.probability[kind] = min(hits / tries, MAX_PROBABILITY)


FIRST_TRIAL, MAX_PAUSE = 64, 4096
"""Steps before the first trial of a source or of the window, and most steps between two; a failed one doubles them."""

PROMISED = 10.0
"""Promised hits that full trust in a source counts as beside those of its guesses.

Where 64 rows cost 1.3 plain steps mode auto was 2.95 times as fast with 10 and 2.88 with 4.
"""

STAKE, MAX_CREDIT = 0.5, 1.5
"""Plain steps that a trial of a source may lose, 1% of an answer of 50 tokens, and that one which gains may lose."""


class SourceAccount:
    """What a source's guesses in trees are worth, and whether it pays for its rows and its time.

    `trust`: hits over promised hits of the guesses that trees took, at most 1. A tree takes those that look best, and
    they come true less often than all of their kind. `awake`: True while the source is asked. One that has lost its
    stake sleeps, twice as long each time.
    """

    def __init__(self) -> None:
        self.trust = 1.0
        self.awake = False
        self._promised = self._hits = PROMISED
        self._credit = 0.0
        self._remaining = self._pause = FIRST_TRIAL
        self.begin()

    def begin(self) -> None:
        """Begin a text, which may be one that the source suits."""
        self._is_untried = True

    def record_guess(self, chance: float, hit: bool) -> None:
        """Record whether a guess with this probability came true where it could."""
        self._promised = self._promised * DECAY + chance
        self._hits = self._hits * DECAY + hit
        self.trust = min(self._hits / self._promised, 1.0)

    def record_step(self, gain: float) -> None:
        """Record what a step gained by the source: plain steps saved, less those that its rows and its time took."""
        self._credit = min(self._credit + gain, MAX_CREDIT)
        if self._credit < 0:
            self._pause = min(2 * self._pause, MAX_PAUSE)
            self.awake, self._remaining = False, self._pause
        elif self._credit == MAX_CREDIT:
            self._pause = FIRST_TRIAL

    def decide(self, *, promising: bool) -> bool:
        """Return whether the source is asked in the next step; `promising`: rows are cheap enough to try it soon."""
        if not self.awake:
            self._remaining -= 1
            if self._remaining <= 0 or (promising and self._is_untried):
                self.awake, self._credit = True, STAKE
                self._is_untried = False
        return self.awake


INITIAL_BUDGET = 2.0
"""Plain steps that may be lost before anything was gained."""

BUDGET_SHARE = 0.01
"""Part of a run that may be lost besides: a run with only wrong guesses is hardly longer than a plain one."""

MAX_BALANCE, MIN_BALANCE = 12.0, -12.0
"""Bounds of remembered gains and debts: a good run must not lose all it gained, and a bad one may recover."""

MARGIN, EXTRA_MARGIN, AMPLE_BALANCE = 1.08, 0.3, 4.0
"""Ratio to plain decoding that a draft must promise, what an empty balance adds, and the balance that adds nothing.

Expectations are a little too bright, and least known at first.
"""


class LossBudget:
    """The account of what guessing has won and lost, in plain steps; it bounds the worst case."""

    def __init__(self) -> None:
        self._balance = INITIAL_BUDGET

    def begin(self) -> None:
        """Forget the debt of the text before: one of a busy machine stopped guesses for 600 tokens (docs/auto.md)."""
        self._balance = max(self._balance, 0.0)

    @property
    def max_cost(self) -> float:
        """Cost that a step may have; it brings at least one token."""
        return 1 + self._balance

    @property
    def margin(self) -> float:
        """Tokens per plain step that a step with guesses must promise."""
        return MARGIN + EXTRA_MARGIN * max(1 - self._balance / AMPLE_BALANCE, 0.0)

    def record(self, tokens: float, cost: float) -> None:
        """Book a step with guesses that brought `tokens` at `cost` plain steps."""
        self._balance = min(max(self._balance + tokens - cost + BUDGET_SHARE * tokens, MIN_BALANCE), MAX_BALANCE)

    def record_plain(self, steps: int) -> None:
        """Book plain steps."""
        self._balance = min(self._balance + BUDGET_SHARE * steps, MAX_BALANCE)


MAX_WINDOW_SHARE = 0.1
"""Part of a step's time up to which a window is tried: it repays hardly more."""

TRIAL = 16
"""Steps of a trial: the first ones find what the later ones accept."""

WINDOW_DECAY = 0.96
"""Weight of a step's finds one step later."""


class WindowWidth:
    """The number of window columns: as many as bring what their rows cost, none where they cannot.

    A window pays by accepted tokens that no other source guessed. The steps themselves show these, so a trial needs no
    comparison with steps without a window. `columns`: now.
    """

    def __init__(self, columns: int, ngram: int, rows: int) -> None:
        """Allow at most `columns`, whose rows leave half of a step's `rows` to other guesses."""
        widths = {width for width in (columns // 5, columns // 2, columns) if width}
        self._widths = sorted(width for width in widths if window_rows(width, ngram) <= rows // 2)
        self._ngram = ngram
        self._pause = self._remaining = FIRST_TRIAL
        self._place = 0
        self._found = self._steps = 0.0
        self.columns = 0

    def decide(self, relative: Sequence[float], rows: int, tokens: float) -> int:
        """Return the next step's columns, given its other `rows` and the mean `tokens` of a step."""
        self._remaining -= 1
        if self._remaining > 0 or not self._widths:
            return self.columns
        if not self.columns:
            self._place = 0
            self._begin_trial(relative, rows)
        else:
            self._judge(relative, rows, tokens)
        return self.columns

    def record(self, found: int) -> None:
        """Record how many accepted tokens of a step only the window had found."""
        self._found = self._found * WINDOW_DECAY + found
        self._steps = self._steps * WINDOW_DECAY + 1

    def _begin_trial(self, relative: Sequence[float], rows: int) -> None:
        self._remaining = self._pause
        if self._share(relative, rows, self._widths[self._place]) <= MAX_WINDOW_SHARE:
            self.columns, self._remaining = self._widths[self._place], TRIAL
            self._found = self._steps = 0.0

    def _judge(self, relative: Sequence[float], rows: int, tokens: float) -> None:
        """Go on with more columns, the same, or none."""
        self._remaining = TRIAL
        gain = self._found / max(self._steps, 1.0) / max(tokens, 1.0)
        if gain < self._share(relative, rows, self.columns):
            self.columns = 0
            self._pause = self._remaining = min(2 * self._pause, MAX_PAUSE)
            return
        self._pause = FIRST_TRIAL
        wider = self._widths[self._place + 1 :]
        if wider and self._share(relative, rows, wider[0]) <= min(MAX_WINDOW_SHARE, 2 * gain):
            self._place += 1
            self.columns = wider[0]

    def _share(self, relative: Sequence[float], rows: int, columns: int) -> float:
        """Part of a step's time that `columns` take."""
        more = min(rows + window_rows(columns, self._ngram), len(relative) - 1)
        rows = min(rows, more)
        return 1 - relative[rows] / relative[more] if more > rows else 1.0

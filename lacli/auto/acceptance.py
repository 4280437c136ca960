"""What mode auto learns from accepted guesses: how often each kind comes true, what may be lost, the window's width."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from lacli.settings import window_rows

DECAY = 0.98
"""Weight of a try when the next one of its kind comes: about the last fifty decide. Source: docs/auto.md."""

PRIOR_TRIES = 6.0
"""Tries that an expectation counts as beside observed ones; it fades with them."""

MAX_TRIES, MAX_KEPT_TRIES = 1 / (1 - DECAY), 300.0
"""Sum of the weights of all tries of a long text, and most tries of earlier texts that count: of six long ones."""

MAX_PROBABILITY = 0.999
"""Two guesses for one place that are both certain would contradict each other."""


class AcceptanceEstimate:
    """Hits over tries for each kind of guess, recent tries weighing most; the source defines its kinds.

    `probability`: of each kind now; always the same list.

    >>> estimate = AcceptanceEstimate([0.5, 0.9])
    >>> estimate.record(0, True)
    >>> estimate.probability[0] > 0.5
    True
    """

    def __init__(self, expected: Sequence[float]) -> None:
        """Begin with the `expected` probability of each kind."""
        self._expected = list(expected)
        self._earlier = [(0.0, 0.0)] * len(expected)
        self.probability = [min(chance, MAX_PROBABILITY) for chance in expected]
        self._hits = [PRIOR_TRIES * chance for chance in expected]
        self._tries = [PRIOR_TRIES] * len(expected)

    def record(self, kind: int, hit: bool) -> None:
        """Record whether a guess of this kind came true."""
        hits = self._hits[kind] = self._hits[kind] * DECAY + hit
        tries = self._tries[kind] = self._tries[kind] * DECAY + 1.0
        self.probability[kind] = min(hits / tries, MAX_PROBABILITY)

    def numbers(self) -> list[list[float]]:
        """Return the hits and tries of each kind in earlier runs and, by their weights now, in this one."""
        found = []
        for kind, (hits, tries) in enumerate(self._earlier):
            hits_here, tries_here = self._observed(kind)
            found.append([round(hits + hits_here, 3), round(tries + tries_here, 3)])
        return found

    def begin_from(self, kept: Any, weight: float) -> None:
        """Expect what earlier runs have seen, by their `numbers`, whose tries count `weight` times.

        Another text is another subject: all tries together weigh here as an expectation does. Raises ValueError or
        TypeError, and changes nothing, where they are no such numbers.
        """
        earlier = [_counted(float(hits), float(tries), weight) for hits, tries in kept]
        if len(earlier) != len(self._expected):
            raise ValueError("other kinds")
        self._earlier = earlier
        for kind, (hits, tries) in enumerate(earlier):
            chance = (hits + PRIOR_TRIES * self._expected[kind]) / (tries + PRIOR_TRIES)
            self._expected[kind], self._hits[kind] = chance, PRIOR_TRIES * chance
            self._tries[kind], self.probability[kind] = PRIOR_TRIES, min(chance, MAX_PROBABILITY)

    def _observed(self, kind: int) -> tuple[float, float]:
        """Return the hits and tries of a kind here: what is left of the expectation fades as they do."""
        tries = max(self._tries[kind] - PRIOR_TRIES, 0.0) / (1 - PRIOR_TRIES / MAX_TRIES)
        hits = self._hits[kind] - PRIOR_TRIES * (1 - tries / MAX_TRIES) * self._expected[kind]
        return min(max(hits, 0.0), tries), tries


def _counted(hits: float, tries: float, weight: float) -> tuple[float, float]:
    """Return kept hits and tries by what they count now. Raises ValueError for numbers that cannot be."""
    if not 0 <= hits <= tries < inf:
        raise ValueError("no hits of tries")
    share = weight * min(MAX_KEPT_TRIES / tries, 1.0) if tries else 0.0
    return hits * share, tries * share


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

    @property
    def max_cost(self) -> float:
        """Cost that a step may have; it brings at least one token."""
        return 1 + self._balance

    @property
    def margin(self) -> float:
        """Tokens per plain step that a step with guesses must promise."""
        return MARGIN + EXTRA_MARGIN * max(1 - self._balance / AMPLE_BALANCE, 0.0)

    def record(self, tokens: int, cost: float) -> None:
        """Book a step with guesses that brought `tokens` at `cost` plain steps."""
        self._balance = min(max(self._balance + tokens - cost + BUDGET_SHARE * tokens, MIN_BALANCE), MAX_BALANCE)

    def record_plain(self, steps: int) -> None:
        """Book plain steps."""
        self._balance = min(self._balance + BUDGET_SHARE * steps, MAX_BALANCE)


MAX_WINDOW_SHARE = 0.1
"""Part of a step's time up to which a window is tried: it repays hardly more."""

FIRST_TRIAL, MAX_PAUSE = 64, 4096
"""Steps before the window's first trial, and most steps between two; each failed trial doubles the pause."""

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

    def numbers(self) -> list[int]:
        """Return the steps between two trials, and those that remain to the next; an open window is tried at once."""
        return [self._pause, 0 if self.columns else max(self._remaining, 0)]

    def begin_from(self, kept: Any, weight: float) -> None:
        """Wait as long as an earlier run would have, or `weight` times that. Raises ValueError for other numbers."""
        pause, remaining = (int(steps * weight) for steps in kept)
        if not 0 <= remaining <= pause <= MAX_PAUSE:
            raise ValueError("no pause")
        self._pause, self._remaining = max(pause, FIRST_TRIAL), remaining

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

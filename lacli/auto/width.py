"""How many columns the window has: as many as bring what their rows cost, and none where they cannot.

A window pays by the accepted tokens that no other source guessed. That is seen in the steps themselves, so a trial
needs no comparison with steps that have none; trials that fail come more and more seldom.
"""

from __future__ import annotations

from collections.abc import Sequence

from lacli.settings import window_rows

POSSIBLE = 0.1
"""The part of a step's time that a window could repay at most; where it costs more it is never tried."""

FIRST, LONGEST = 64, 4096
"""Steps before the first trial, and the most between two."""

TRIAL = 16
"""Steps of a trial: the first ones find what the later ones accept."""

DECAY = 0.96
"""What a step still counts one step later."""


class Width:
    """The window's columns, decided anew from time to time. columns: now."""

    def __init__(self, most: int, ngram: int, rows: int) -> None:
        """most: columns that are allowed. rows: of a step, of which the window must leave half to other guesses."""
        widths = {width for width in (most // 5, most // 2, most) if width}
        self._widths = sorted(width for width in widths if window_rows(width, ngram) <= rows // 2)
        self._ngram = ngram
        self._wait = self._until = FIRST
        self._place = 0
        self._found = self._steps = 0.0
        self.columns = 0

    def decide(self, relative: Sequence[float], rows: int, tokens: float) -> int:
        """The columns of the next step, which has so many other rows and brings so many tokens on average."""
        self._until -= 1
        if self._until > 0 or not self._widths:
            return self.columns
        if not self.columns:
            self._place = 0
            self._begin_trial(relative, rows)
        else:
            self._judge(relative, rows, tokens)
        return self.columns

    def saw(self, found: int) -> None:
        """A step with columns accepted so many tokens that only the window had found."""
        self._found = self._found * DECAY + found
        self._steps = self._steps * DECAY + 1

    def _begin_trial(self, relative: Sequence[float], rows: int) -> None:
        self._until = self._wait
        if self._cost(relative, rows, self._widths[self._place]) <= POSSIBLE:
            self.columns, self._until = self._widths[self._place], TRIAL
            self._found = self._steps = 0.0

    def _judge(self, relative: Sequence[float], rows: int, tokens: float) -> None:
        """Go on with more columns, the same, or none."""
        self._until = TRIAL
        gain = self._found / max(self._steps, 1.0) / max(tokens, 1.0)
        if gain < self._cost(relative, rows, self.columns):
            self.columns = 0
            self._wait = self._until = min(2 * self._wait, LONGEST)
            return
        self._wait = FIRST
        wider = self._widths[self._place + 1 :]
        if wider and self._cost(relative, rows, wider[0]) <= min(POSSIBLE, 2 * gain):
            self._place += 1
            self.columns = wider[0]

    def _cost(self, relative: Sequence[float], rows: int, width: int) -> float:
        """The part of a step's time that so many columns take."""
        more = min(rows + window_rows(width, self._ngram), len(relative) - 1)
        rows = min(rows, more)
        return 1 - relative[rows] / relative[more] if more > rows else 1.0

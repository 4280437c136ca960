"""How long a replica takes for so many rows: a straight line through the steps that it has lately decoded.

Seconds and rows only. It decides how branches are dealt out, so it has to be right near the sizes that are dealt.
"""

from __future__ import annotations

KEEP = 0.9
"""What a step still counts one step later."""

SLOPE = 0.5
"""The part of a step's time that its rows are taken to cost, where all steps were alike and no prompt says more."""

LEAST_HINT = 16
"""Rows of a prompt from which its time is a hint."""

LARGER = 2
"""Times the rows of the steps from which a prompt says what their rows cost."""

LATE = 3.0
"""A step that took so many times as long as expected was held up, and counts as one that took so much longer."""

UNSEEN = 1.0
"""Seconds of a step where nothing was seen yet of any replica; only how they compare matters then."""

UNSEEN_ROWS = 16


class Speed:
    """t(b) of one replica as fixed + row b seconds, steps of long ago forgotten by and by."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = 0.0
        self._seconds = 0.0
        self._spread = 0.0
        self._together = 0.0
        self._hint = 0, 0.0

    @property
    def seen(self) -> bool:
        """Whether it has decoded anything yet."""
        return self._weight > 0

    @property
    def known(self) -> bool:
        """Whether anything is known of it."""
        return self.seen or self._hint[0] > 0

    def saw(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if self.seen:
            seconds = min(seconds, LATE * self.seconds(rows))
        kept = KEEP * self._weight
        self._weight = kept + 1
        # The mean and the spread around it are kept up to date together (Welford's method with forgetting).
        away, step = rows - self._rows, seconds - self._seconds
        self._rows += away / self._weight
        self._seconds += step / self._weight
        self._spread = KEEP * self._spread + away * away * kept / self._weight
        self._together = KEEP * self._together + away * step * kept / self._weight

    def hint(self, rows: int, seconds: float) -> None:
        """A piece of a prompt took so long, which says something where no step was seen, or only small ones.

        The largest one says the most.
        """
        if rows >= max(LEAST_HINT, self._hint[0]):
            self._hint = rows, seconds

    def seconds(self, rows: int) -> float:
        """How long so many rows take."""
        fixed, row = self.line()
        return fixed + row * rows

    def line(self, like: Speed | None = None) -> tuple[float, float]:
        """Seconds of a step without rows, and of each row. like: another replica, for one of which nothing is known."""
        if not self.known:
            return like.line() if like and like is not self else _split(UNSEEN_ROWS, UNSEEN)
        if not self.seen:
            return _split(*self._hint)
        usual = self._usual_row()
        # Sizes that hardly differ say little about a slope: they count against as many rows as an eighth of the size.
        doubt = self._weight * (self._rows / 8) ** 2
        row = (self._together + doubt * usual) / (self._spread + doubt)
        row = min(max(row, 0.0), self._seconds / self._rows)
        return self._seconds - row * self._rows, row

    def _usual_row(self) -> float:
        """What a row costs where the steps do not say it: the prompt does, if it was much larger than they are."""
        rows, seconds = self._hint
        most = SLOPE * self._seconds / self._rows
        if rows < LARGER * self._rows:
            return most
        # A prompt may have been slow for other reasons, the weights coming from disk for one.
        return min((seconds - self._seconds) / (rows - self._rows), most)


def _split(rows: int, seconds: float) -> tuple[float, float]:
    """The line of which one point is known."""
    return (1 - SLOPE) * seconds, SLOPE * seconds / rows

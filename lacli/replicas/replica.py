"""One replica of a group: its cache, its work and its measured speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Event

from lacli.cache import SingleEngine
from lacli.engine import Engine, Read, unread
from lacli.replicas.partition import Load
from lacli.stats import ReplicaWork

DECAY = 0.9
"""Weight of a step relative to the next one: about the last ten steps count."""

SLOPE = 0.5
"""The assumed share of a step's time spent on its rows, while all steps have one size and no prompt tells more."""

MIN_HINT_ROWS = 16
"""Rows of the shortest prompt whose time is a hint about the cost of a row; fewer rows are like any step."""

HINT_FACTOR = 2
"""A prompt counts for the cost of a row if it has this many times the rows of a step."""

LATE = 3.0
"""A step's time is clipped at this many times the expected seconds: a longer one was held up by something else."""

UNSEEN_ROWS, UNSEEN = 16, 1.0
"""Rows and seconds of the step assumed for every replica before the first measurement; only ratios matter."""


class Speed:
    """t(b) of one replica as fixed + row b seconds: a line through its steps, older ones with less weight."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = 0.0
        self._seconds = 0.0
        self._spread = 0.0
        self._together = 0.0
        self._hint = 0, 0.0

    @property
    def seen(self) -> bool:
        """True once a step was recorded."""
        return self._weight > 0

    @property
    def known(self) -> bool:
        """True once a step or a prompt was recorded."""
        return self.seen or self._hint[0] > 0

    def saw(self, rows: int, seconds: float) -> None:
        """Record a step of `rows` rows."""
        if self.seen:
            seconds = min(seconds, LATE * self.seconds(rows))
        kept = DECAY * self._weight
        self._weight = kept + 1
        # Means and spreads are updated together (Welford's method, with decay).
        away, step = rows - self._rows, seconds - self._seconds
        self._rows += away / self._weight
        self._seconds += step / self._weight
        self._spread = DECAY * self._spread + away * away * kept / self._weight
        self._together = DECAY * self._together + away * step * kept / self._weight

    def hint(self, rows: int, seconds: float) -> None:
        """Record the seconds of `rows` rows of a prompt; only the largest prompt counts."""
        if rows >= max(MIN_HINT_ROWS, self._hint[0]):
            self._hint = rows, seconds

    def seconds(self, rows: int) -> float:
        """Seconds that `rows` rows take."""
        fixed, row = self.line()
        return fixed + row * rows

    def line(self, like: Speed | None = None) -> tuple[float, float]:
        """Seconds of a step without rows, and of each row. `like`: used instead while nothing is recorded here."""
        if not self.known:
            return like.line() if like and like is not self else _split(UNSEEN_ROWS, UNSEEN)
        if not self.seen:
            return _split(*self._hint)
        usual = self._usual_row()
        # Steps of nearly one size say little about the slope: the prior weighs as a spread of an eighth of the size.
        doubt = self._weight * (self._rows / 8) ** 2
        row = (self._together + doubt * usual) / (self._spread + doubt)
        row = min(max(row, 0.0), self._seconds / self._rows)
        return self._seconds - row * self._rows, row

    def _usual_row(self) -> float:
        """Seconds of a row if the steps do not tell: from the prompt, if it was much larger than the steps."""
        rows, seconds = self._hint
        most = SLOPE * self._seconds / self._rows
        if rows < HINT_FACTOR * self._rows:
            return most
        # A prompt may be slow for other reasons, such as weights that are read from disk.
        return min((seconds - self._seconds) / (rows - self._rows), most)


def _split(rows: int, seconds: float) -> tuple[float, float]:
    """The line (fixed, row) through one point, with `SLOPE` of its time in the rows."""
    return (1 - SLOPE) * seconds, SLOPE * seconds / rows


def shared_s(rows: int, parts: Iterable[tuple[int, float]]) -> float:
    """Seconds for `rows` rows shared by all replicas at their measured rates. `parts`: rows and seconds of each."""
    rate = sum(done / seconds for done, seconds in parts if seconds > 0)
    return rows / rate if rate else 0.0


PATIENCE = 0.1
"""The share of the other replicas' step time that they wait for one that seems too slow; halved after each wait."""


class Replica(SingleEngine):
    """One copy of the model. `name`: for messages.

    `prompt_rows`, `prompt_s`: rows of the last prompt that it decoded, and their seconds. `answer_work`: its parts of
    this answer.
    """

    def __init__(self, engine: Engine, name: str = "") -> None:
        super().__init__(engine)
        self.name = name
        self.speed = Speed()
        self.prompt_rows, self.prompt_s = 0, 0.0
        self.answer_work = ReplicaWork()
        self._sat_out_s, self._patience = 0.0, PATIENCE

    def load(self, tokens: Sequence[int], like: Speed) -> Load:
        """Its capacity and speed for the next step. `like`: the speed assumed while it has decoded nothing."""
        fixed, row = self.speed.line(like)
        return Load(fixed, row, self.behind(tokens), self.cache.room)

    def learn(self) -> None:
        """Record the time of its last part."""
        seconds = sum(self.times)
        self._sat_out_s, self._patience = 0.0, PATIENCE
        self.speed.saw(self.rows, seconds)
        self.answer_work.parts += 1
        self.answer_work.rows += self.rows
        self.answer_work.seconds += seconds

    def prefill(self, tokens: Sequence[int], read: Read = unread, *, all_replicas: bool = True) -> float:
        rows, seconds = len(tokens) - self.cache.past, super().prefill(tokens, read)
        self.prompt_rows += rows
        self.prompt_s += seconds
        self.speed.hint(rows, seconds)
        return seconds

    def prefill_until(self, tokens: Sequence[int], over: Event, show: Callable[[], None] = lambda: None) -> bool:
        """Prefill in pieces of the engine's `prefill_rows` until done or `over` is set, then set it; True.

        The first replica to finish, or to be interrupted, sets `over`; one whose last piece is left decodes that too.
        `show`: called after each piece.
        """
        rows = self.engine.prefill_rows
        try:
            while self.cache.past < len(tokens):
                self.prefill(tokens[: self.cache.past + rows])
                show()
                if over.is_set() and self.cache.past + rows < len(tokens):
                    break
        finally:
            over.set()
        return True

    def catch_up(self, tokens: Sequence[int]) -> bool:
        """Decode the tokens that its cache lacks, and record the time; True."""
        rows = len(tokens) - self.cache.past
        self.speed.saw(rows, self.prefill(tokens))
        self._sat_out_s = 0.0
        return True

    def rows_to_catch_up(self, behind: int, step_s: float) -> int:
        """How many of `behind` tokens this replica can catch up on during a step of `step_s` seconds.

        A replica too slow for one token still gets one when its expected time is at most `PATIENCE` of the time it has
        sat out: it may have been slowed down for a moment only.
        """
        self._sat_out_s += step_s
        if not self.speed.known:
            return behind
        fixed, row = self.speed.line()
        within = int((step_s - fixed) / row) if row > 0 else behind if fixed <= step_s else 0
        if within < 1 and fixed + row <= self._patience * self._sat_out_s:
            within, self._patience = 1, self._patience / 2
        return min(max(within, 0), behind)

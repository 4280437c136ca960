"""One replica of a group: its cache, what it has decoded, and its measured speed."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

from lacli.cache import PREFILL_ROWS, SingleEngine
from lacli.engine import Engine
from lacli.replicas.partition import Load
from lacli.stats import ReplicaWork

DECAY = 0.9
"""Weight of a step, relative to the step after it: what counts is about the last ten."""

SLOPE = 0.5
"""The part of a step's time that its rows are taken to cost, where all steps were alike and no prompt says more."""

MIN_HINT_ROWS = 16
"""Rows of a prompt from which its time is a hint: a shorter one is a step like the others."""

HINT_FACTOR = 2
"""Times the rows of the steps from which a prompt says what their rows cost."""

LATE = 3.0
"""Times the expected seconds that a step counts as at most: a longer one was held up by something else."""

UNSEEN_ROWS, UNSEEN = 16, 1.0
"""A step, in rows and seconds, that stands for replicas before any has decoded; only how they compare matters."""


class Speed:
    """t(b) of one replica as fixed + row b seconds, a line through its steps with old ones forgotten by and by."""

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
        # The mean and the spread around it are kept up to date together (Welford's method with forgetting).
        away, step = rows - self._rows, seconds - self._seconds
        self._rows += away / self._weight
        self._seconds += step / self._weight
        self._spread = DECAY * self._spread + away * away * kept / self._weight
        self._together = DECAY * self._together + away * step * kept / self._weight

    def hint(self, rows: int, seconds: float) -> None:
        """Record a piece of a prompt: the largest one counts where no step was recorded, or only small ones."""
        if rows >= max(MIN_HINT_ROWS, self._hint[0]):
            self._hint = rows, seconds

    def seconds(self, rows: int) -> float:
        """Seconds that `rows` rows take."""
        fixed, row = self.line()
        return fixed + row * rows

    def line(self, like: Speed | None = None) -> tuple[float, float]:
        """Seconds of a step without rows, and of each row. `like`: stands in while nothing is recorded here."""
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
        """Seconds of a row where the steps do not say it: the prompt's, if it was much larger than they are."""
        rows, seconds = self._hint
        most = SLOPE * self._seconds / self._rows
        if rows < HINT_FACTOR * self._rows:
            return most
        # A prompt may have been slow for other reasons, the weights coming from disk for one.
        return min((seconds - self._seconds) / (rows - self._rows), most)


def _split(rows: int, seconds: float) -> tuple[float, float]:
    """A line through one known point."""
    return (1 - SLOPE) * seconds, SLOPE * seconds / rows


PATIENCE = 0.1
"""The part of the time of the others' steps that they wait for one that seems too slow; half as much the next time."""


class Replica(SingleEngine):
    """One copy of the model. `name`: what messages call it.

    `prompt_rows`, `prompt_s`: what it decoded of the last prompt, in seconds. `work`: its parts of this answer.
    """

    def __init__(self, engine: Engine, name: str = "") -> None:
        super().__init__(engine)
        self.name = name
        self.speed = Speed()
        self.prompt_rows, self.prompt_s = 0, 0.0
        self.answer_work = ReplicaWork()
        self._sat_out_s, self._patience = 0.0, PATIENCE

    def load(self, tokens: Sequence[int], like: Speed) -> Load:
        """What it can take of the next step. `like`: speaks for it while it has decoded nothing."""
        fixed, row = self.speed.line(like)
        return Load(fixed, row, self.behind(tokens), self.cache.room)

    def learn(self) -> None:
        """Record the time of its last part."""
        seconds = self.decode_s + self.choose_s
        self._sat_out_s, self._patience = 0.0, PATIENCE
        self.speed.saw(self.rows, seconds)
        self.answer_work.parts += 1
        self.answer_work.rows += self.rows
        self.answer_work.seconds += seconds

    def prefill(self, tokens: Sequence[int], *, everybody: bool = True) -> float:
        rows, seconds = len(tokens) - self.cache.past, super().prefill(tokens)
        self.prompt_rows += rows
        self.prompt_s += seconds
        self.speed.hint(rows, seconds)
        return seconds

    def prefill_until(self, tokens: Sequence[int], over: Event) -> bool:
        """Prefill piece by piece until another replica has all or was interrupted, which sets `over`; True.

        Ctrl-C is heard between pieces only. A replica that has but a piece left decodes that too.
        """
        try:
            while self.cache.past < len(tokens):
                self.prefill(tokens[: self.cache.past + PREFILL_ROWS])
                if over.is_set() and self.cache.past + PREFILL_ROWS < len(tokens):
                    break
        finally:
            over.set()
        return True

    def catch_up(self, tokens: Sequence[int]) -> bool:
        """Decode what its cache lacks of these tokens, and record how fast it is; True."""
        rows = len(tokens) - self.cache.past
        self.speed.saw(rows, self.prefill(tokens))
        self._sat_out_s = 0.0
        return True

    def rows_to_catch_up(self, behind: int, step_s: float) -> int:
        """How many of `behind` tokens this replica can catch up on during a step of `step_s` seconds.

        One that seems too slow for any is waited for all the same when that is little beside the steps that it has sat
        out, because it may have been held up only.
        """
        self._sat_out_s += step_s
        if not self.speed.known:
            return behind
        fixed, row = self.speed.line()
        within = int((step_s - fixed) / row) if row > 0 else behind if fixed <= step_s else 0
        if within < 1 and fixed + row <= self._patience * self._sat_out_s:
            within, self._patience = 1, self._patience / 2
        return min(max(within, 0), behind)

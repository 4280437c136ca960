"""One replica of a group: its cache, what it has decoded, and its measured speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from threading import Event
from time import perf_counter

from lacli.batch import Batch
from lacli.cache import PREFILL_ROWS, Cache
from lacli.engine import Engine
from lacli.replicas.partition import Hand
from lacli.tree import Branches, Tree

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


PATIENCE = 0.1
"""The part of the time of the others' steps that they wait for one that seems too slow; half as much the next time."""


@dataclass
class Work:
    """What a replica has decoded of an answer that several began: parts, their rows, seconds of all."""

    parts: int = 0
    rows: int = 0
    seconds: float = 0.0


class Replica:
    """One copy of the model. name: what messages call it.

    choices: the most probable token after each output row of its last part. decode_s, choose_s: seconds that decoding
    it and reading them took. prompt_rows, prompt_s: what it decoded of the last prompt, in seconds. work: of its parts
    of this answer.
    """

    def __init__(self, engine: Engine, name: str = "") -> None:
        self.engine = engine
        self.name = name
        self.cache = Cache(engine)
        self.speed = Speed()
        self.choices: list[int] = []
        self.decode_s = self.choose_s = self.prompt_s = 0.0
        self.prompt_rows = 0
        self.work = Work()
        self._batch = Batch(engine.batch_rows)
        self._again = 0
        self._sat_out_s, self._patience = 0.0, PATIENCE

    @property
    def rows(self) -> int:
        """Rows of its last part, with what it lacked before."""
        return len(self._batch)

    def behind(self, text: Sequence[int]) -> int:
        """Tokens before the input that its cache lacks."""
        return len(text) - 1 - self.cache.past

    def room(self, text: Sequence[int]) -> int:
        """Rows that its next part may have."""
        return self.cache.room - self.behind(text)

    def hand(self, text: Sequence[int], like: Speed) -> Hand:
        """What it can take of the next step. like: speaks for it as long as it has decoded nothing."""
        fixed, row = self.speed.line(like)
        return Hand(fixed, row, self.behind(text), self.cache.room)

    def prepare(self, text: Sequence[int], branches: Branches) -> None:
        """Make ready to decode what it lacks of a text and its part of the step."""
        again = text[self.cache.past : -1]
        self._again = len(again)
        self.cache.share(branches)
        self._batch.set_tree(branches, self.cache.past, again)

    def decode(self) -> bool:
        """Decode what was prepared, and read its choices; False, with nothing changed, for want of cells."""
        begin = perf_counter()
        if not self.engine.decode(self._batch):
            return False
        decoded = perf_counter()
        self.choices = self.engine.greedy().tolist()
        self.choose_s = perf_counter() - decoded
        self.decode_s = decoded - begin
        return True

    def learn(self) -> None:
        """Take its last part for how fast it is."""
        seconds = self.decode_s + self.choose_s
        self._sat_out_s, self._patience = 0.0, PATIENCE
        self.speed.saw(self.rows, seconds)
        self.work.parts += 1
        self.work.rows += self.rows
        self.work.seconds += seconds

    def keep(self, branches: Branches, path: Sequence[int], *, ordered: bool) -> None:
        """Hold on to what it lacked, the input and the rows of an accepted path; the rest of its part goes.

        ordered: cells must lie in the order of the text, which those behind other guesses do not.
        """
        if ordered:
            path = [row for place, row in enumerate(path, start=1) if row == place]
        self.cache.keep(branches, path, self._again)

    def prefill(self, tokens: Sequence[int]) -> None:
        """Decode what its cache lacks of these tokens, in as many calls as that takes."""
        rows, begin = len(tokens) - self.cache.past, perf_counter()
        self.cache.prefill(tokens[self.cache.past :])
        seconds = perf_counter() - begin
        self.prompt_rows += rows
        self.prompt_s += seconds
        self.speed.hint(rows, seconds)

    def prefill_until(self, tokens: Sequence[int], over: Event) -> bool:
        """The same piece by piece, until somebody has all or was interrupted, as `over` says; what is left waits; True.

        Ctrl-C is heard between pieces only. One that has but a piece left decodes that too.
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
        """Decode what its cache lacks of these tokens, and learn from it how fast it is; True."""
        rows, begin = len(tokens) - self.cache.past, perf_counter()
        self.prefill(tokens)
        self.speed.saw(rows, perf_counter() - begin)
        self._sat_out_s = 0.0
        return True

    def rows_to_catch_up(self, behind: int, step_s: float) -> int:
        """How many of so many tokens that it lacks it can decode beside a step of the others that takes so long.

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

    def cut(self, length: int) -> None:
        """Cut the cache back; a model that cannot forget a part forgets all, and all is decoded again."""
        if not self.cache.truncate(length):
            self.cache.clear()

    def time_plain_step(self, text: Sequence[int], repeats: int, min_outputs: int) -> float:
        """Median seconds of a one-row step at the end of a text, whose last tokens are decoded again, one by one.

        0 where none can be timed. After an interrupt its cache lacks some tokens.
        """
        start = max(self.cache.past - repeats, 0)
        if not self.cache.truncate(start):
            return 0.0
        times = []
        try:
            for token in text[start:-1]:
                begin = perf_counter()
                tree = Tree(token)
                if min_outputs > 1:
                    tree.pad()
                self.engine.decode(self._batch.set_tree(tree, self.cache.past))
                self.engine.greedy()
                self.cache.keep(tree, ())
                times.append(perf_counter() - begin)
        finally:
            self.cut(self.cache.past)
        return median(times) if times else 0.0

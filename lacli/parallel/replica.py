"""One replica: an engine, what its cache holds of the text, and how fast it is.

Each replica holds the text up to a place of its own. What it lacks was accepted in branches that others decoded, and
stands in front of the next part that it decodes itself: catching up takes no call of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from threading import Event
from time import perf_counter

from lacli.batch import Batch
from lacli.cache import PREFILL_ROWS, Cache
from lacli.engine import Engine
from lacli.parallel.dealing import Hand
from lacli.parallel.speed import Speed
from lacli.tree import Branches, Tree

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

    def time_plain_step(self, text: Sequence[int], repeats: int, least_outputs: int) -> float:
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
                if least_outputs > 1:
                    tree.pad()
                self.engine.decode(self._batch.set_tree(tree, self.cache.past))
                self.engine.greedy()
                self.cache.keep(tree, ())
                times.append(perf_counter() - begin)
        finally:
            self.cut(self.cache.past)
        return median(times) if times else 0.0

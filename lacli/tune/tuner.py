"""One search from its first round to its last, with bars on the screen.

Gets contenders from whoever can open them, so that no model is known here; what came of it is `tuning.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from time import perf_counter

from lacli.amounts import counted
from lacli.bench.plan import Speed, by_class
from lacli.bench.rounds import LEAST_ROOM, Asker, Contender, Exchange
from lacli.bench.tasks import Task
from lacli.bench.warm_up import TOKENS, speed_of
from lacli.errors import LacliError
from lacli.settings import DecodeSettings
from lacli.tune.candidates import Candidate
from lacli.tune.confirm import LastRound
from lacli.tune.field import Field
from lacli.tune.search import Entrant, Search
from lacli.ui import Screen

SEARCH_SHARE = 0.5
"""The part of the time that the search gets; the rest is the last round's."""

PLAIN, AUTO = DecodeSettings(mode="plain"), DecodeSettings(mode="auto")


@dataclass
class Tuner:
    """A search and what it has done so far; `run` it.

    field, quick: contenders for the last round and for the search, where a prompt may be read once for several. found:
    the candidates, the most promising first. back: guesses that the model can take back. end: when the clock says that
    it is over. limit: tokens of an answer, None: as time allows. interrupted: Ctrl-C ended it.
    """

    field: Field
    quick: Field
    asker: Asker
    tasks: Sequence[Task]
    found: Sequence[Candidate]
    end: float
    screen: Screen
    back: int = -1
    limit: int | None = None
    clock: Callable[[], float] = perf_counter
    search: Search | None = None
    last: LastRound | None = None
    interrupted: bool = False

    def run(self) -> None:
        """Search, and measure the winner anew; Ctrl-C leaves what was done."""
        try:
            winner = self._searched() if self.found else None
            self._confirm(winner)
        except KeyboardInterrupt:
            self.interrupted = True

    def _searched(self) -> DecodeSettings | None:
        """The setting that did best, if any has answered."""
        settings = [PLAIN, *(each.settings for each in self.found)]
        with self.quick(settings) as (plain, *others):
            pace = self._warm(plain, others)
            entrants = [Entrant(one, each.expected) for one, each in zip(others, self.found, strict=True)]
            prompts = counted(len(self.tasks), "prompt")
            self.screen.note(f"comparing {counted(len(entrants), 'setting')} with plain decoding, on up to {prompts}")
            now = self.clock()
            end = now + SEARCH_SHARE * (self.end - now)
            self.search = Search(plain, entrants, self.tasks, self.asker, pace, end, limit=self.limit, clock=self.clock)
            self._play(self.search)
        best = self.search.best
        return best.contender.point.settings if best and best.contender.point else None

    def _play(self, search: Search) -> None:
        while current := search.next_round():
            entering = len(current.entrants)
            if current.number == 1 and entering < len(search.entrants):
                self.screen.note(
                    f"only {entering} of {len(search.entrants)} settings can be tried in this time, the most promising "
                    "ones; a larger --seconds tries more"
                )
            title = f"round {current.number} of {current.of}, {counted(entering, 'setting')}"
            with self.screen.progress(current.answers, title) as advance:
                for _ in search.play(current):
                    advance()

    def _confirm(self, winner: DecodeSettings | None) -> None:
        """The last round, in contexts that are made for nothing else."""
        auto = replace(AUTO, back=self.back)
        with self.field([PLAIN, auto, *([winner] if winner else [])]) as competing:
            speeds = [speed_of(each, self.exchange) for each in competing]
            self.last = LastRound(
                competing, self.tasks, self.asker, speeds, self.end, limit=self.limit, clock=self.clock
            )
            with self.screen.progress(self.last.rounds.most, "last round") as advance:
                for _ in self.last:
                    advance()

    def _warm(self, plain: Contender, others: Sequence[Contender]) -> Speed:
        """Plain decoding's pace. Of every mode one answers a little, for what is loaded and made late."""
        read = [each.answer(replace(self.exchange, limit=1)) for each in {each.mode: each for each in others}.values()]
        # Plain's own second reading may find the prompt read.
        prompt_s = min(trial.prompt_s for trial in read) / len(self.exchange.prompt)
        return replace(speed_of(plain, self.exchange), prompt_s=prompt_s)

    @cached_property
    def exchange(self) -> Exchange:
        """A short question, to warm up with."""
        shortest = min(self.tasks, key=lambda task: len(self.asker.prompt(task, [])))
        found = self.asker.exchange(replace(shortest, limit=self.limit or TOKENS), [])
        assert found, "the tasks fit into the context"
        return found


def fitting(tasks: Sequence[Task], asker: Asker, screen: Screen) -> list[Task]:
    """The tasks that have room in the context, class by class in turns. Raises LacliError where none has."""
    sizes = {task: len(asker.prompt(task, [])) for task in tasks}
    short = [task for task in tasks if asker.cells - sizes[task] >= LEAST_ROOM]
    if not short:
        raise LacliError("no prompt fits into the context", f"-c {min(sizes.values()) + 512} for example")
    if len(short) < len(tasks):
        count = counted(len(tasks) - len(short), "prompt")
        screen.note(f"left out: {count} of more tokens than the context of {asker.cells} holds")
    turns = zip_longest(*by_class(short).values())
    return [task for turn in turns for task in turn if task]

"""A group of replicas that decode one text together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from math import inf
from threading import Event
from time import perf_counter
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from lacli.engine import Engine, Floats, Successors
from lacli.errors import BatchRefused, LacliError
from lacli.replicas.partition import (
    Hand,
    Part,
    deal,
    paths_of,
)
from lacli.replicas.replica import Replica, Work
from lacli.tree import ROOT, Branches, Tree

Call = tuple[Replica, Callable[[], bool]]
"""A replica and what it shall do."""

Result = TypeVar("Result")


@runtime_checkable
class Apart(Protocol):
    """An engine in another process, which can be ended in the middle of a call."""

    def abandon(self) -> None:
        """End the process; whoever waits for its answer hears that it is gone."""


class Crew:
    """Replicas by what messages call them; the first one is run by the caller's thread.

    members: those that are left, at least one. lost: why others were dropped, by their names. work: what each of those
    that began an answer has decoded of it.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self.members = [Replica(engine, name) for name, engine in engines.items()]
        self.lost: dict[str, str] = {}
        self._everybody = [*self.members]
        self.begin()
        # llama.cpp's own threads belong to the one that calls it, so each replica keeps to one.
        self._threads = {replica: ThreadPoolExecutor(1) for replica in self.members[1:]}

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self.members))

    @property
    def leader(self) -> Replica:
        """The one that holds the most of the text."""
        if len(self.members) == 1:
            return self.members[0]
        return max(self.members, key=lambda replica: replica.cache.past)

    @property
    def cache_s(self) -> float:
        """Seconds of sequence calls so far, also of those that were dropped."""
        return sum(replica.cache.seconds for replica in self._everybody)

    def begin(self) -> None:
        """Count work anew, of those that are left: another answer begins."""
        for replica in self.members:
            replica.work = Work()
        self.work = {replica.name: replica.work for replica in self.members}

    def is_run_here(self, replica: Replica) -> bool:
        """Whether it is the caller's own thread that runs it."""
        return replica not in self._threads

    def run(self, calls: Iterable[Call]) -> dict[Replica, bool | None]:
        """Make these calls at the same time; None for a replica that was dropped in its own."""
        futures: dict[Replica, Future[bool]] = {}
        own: list[Call] = []
        try:
            for replica, call in calls:
                if self.is_run_here(replica):
                    own.append((replica, call))
                else:
                    futures[replica] = self._threads[replica].submit(call)
            done = {replica: self.guarded(replica, call) for replica, call in own}
        finally:
            _wait(futures.values(), self._give_up)
        return done | {replica: self.guarded(replica, future.result) for replica, future in futures.items()}

    def each(self, call: Callable[[Replica], object]) -> None:
        """Make a call for one after another."""
        for replica in self:
            self.guarded(replica, partial(call, replica))

    def guarded(self, replica: Replica, call: Callable[[], Result]) -> Result | None:
        """The result of a call; a replica that fails is dropped, unless it is the last one, whose error goes on."""
        try:
            return call()
        except BatchRefused:
            raise
        except LacliError as error:
            if len(self.members) == 1:
                raise
            self.members.remove(replica)
            self.lost[replica.name] = str(error)
            return None

    def wait(self) -> None:
        """Until nobody decodes any more."""
        _wait([thread.submit(bool) for thread in self._threads.values()], self._give_up)

    def _give_up(self) -> None:
        """End what can be ended: whoever decodes in another process hears that it is gone."""
        for replica in self.members:
            if isinstance(replica.engine, Apart):
                replica.engine.abandon()


def _wait(futures: Iterable[Future[bool]], give_up: Callable[[], None]) -> None:
    """Wait until all are done, an interrupt too: nobody may touch a cache in which something is being decoded.

    give_up: what a second interrupt means, where somebody hangs.
    """
    interrupted: list[KeyboardInterrupt] = []
    for future in futures:
        while not future.done():
            try:
                future.exception()
            except KeyboardInterrupt as interrupt:
                interrupted.append(interrupt)
                if len(interrupted) > 1:
                    give_up()
    if interrupted:
        raise interrupted[-1]


FEWEST = 2
"""Sequences of a step that cannot be taken apart: the text's own and one branch's."""

LITTLE = 16
"""Tokens that one may lack to be tried with a step that could be anyone's."""

CLEARLY = 0.8
"""What another replica takes at most of the time of the one that holds the text, to be given a step in its place."""


class Share(NamedTuple):
    """What a replica decodes of a step. nodes: which of the tree's each row is."""

    replica: Replica
    branches: Branches
    nodes: Sequence[int]


class Replicas:
    """Replicas that decode a text together. crew: those that are left, and why others are not."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        """engines: by what messages call their replicas."""
        self.crew = Crew(engines)
        self._shares: list[Share] = []
        self._took = 0.0

    def __len__(self) -> int:
        return len(self.crew)

    @property
    def lost(self) -> Mapping[str, str]:
        """Why replicas were dropped, by their names."""
        return self.crew.lost

    @property
    def leader(self) -> Replica:
        """The one that holds the most of the text."""
        return self.crew.leader

    @property
    def past(self) -> int:
        """Tokens of the text that at least one holds."""
        return self.leader.cache.past

    @property
    def cache_s(self) -> float:
        """Seconds of sequence calls so far."""
        return self.crew.cache_s

    @property
    def rows(self) -> int:
        """Rows of the last step; those that several have decoded count for each."""
        return sum(share.replica.rows for share in self._shares)

    @property
    def times(self) -> tuple[float, float]:
        """Seconds of decoding and of choosing in the last step; of several replicas as long as one of them did so."""
        choose_s = max(share.replica.choose_s for share in self._shares)
        if len(self.crew) == 1:
            return self._shares[0].replica.decode_s, choose_s
        return self._took - choose_s, choose_s

    @property
    def cells(self) -> int:
        """Tokens that all of them can hold."""
        return min(replica.engine.cells for replica in self.crew.members)

    @property
    def work(self) -> Mapping[str, Work]:
        """What each has decoded of this answer, by their names; also those that were dropped in it."""
        return self.crew.work

    def room(self, text: Sequence[int]) -> int:
        """Rows that the next step's tree may have; where nobody holds enough of the text, once one has caught up."""
        leader, most = self.leader, self.cells - (len(text) - 1)
        room = leader.room(text)
        return min(room if room > 0 else leader.engine.batch_rows, most)

    def prefill(self, tokens: Sequence[int], *, everybody: bool) -> float:
        """Decode the beginning of a text; the seconds that it would have taken if all had shared its rows.

        everybody: in all replicas, since all will be needed for what comes.
        """
        for replica in self.crew:
            replica.prompt_rows, replica.prompt_s = 0, 0.0
        rows = len(tokens) - self.past
        while self.past < len(tokens):
            wanted = [*self.crew] if everybody else [self.leader]
            over = Event()
            self.crew.run([(each, partial(each.prefill_until, tokens, over)) for each in wanted])
        return shared_s(rows, ((each.prompt_rows, each.prompt_s) for each in self.crew))

    def decode(self, text: Sequence[int], tree: Tree) -> bool:
        """Decode a step; False, with nothing changed, when it finds no cells. Raises what the last replica raises."""
        refused = False
        while self._has_leader_for(text, tree):
            if len(self.crew) == 1:
                only = self.crew.members[0]
                self._shares = [Share(only, tree, range(len(tree.tokens)))]
                only.prepare(text, tree)
                decoded = only.decode()
                if decoded and len(self.work) > 1:
                    only.learn()
                return decoded
            before = len(self.crew)
            if len(tree.sequences[ROOT]) > FEWEST and not refused:
                self._shares = self._deal(text, tree)
                calls: Iterator[Call] = chain(self._catching_up(text), self._parts(text))
            else:
                # Where somebody has found no cells the leader tries alone, who lacks the least.
                chosen = self.leader if refused else self._soonest(text, tree)
                self._shares = [Share(chosen, tree, range(len(tree)))]
                calls = self._parts(text)
            begin, cache_before = perf_counter(), self.cache_s
            done = self.crew.run(calls)
            # Sequence calls are counted apart, and some are made while others decode already.
            self._took = perf_counter() - begin - (self.cache_s - cache_before)
            fits = [done.get(share.replica) for share in self._shares]
            if all(fits):
                for replica, *_ in self._shares:
                    replica.learn()
                return True
            # Of a step that failed somewhere nobody keeps anything.
            self.crew.each(lambda replica: replica.cut(replica.cache.past))
            if len(self.crew) == before:
                if refused:
                    break
                refused = True
        return False

    def choices(self) -> dict[int, int]:
        """The most probable token after each output node of the last step; of several replicas the first one's word."""
        merged: dict[int, int] = {}
        for replica, branches, nodes in reversed(self._shares):
            outputs = (node for node, wanted in zip(nodes, branches.verified, strict=True) if wanted)
            merged.update(zip(outputs, replica.choices, strict=True))
        return merged

    def logits(self) -> Callable[[int], Floats]:
        """What gives the logits, (vocabulary,), after an output node of the last step, or raises ReplicaLost."""
        places = {node: (replica, row) for replica, node, row in self._outputs()}
        return lambda node: places[node][0].engine.row_logits(places[node][1])

    def successors(self, most: int) -> Successors:
        """The most probable next tokens of each output node of the last step, in the tree's order; or ReplicaLost."""
        if len(self._shares) == 1:
            return self._shares[0].replica.engine.successors(most)
        found = {replica: replica.engine.successors(most) for replica, *_ in self._shares}
        width = min(each.tokens.shape[1] for each in found.values())
        places = sorted({node: (replica, row) for replica, node, row in self._outputs()}.items())
        return Successors(
            np.array([found[replica].tokens[row, :width] for _, (replica, row) in places]),
            np.array([found[replica].logits[row, :width] for _, (replica, row) in places]),
        )

    def keep(self, path: Sequence[int], *, ordered: bool) -> None:
        """Hold on to the input and an accepted path of the last step: each replica as far as it has decoded it."""
        for replica, branches, nodes in self._shares:
            rows = {node: row for row, node in enumerate(nodes)}
            decoded = [rows[node] for node in path if node in rows]
            self.crew.guarded(replica, partial(replica.keep, branches, decoded, ordered=ordered))

    def cut(self, length: int) -> None:
        """Cut the caches back to the first `length` tokens."""
        self.crew.each(lambda replica: replica.cut(length))

    def clear(self) -> None:
        """Forget everything."""
        self.crew.each(lambda replica: replica.cache.clear())

    def unshare(self) -> None:
        """After an interrupt, when sequences may own more than is known, and somebody may decode still."""
        self.crew.wait()
        self.crew.each(lambda replica: replica.cache.unshare())

    def shift(self, text: Sequence[int], keep: int, count: int) -> None:
        """Drop `count` tokens of a text after the first `keep`; those behind them move up (`Cache.shift`)."""
        past = text[: self.past]

        def shift(replica: Replica) -> None:
            replica.prefill(past)
            replica.cache.shift(keep, count)

        self.crew.each(shift)

    def grow(self, past: int) -> None:
        """Hold on to the tokens up to `past`, which are decoded."""
        self.crew.each(lambda replica: replica.cache.grow(past))

    def time_plain_step(self, text: Sequence[int], repeats: int, min_outputs: int) -> float:
        """Median seconds of a one-row step, as the one that holds the most times it."""
        while True:
            leader = self.leader
            seconds = self.crew.guarded(leader, partial(leader.time_plain_step, text, repeats, min_outputs))
            if seconds is not None:
                return seconds

    def _soonest(self, text: Sequence[int], tree: Tree) -> Replica:
        """Who gets a whole step: the one that has had such steps so far, or another that is clearly faster.

        One of which nothing is known is tried once, where it lacks next to nothing of the text.
        """
        seconds: dict[Replica, float] = {}
        for replica, hand in zip(self.crew.members, self._hands(text), strict=True):
            if not replica.speed.known and hand.behind <= LITTLE and hand.seconds(len(tree) - 1) < inf:
                return replica
            seconds[replica] = hand.seconds_from_now_on(len(tree) - 1)
        leader, soonest = self.leader, min(seconds, key=seconds.__getitem__)
        return soonest if seconds[soonest] < CLEARLY * seconds[leader] else leader

    def _hands(self, text: Sequence[int]) -> list[Hand]:
        # One that has decoded something speaks for those that have not yet.
        known = next((replica.speed for replica in self.crew.members if replica.speed.known), self.leader.speed)
        return [replica.hand(text, known) for replica in self.crew.members]

    def _deal(self, text: Sequence[int], tree: Tree) -> list[Share]:
        """Who decodes which branches of a step."""
        paths = paths_of(tree)
        dealt = deal(paths, self._hands(text))
        parts = [
            (replica, Part(tree, branches, paths))
            for replica, branches in zip(self.crew.members, dealt, strict=True)
            if branches
        ]
        return [Share(replica, part, part.nodes) for replica, part in parts]

    def _has_leader_for(self, text: Sequence[int], tree: Tree) -> bool:
        """See to it that one could take a whole step; False where it is too large for all that are left."""
        if self.leader.room(text) < len(tree):
            # Those that held more of the text are gone.
            self.prefill(text[:-1], everybody=False)
        return self.leader.room(text) >= len(tree)

    def _catching_up(self, text: Sequence[int]) -> Iterator[Call]:
        """What those do that have no part of a step because they lack too much of the text.

        Each catches up as far as the step's own time allows, and shows by that how fast it is now. One that is too slow
        for that is waited for once in a while.
        """
        busy = [share.replica for share in self._shares]
        step_s = max(share.replica.speed.seconds(len(share.nodes)) for share in self._shares)
        for replica in self.crew:
            if replica not in busy and (behind := replica.behind(text)):
                rows = replica.rows_to_catch_up(behind, step_s)
                if rows:
                    yield replica, partial(replica.catch_up, text[: replica.cache.past + rows])

    def _outputs(self) -> Iterator[tuple[Replica, int, int]]:
        """Who can say what follows which node in which of its output rows; who is asked comes last."""
        for replica, branches, nodes in reversed(self._shares):
            outputs = [node for node, wanted in zip(nodes, branches.verified, strict=True) if wanted]
            for row, node in enumerate(outputs):
                yield replica, node, row

    def _parts(self, text: Sequence[int]) -> Iterator[Call]:
        """The parts of a step, each made ready when the one before has begun; the caller's own comes last."""
        for replica, branches, _ in sorted(self._shares, key=lambda share: self.crew.is_run_here(share.replica)):
            self.crew.guarded(replica, partial(replica.prepare, text, branches))
            if replica in self.crew.members:
                yield replica, replica.decode


def shared_s(rows: int, parts: Iterable[tuple[int, float]]) -> float:
    """Seconds of so many rows for all together, of whom each has decoded so many in so long."""
    pace = sum(done / seconds for done, seconds in parts if seconds > 0)
    return rows / pace if pace else 0.0

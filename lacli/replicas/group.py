"""A group of replicas: divides each step among them, merges what they decode, and drops a replica that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from math import inf
from threading import Event
from time import perf_counter
from typing import NamedTuple, TypeVar

import numpy as np

from lacli.engine import Engine, EngineGroup, Floats, Read, Successors, unread
from lacli.errors import BatchRefused, LacliError
from lacli.replicas.partition import Load, Part, partition, paths_of
from lacli.replicas.replica import Replica, shared_s
from lacli.stats import ReplicaWork
from lacli.tree import ROOT, Branches, Tree

Call = tuple[Replica, Callable[[], bool]]
"""A replica and the function that runs on its thread."""

Result = TypeVar("Result")

WHOLE_SEQUENCES = 2
"""Sequences of a step that cannot be divided: the text's own and one branch's."""

TRIAL_BEHIND = 16
"""Tokens that a replica of unknown speed may lack to be tried with a whole step: about a step's worth."""

CLEARLY_FASTER = 0.8
"""The part of the leader's time below which another replica gets whole steps: less is within the noise of steps."""

AGAIN_S = 0.05
"""Seconds after which replicas are interrupted once more: one may have been between two pieces of a prompt."""


class Share(NamedTuple):
    """What a replica decodes of a step. `nodes`: the tree's node of each row."""

    replica: Replica
    branches: Branches
    nodes: Sequence[int]

    @property
    def outputs(self) -> list[int]:
        """The node of each output row."""
        return [node for node, wanted in zip(self.nodes, self.branches.verified, strict=True) if wanted]


class ReplicaGroup(EngineGroup):
    """The replicas of one text; the first one decodes in the caller's thread, each other one in a thread of its own.

    `replicas`: those still in use, at least one.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self.replicas = [Replica(engine, name) for name, engine in engines.items()]
        self._all = [*self.replicas]
        self.lost: dict[str, str] = {}
        # llama.cpp's own threads belong to the one that calls it, so each replica keeps to one.
        self._threads = {replica: ThreadPoolExecutor(1) for replica in self.replicas[1:]}
        self._shares: list[Share] = []
        self._took = 0.0
        self.begin()

    @property
    def engine(self) -> Engine:
        return self.leader.engine

    @property
    def past(self) -> int:
        return self.leader.cache.past

    @property
    def leader(self) -> Replica:
        """The replica that holds the most of the text."""
        if len(self.replicas) == 1:
            return self.replicas[0]
        return max(self.replicas, key=lambda replica: replica.cache.past)

    @property
    def cells(self) -> int:
        return min(replica.engine.cells for replica in self.replicas)

    @property
    def cache_s(self) -> float:
        # Replicas that were dropped count too: the sum never falls.
        return sum(replica.cache.seconds for replica in self._all)

    @property
    def rows(self) -> int:
        return sum(share.replica.rows for share in self._shares)

    @property
    def times(self) -> tuple[float, float]:
        choose_s = max(share.replica.times[1] for share in self._shares)
        if len(self.replicas) == 1:
            return self._shares[0].replica.times[0], choose_s
        return self._took - choose_s, choose_s

    def begin(self) -> None:
        for replica in self.replicas:
            replica.answer_work = ReplicaWork()
        self.work = {replica.name: replica.answer_work for replica in self.replicas}

    def room(self, tokens: Sequence[int]) -> int:
        return min(self.leader.room(tokens), self.cells - (len(tokens) - 1))

    def prefill(self, tokens: Sequence[int], read: Read = unread, *, all_replicas: bool = True) -> float:
        for replica in self.replicas:
            replica.prompt_rows, replica.prompt_s = 0, 0.0
        past = self.past
        while self.past < len(tokens):
            wanted = [*self.replicas] if all_replicas else [self.leader]
            over = Event()
            calls = [partial(each.prefill_until, tokens, over, lambda: read(self.past - past)) for each in wanted]
            self._run(zip(wanted, calls, strict=True))
        return shared_s(len(tokens) - past, ((each.prompt_rows, each.prompt_s) for each in self.replicas))

    def decode(self, tokens: Sequence[int], tree: Tree) -> bool:
        """Decode a step; False, with nothing changed, if it finds no cells. Raises the error of the last replica."""
        refused = False
        while self._has_leader_for(tokens, tree):
            if len(self.replicas) == 1:
                return self._decode_alone(tokens, tree)
            before = len(self.replicas)
            if self._decode_together(tokens, tree, whole=refused):
                return True
            # A step that failed on one replica is rolled back on all.
            self._each(lambda replica: replica.cut(replica.cache.past))
            if len(self.replicas) == before:
                if refused:
                    break
                refused = True
        return False

    def choices(self) -> Mapping[int, int]:
        """The most probable token after each output node of the last step; of several replicas' choices the first's."""
        merged: dict[int, int] = {}
        for share in reversed(self._shares):
            merged.update(zip(share.outputs, share.replica.output_choices, strict=True))
        return merged

    def logits(self) -> Callable[[int], Floats]:
        """A function that returns an output node's logits, (vocabulary,), or raises ReplicaLost."""
        places = self._places()
        return lambda node: places[node][0].engine.row_logits(places[node][1])

    def successors(self, count: int) -> Successors:
        if len(self._shares) == 1:
            return self._shares[0].replica.engine.successors(count)
        found = {share.replica: share.replica.engine.successors(count) for share in self._shares}
        width = min(each.tokens.shape[1] for each in found.values())
        places = [place for _, place in sorted(self._places().items())]
        return Successors(
            np.array([found[replica].tokens[row, :width] for replica, row in places]),
            np.array([found[replica].logits[row, :width] for replica, row in places]),
        )

    def commit(self, nodes: Sequence[int], *, ordered: bool) -> None:
        """Keep the input and the accepted `nodes` of the last step in the caches of the replicas that decoded them."""
        for share in self._shares:
            rows = {node: row for row, node in enumerate(share.nodes)}
            decoded = [rows[node] for node in nodes if node in rows]
            self._guarded(share.replica, partial(share.replica.commit, decoded, ordered=ordered))

    def cut(self, length: int) -> None:
        self._each(lambda replica: replica.cut(length))

    def clear(self) -> None:
        self._each(lambda replica: replica.clear())

    def unshare(self) -> None:
        # After an interrupt a replica may still be decoding.
        _wait([thread.submit(bool) for thread in self._threads.values()], self._interrupt, pressed=True)
        self._each(lambda replica: replica.unshare())

    def _has_leader_for(self, tokens: Sequence[int], tree: Tree) -> bool:
        """Make sure that the leader could take the whole step; False if the tree is too large for every replica."""
        if self.leader.rows_beside(tokens) < len(tree):
            # The replicas that held more of the text were dropped.
            self.prefill(tokens[:-1], all_replicas=False)
        return self.leader.rows_beside(tokens) >= len(tree)

    def _decode_alone(self, tokens: Sequence[int], tree: Tree) -> bool:
        only = self.replicas[0]
        self._shares = [Share(only, tree, range(len(tree)))]
        only.prepare(tokens, tree)
        decoded = only.run()
        if decoded and len(self.work) > 1:
            only.learn()
        return decoded

    def _decode_together(self, tokens: Sequence[int], tree: Tree, *, whole: bool) -> bool:
        """Decode a step in parts, or in one piece if it cannot be divided; False if any part failed.

        `whole`: give the whole step to the leader, because a replica found no cells for its part.
        """
        calls: Iterator[Call] = self._parts(tokens)
        if whole or len(tree.sequences[ROOT]) <= WHOLE_SEQUENCES:
            chosen = self.leader if whole else self._soonest(tokens, tree)
            self._shares = [Share(chosen, tree, range(len(tree)))]
        else:
            self._shares = self._partitioned(tokens, tree)
            calls = chain(self._catching_up(tokens), calls)
        begin, cache_before = perf_counter(), self.cache_s
        done = self._run(calls)
        # The cache's sequence calls are timed apart; some are made while other replicas already decode.
        self._took = perf_counter() - begin - (self.cache_s - cache_before)
        if not all(done.get(share.replica) for share in self._shares):
            return False
        for share in self._shares:
            share.replica.learn()
        return True

    def _soonest(self, tokens: Sequence[int], tree: Tree) -> Replica:
        """The replica for a whole step: the leader, or another that is clearly faster.

        A replica of unknown speed is tried once, if it lacks at most `TRIAL_BEHIND` tokens.
        """
        seconds: dict[Replica, float] = {}
        for replica, load in zip(self.replicas, self._loads(tokens), strict=True):
            if not replica.speed.known and load.behind <= TRIAL_BEHIND and load.seconds(len(tree) - 1) < inf:
                return replica
            seconds[replica] = load.seconds_from_now_on(len(tree) - 1)
        leader, soonest = self.leader, min(seconds, key=seconds.__getitem__)
        return soonest if seconds[soonest] < CLEARLY_FASTER * seconds[leader] else leader

    def _partitioned(self, tokens: Sequence[int], tree: Tree) -> list[Share]:
        paths = paths_of(tree)
        branches = partition(paths, self._loads(tokens))
        parts = ((each, Part(tree, own, paths)) for each, own in zip(self.replicas, branches, strict=True) if own)
        return [Share(replica, part, part.nodes) for replica, part in parts]

    def _loads(self, tokens: Sequence[int]) -> list[Load]:
        # A replica that has decoded something speaks for those that have not yet.
        known = next((replica.speed for replica in self.replicas if replica.speed.known), self.leader.speed)
        return [replica.load(tokens, known) for replica in self.replicas]

    def _catching_up(self, tokens: Sequence[int]) -> Iterator[Call]:
        """Catch-up calls for the replicas that have no part of the step because they lack too much of the text.

        Each decodes as much of it as the step's own time allows, which also measures its speed. A replica too slow even
        for one token is waited for now and then.
        """
        busy = [share.replica for share in self._shares]
        step_s = max(share.replica.speed.seconds(len(share.nodes)) for share in self._shares)
        for replica in [*self.replicas]:
            if replica not in busy and (behind := replica.behind(tokens)):
                rows = replica.rows_to_catch_up(behind, step_s)
                if rows:
                    yield replica, partial(replica.catch_up, tokens[: replica.cache.past + rows])

    def _parts(self, tokens: Sequence[int]) -> Iterator[Call]:
        """The parts of a step, each prepared once the part before has begun; the caller's own comes last."""
        for replica, branches, _ in sorted(self._shares, key=lambda share: share.replica not in self._threads):
            self._guarded(replica, partial(replica.prepare, tokens, branches))
            if replica in self.replicas:
                yield replica, replica.run

    def _places(self) -> dict[int, tuple[Replica, int]]:
        """The replica and its output row for each output node."""
        return {
            node: (share.replica, row) for share in reversed(self._shares) for row, node in enumerate(share.outputs)
        }

    def _run(self, calls: Iterable[Call]) -> dict[Replica, bool | None]:
        """Make the calls at the same time and return their results; None for a replica that was dropped."""
        futures: dict[Replica, Future[bool]] = {}
        own: list[Call] = []
        pressed = False
        try:
            for replica, call in calls:
                if replica in self._threads:
                    futures[replica] = self._threads[replica].submit(call)
                else:
                    own.append((replica, call))
            done = {replica: self._guarded(replica, call) for replica, call in own}
        except KeyboardInterrupt:
            pressed = True
            raise
        finally:
            _wait(futures.values(), self._interrupt, pressed=pressed)
        return done | {replica: self._guarded(replica, future.result) for replica, future in futures.items()}

    def _each(self, call: Callable[[Replica], object]) -> None:
        """Make a call for one replica after another."""
        for replica in [*self.replicas]:
            self._guarded(replica, partial(call, replica))

    def _guarded(self, replica: Replica, call: Callable[[], Result]) -> Result | None:
        """The result of a call; a replica that fails is dropped, but the last one's error is raised."""
        try:
            return call()
        except LacliError as error:
            if len(self.replicas) == 1 or isinstance(error, BatchRefused):
                raise
            self.replicas.remove(replica)
            self.lost[replica.name] = str(error)
            return None

    def _interrupt(self) -> None:
        """End the calls of all replicas that can be left in the middle."""
        for replica in self.replicas:
            # Not every engine can leave the call that another thread has made of it.
            getattr(replica.engine, "interrupt", bool)()


def _wait(futures: Iterable[Future[bool]], interrupt: Callable[[], None], *, pressed: bool) -> None:
    """Wait until all are done, even after Ctrl-C: no cache may change while its replica decodes.

    `interrupt`: called again and again after Ctrl-C. `pressed`: it came before.
    """
    raised: list[KeyboardInterrupt] = []
    for future in futures:
        while not future.done():
            try:
                if pressed:
                    interrupt()
                future.exception(AGAIN_S if pressed else None)
            except TimeoutError:
                continue
            except KeyboardInterrupt as error:
                raised.append(error)
                pressed = True
    if raised:
        raise raised[-1]

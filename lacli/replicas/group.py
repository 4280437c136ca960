"""One text on several replicas: the branches of each step are dealt evenly, and accepted tokens are exchanged.

Each replica decodes the accepted tokens that another one had in its part in front of its own next part. Steps without
branches are decoded by the first replica alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np

from lacli.cache import SingleEngine
from lacli.context import Context, EngineGroup, Floats, Read, Successors, unread
from lacli.replicas.partition import dealt
from lacli.tree import ROOT, Branches, Tree

WHOLE_SEQUENCES = 2
"""Sequences of a step that cannot be divided: the text's own and one branch's."""

AGAIN_S = 0.05
"""Seconds after which replicas are interrupted once more: one may have been between two pieces of a prompt."""


class Share(NamedTuple):
    """What a replica decodes of a step. `nodes`: the tree's node of each row."""

    replica: SingleEngine
    branches: Branches
    nodes: Sequence[int]

    @property
    def outputs(self) -> list[int]:
        """The node of each output row."""
        return [node for node, wanted in zip(self.nodes, self.branches.verified, strict=True) if wanted]


class ReplicaGroup(EngineGroup):
    """The replicas of one text; the first one decodes in the caller's thread, each other one in a thread of its own."""

    def __init__(self, engines: Iterable[Context]) -> None:
        self._replicas = [SingleEngine(engine) for engine in engines]
        # llama.cpp's own threads belong to the one that calls it, so each replica keeps to one.
        self._threads = [ThreadPoolExecutor(1) for _ in self._replicas[1:]]
        self._shares: list[Share] = []
        self._took = 0.0

    @property
    def engine(self) -> Context:
        return self._replicas[0].engine

    @property
    def past(self) -> int:
        return max(replica.past for replica in self._replicas)

    @property
    def cells(self) -> int:
        return min(replica.cells for replica in self._replicas)

    @property
    def cache_s(self) -> float:
        return sum(replica.cache_s for replica in self._replicas)

    @property
    def rows(self) -> int:
        return sum(share.replica.rows for share in self._shares)

    @property
    def times(self) -> tuple[float, float]:
        choose_s = max(share.replica.times[1] for share in self._shares)
        return self._took - choose_s, choose_s

    def room(self, tokens: Sequence[int]) -> int:
        return min(self._replicas[0].room(tokens), self.cells - (len(tokens) - 1))

    def prefill(self, tokens: Sequence[int], read: Read = unread, *, all_replicas: bool = True) -> float:
        begin = perf_counter()
        wanted = self._replicas if all_replicas else self._replicas[:1]
        self._run([partial(each.prefill, tokens, unread if place else read) for place, each in enumerate(wanted)])
        return perf_counter() - begin

    def decode(self, tokens: Sequence[int], tree: Branches) -> bool:
        assert isinstance(tree, Tree), "a group divides whole trees"
        self._shares = [Share(self._replicas[0], tree, range(len(tree)))]
        if len(tree.sequences[ROOT]) > WHOLE_SEQUENCES:
            parts = dealt(tree, len(self._replicas))
            self._shares = [Share(*pair, pair[1].nodes) for pair in zip(self._replicas, parts, strict=False)]
        begin, cache_before = perf_counter(), self.cache_s
        decoded = self._run([partial(each.replica.decode, tokens, each.branches) for each in self._shares])
        # The cache's sequence calls are timed apart.
        self._took = perf_counter() - begin - (self.cache_s - cache_before)
        if not all(decoded):
            # What other replicas have decoded of a step without cells is taken back.
            for replica in self._replicas:
                replica.cut(replica.past)
        return all(decoded)

    def choices(self) -> Mapping[int, int]:
        """The most probable token after each output node of the last step; of several replicas' choices the first's."""
        merged: dict[int, int] = {}
        for share in reversed(self._shares):
            merged.update(zip(share.outputs, share.replica.output_choices, strict=True))
        return merged

    def logits(self) -> Callable[[int], Floats]:
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
            share.replica.commit([rows[node] for node in nodes if node in rows], ordered=ordered)

    def cut(self, length: int) -> None:
        for replica in self._replicas:
            replica.cut(length)

    def clear(self) -> None:
        for replica in self._replicas:
            replica.clear()

    def unshare(self) -> None:
        # After an interrupt a replica may still be decoding.
        self._wait([thread.submit(bool) for thread in self._threads], pressed=True)
        for replica in self._replicas:
            replica.unshare()

    def _places(self) -> dict[int, tuple[SingleEngine, int]]:
        """The replica and its output row for each output node."""
        return {
            node: (share.replica, row) for share in reversed(self._shares) for row, node in enumerate(share.outputs)
        }

    def _run(self, calls: Sequence[Callable[[], object]]) -> list[object]:
        """Make a call for each of the first replicas at the same time, and return the results."""
        futures: list[Future[object]] = []
        pressed = False
        try:
            futures += [thread.submit(call) for thread, call in zip(self._threads, calls[1:], strict=False)]
            own = calls[0]()
        except KeyboardInterrupt:
            pressed = True
            raise
        finally:
            self._wait(futures, pressed=pressed)
        return [own, *(future.result() for future in futures)]

    def _wait(self, futures: Iterable[Future[object]] | Iterable[Future[bool]], *, pressed: bool) -> None:
        """Wait until all are done, even after Ctrl-C: no cache may change while its replica decodes.

        `pressed`: Ctrl-C came before. Behind it the replicas are interrupted again and again.
        """
        raised: list[KeyboardInterrupt] = []
        for future in futures:
            while not future.done():
                try:
                    if pressed:
                        self._interrupt()
                    future.exception(AGAIN_S if pressed else None)
                except TimeoutError:
                    continue
                except KeyboardInterrupt as error:
                    raised.append(error)
                    pressed = True
        if raised:
            raise raised[-1]

    def _interrupt(self) -> None:
        """End the calls of all replicas that can be left in the middle."""
        for replica in self._replicas:
            # Not every engine can leave the call that another thread has made of it.
            getattr(replica.engine, "interrupt", bool)()

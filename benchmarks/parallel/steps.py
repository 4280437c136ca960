"""How long a step takes on several devices: replicas that share its branches, or layers that follow one another.

Replicas are lacli's own, on devices that compute nothing (`device.py`), so who decodes what, who catches up
and what is learned of speeds is not simulated. Times are in plain steps, t(1) of one device. Trees in, times out; where
the trees come from is `trace.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest.mock import patch

from benchmarks.parallel.device import Clock, Device, Travel
from benchmarks.parallel.trace import Trace
from benchmarks.shapes import Shape
from benchmarks.simulated import Stairs
from lacli import cache
from lacli.replicas.group import ReplicaGroup
from lacli.replicas.replica import shared_s
from lacli.tree import Tree

RPC_LAYER_BYTES = 13_000
"""Bytes of a graph that is sent to an RPC server, for each layer: 105,340 for the 7M model's eight."""

RPC_CALL_BYTES = 12_000
"""Bytes of a step's headers and questions."""

RPC_TRIPS = 3
"""Answers that a step with guesses waits for: the result, and how large tensors of new sizes are (0 to 7 questions)."""

RPC_HEADERS = 2_000
"""Bytes of all headers where the server has the graph still, because the step has the size of the one before."""

ID_BYTES, ID_ROW_BYTES, ID_OUTPUT_BYTES = 100, 16, 4
"""Of a message with token ids: its head, a row's token, position and sequences, and a choice."""


@dataclass(frozen=True)
class Wire:
    """What a step with guesses sends to another machine and back. trips: answers waited for. The others count bytes.

    again: the same without the bytes and trips that a step of the same size as the one before does not need.
    """

    trips: int
    fixed: int
    row: int
    output: int
    again: tuple[int, int] = (1, 0)

    def of(self, rows: int) -> tuple[int, int]:
        """Trips and bytes whatever the step holds. Single rows follow one another, steps with guesses rarely match."""
        return self.again if rows == 1 else (self.trips, self.fixed)


TOKEN_IDS = Wire(1, ID_BYTES, ID_ROW_BYTES, ID_OUTPUT_BYTES, (1, ID_BYTES))
"""A process on the other machine that has the whole model: tokens go there, choices come back."""


def remote_calls(shape: Shape, cells: int, *, layers: int | None = None, last: bool = True) -> Wire:
    """A device of llama.cpp's RPC server: graph, embeddings (F32) and mask (F16) go there, logits (F32) come back.

    cells: of the cache that a row's mask covers. layers: how many of the model lie there (None: all). last: whether
    the output is computed there, otherwise embeddings come back. Counted before a server (docs/parallel.md).
    """
    graph = RPC_LAYER_BYTES * (shape.layers if layers is None else layers)
    row = 4 * shape.width * (1 if last else 2) + 2 * cells
    output = 4 * shape.vocabulary if last else 0
    return Wire(RPC_TRIPS, graph + RPC_CALL_BYTES, row, output, (1, RPC_HEADERS))


@dataclass(frozen=True)
class Link:
    """A network. latency: seconds there and back. bits: a second."""

    latency: float
    bits: float

    def seconds(self, wire: Wire, rows: int, outputs: int) -> float:
        """What a step spends on the way."""
        trips, sent = wire.of(rows)
        return trips * self.latency + 8 * (sent + rows * wire.row + outputs * wire.output) / self.bits


class Group:
    """Lacli's replicas on devices alike that compute nothing; the first one is here, the others where `travel` says.

    travel: None where the others are here too. A step takes as long as the slowest of them. rows: of the last step,
    all devices together.
    """

    def __init__(self, stairs: Callable[[int], float], devices: int, travel: Travel | None = None) -> None:
        self._clock = Clock()
        self._stairs = stairs
        self._travels = [None, *[travel] * (devices - 1)]
        self._engines = [Device(self._clock, stairs, each) for each in self._travels]
        self._replicas = ReplicaGroup({f"{place}": engine for place, engine in enumerate(self._engines)})
        self.begin()

    def begin(self) -> None:
        """Begin another text, whose prompt all replicas hold."""
        self._replicas.clear()
        # Which tokens they are makes no difference to the time.
        self._text = [0]
        self.rows = 0

    def prefill(self, rows: int) -> float:
        """Everybody decodes a piece of the prompt: what it would take if they shared it, which the modes are told."""
        times = [self._stairs(rows) + (travel(rows, 0) if travel else 0.0) for travel in self._travels]
        for member, seconds in zip(self._replicas.replicas, times, strict=True):
            member.speed.hint(rows, seconds)
        return shared_s(rows, ((rows, each) for each in times))

    def decode(self, tree: Tree) -> float:
        """How long a step takes that they share."""
        for engine in self._engines:
            engine.took = 0.0
        with patch.object(cache, "perf_counter", self._clock.read):
            fits = self._replicas.decode(self._text, tree)
        assert fits, "these devices have room for everything"
        self.rows = self._replicas.rows
        return max(engine.took for engine in self._engines)

    def commit(self, nodes: Sequence[int]) -> None:
        """These nodes of the step were accepted."""
        self._replicas.commit(nodes, ordered=False)
        self._text += [0] * (1 + len(nodes))


class GroupStairs(Stairs):
    """A group as the staircase of a simulated engine: the next tree is what `watch` was told of last."""

    def __init__(self, stairs: Stairs, group: Group) -> None:
        super().__init__(list(zip(stairs.rows, stairs.costs, strict=True)))
        self._group = group
        self._tree: Tree | None = None

    def watch(self, tree: Tree) -> None:
        self._tree = tree

    def commit(self, nodes: Sequence[int]) -> None:
        self._group.commit(nodes)

    def __call__(self, rows: int) -> float:
        tree, self._tree = self._tree, None
        return self._group.decode(tree) if tree else self._group.prefill(rows)


def replayed(trace: Trace, group: Group) -> float:
    """How long a trace's steps take together, in plain steps. Prompts only say how fast devices are, in no time."""
    total = 0.0
    for answer in trace.answers:
        group.begin()
        group.prefill(trace.prompt - 1)
        for step in answer:
            total += group.decode(step.tree)
            group.commit(step.nodes)
    return total


def in_layers(trace: Trace, stairs: Callable[[int], float], travels: Sequence[Travel]) -> float:
    """The same where one model's layers lie on several devices: they follow one another.

    travels: of each device that is not here.
    """
    steps = [(len(step.tree), len(step.tree.outputs())) for answer in trace.answers for step in answer]
    return sum(stairs(rows) + sum(travel(rows, outputs) for travel in travels) for rows, outputs in steps)

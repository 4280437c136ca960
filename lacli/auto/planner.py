"""The step that pays best: guesses of all sources in one tree, best first, cut where the next row costs too much.

Assumes that a guess comes true with the probability its source gives, whatever became of other branches, so that a
node is worth the product of those on its way. Arithmetic only; how sure a source is, and what rows cost, is known
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from lacli.auto.source import Guess, Source
from lacli.tree import Origin

LEAST_CHANCE = 0.004
"""A node less probable than this is not worth the time to think about it."""

Followers = list[tuple[Source, Guess]]


class Node(NamedTuple):
    """A guess in its place below the input. parent: its index among the chosen ones, -1 for the input."""

    parent: int
    token: int
    origin: Origin


class Draft(NamedTuple):
    """What is guessed in a step, each node after its parent. tokens: that it will bring, the model's own among them."""

    nodes: list[Node]
    tokens: float


def chain_rows(
    chances: Iterable[float], relative: Sequence[float], slope: Sequence[float], most: int, dearest: float
) -> tuple[int, float]:
    """How many rows of a chain pay best, the input among them, and the tokens that they are expected to bring.

    chances: of each guess, where those above it came true. relative, slope, most, dearest: as `plan` takes them.
    """
    reach = tokens = best_value = best_tokens = 1.0
    rows = best = 1
    for chance in chances:
        reach *= chance
        if rows == most or reach <= best_value * slope[rows]:
            break
        rows += 1
        tokens += reach
        if tokens > best_value * relative[rows] and relative[rows] <= dearest:
            best, best_tokens, best_value = rows, tokens, tokens / relative[rows]
    return best, best_tokens


def plan(
    sources: Sequence[Source],
    text: Sequence[int],
    relative: Sequence[float],
    slope: Sequence[float],
    most: int,
    dearest: float,
    leaves: int,
    beside: int = 0,
) -> Draft:
    """The draft with the most expected tokens a second, of at most `most` rows, the input among them.

    relative: plain steps that so many rows cost; slope: the least that each further row costs, by rows. dearest: plain
    steps that it may cost. leaves: most branches. beside: rows that the step has anyway, the window's.
    """
    planner = _Planner(sources, leaves)
    planner.ask_first(text)
    best, best_tokens, tokens = 0, 1.0, 1.0
    best_value = 1 / relative[1 + beside]
    while planner.waiting and len(planner.nodes) + 1 < most:
        chance = planner.take()
        if not chance:
            continue
        tokens += chance
        rows = 1 + beside + len(planner.nodes)
        value = tokens / relative[rows]
        if value > best_value and relative[rows] <= dearest:
            best, best_tokens, best_value = len(planner.nodes), tokens, value
        elif chance <= best_value * slope[rows]:
            # No further node is more probable, and even rows at their cheapest would cost more than they bring.
            break
    return Draft(planner.nodes[:best], best_tokens)


class _Planner:
    """Nodes in the order of their probability; a node's children wait from when it is taken."""

    def __init__(self, sources: Sequence[Source], leaves: int) -> None:
        self._sources = sources
        self._everywhere = [source for source in sources if source.everywhere]
        self._branches = leaves - 1
        self._parents: set[int] = set()
        self._count = 0
        self.nodes: list[Node] = []
        # Negative probabilities, since the heap gives the smallest first; the count keeps equal ones in order.
        self.waiting: list[tuple[float, int, Node, int, Followers]] = []

    def ask_first(self, text: Sequence[int]) -> None:
        found = [(source, guess) for source in self._sources for guess in source.first(text)]
        self._wait(-1, 1.0, text[-1], found)

    def take(self) -> float:
        """Choose the most probable node that waits; its probability, 0 where there is no branch left for it."""
        negative, _, node, previous, followers = heappop(self.waiting)
        if node.parent in self._parents or (node.parent < 0 and self.nodes):
            if not self._branches:
                return 0.0
            self._branches -= 1
        self._parents.add(node.parent)
        self.nodes.append(node)
        found = [(source, guess) for source, before in followers for guess in source.after(before)]
        for source in self._everywhere:
            found += [(source, guess) for guess in source.anywhere(previous, node.token)]
        self._wait(len(self.nodes) - 1, -negative, node.token, found)
        return -negative

    def _wait(self, parent: int, reach: float, token: int, found: Followers) -> None:
        """Put what may follow a node into the queue, guesses of the same token as one."""
        for chance, guess, followers in _merged(found):
            if reach * chance >= LEAST_CHANCE:
                node = Node(parent, guess.token, followers[0][0].origin)
                self._count += 1
                heappush(self.waiting, (-reach * chance, self._count, node, token, followers))


def _merged(found: Followers) -> list[tuple[float, Guess, Followers]]:
    """Guesses of one place by token: each token's probability, a guess of it, and all who guessed it.

    Two that agree are as probable as the surer one. Of two that differ at most one comes true, so the other is worth
    the less the surer that one is.
    """
    if len(found) == 1:
        return [(found[0][1].probability, found[0][1], found)]
    merged: dict[int, tuple[float, Guess, Followers]] = {}
    for source, guess in found:
        known = merged.get(guess.token)
        if known is None:
            merged[guess.token] = guess.probability, guess, [(source, guess)]
        else:
            chance = max(known[0], guess.probability)
            merged[guess.token] = chance, known[1], [*known[2], (source, guess)]
    if not merged:
        return []
    best, _, surest = max(merged.values(), key=lambda each: each[0])
    source = surest[0][0]
    return [
        (chance if followers[0][0] is source else chance * (1 - best) / (1 - chance * best), guess, followers)
        for chance, guess, followers in merged.values()
    ]

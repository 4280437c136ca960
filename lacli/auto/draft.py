"""Drafts of the next tokens, as a tree with probabilities, and the choice of drafts for the fastest step."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from lacli.tree import Origin, Tree

MIN_PROBABILITY = 0.004
"""Drafts with a smaller probability are dropped. Source: if 63 rows cost 0.3 plain steps, each costs 0.005."""

DECAY, EXPECTED_TRIES, MAX_RATE = 0.98, 6.0, 0.999
"""DECAY: each draft reduces the weight of earlier drafts of its kind by this factor. EXPECTED_TRIES: an expected rate
weighs as much as this many drafts. MAX_RATE: the largest rate, below 1. Source: docs/internals/auto.md."""

MAX_OVERDRAFT = 8.0
"""The most plain steps that `Limits.allow` adds to `max_cost`. Source: docs/internals/auto.md."""


class HitRates:
    """The share of drafted tokens that one sequence accepted, by kind of draft. A kind is an index of `rates`."""

    def __init__(self, expected: Sequence[float]) -> None:
        self.rates = [min(rate, MAX_RATE) for rate in expected]
        self._hits = [EXPECTED_TRIES * rate for rate in expected]
        self._tries = [EXPECTED_TRIES] * len(expected)

    def record(self, kind: int, hit: bool) -> None:
        hits = self._hits[kind] = self._hits[kind] * DECAY + hit
        tries = self._tries[kind] = self._tries[kind] * DECAY + 1.0
        self.rates[kind] = min(hits / tries, MAX_RATE)


class Drafted(NamedTuple):
    """A drafted token. `probability`: that it is accepted if all drafted tokens before it on its path are accepted.

    `place`, `length`: numbers for the `after` method of the source that drafted the token; no other code reads them.
    """

    token: int
    probability: float
    place: int
    length: int


class Source:
    """The base class of sources, which draft tokens of one sequence."""

    def begin(self, tokens: Sequence[int]) -> None:
        """Learn the tokens of the prompt, once, before all other calls."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Learn the tokens that are new since the last call, and update hit rates. `tokens`: the whole sequence."""

    def first(self, tokens: Sequence[int]) -> Sequence[Drafted]:
        """Return drafts of the token after the whole sequence `tokens`, best first; empty if there are none."""
        raise NotImplementedError

    def after(self, drafted: Drafted) -> Sequence[Drafted]:
        """Return drafts of the token after `drafted`, which this source has drafted; empty if there are none."""
        return ()


Followers = list[tuple[Source, Drafted]]


class Draft:
    """A tree of drafts after `tokens` from all `sources`: at most `max_nodes` nodes, in at most `max_leaves` branches.

    `take` adds the most probable node that is left. `chance`: the probability that it is accepted, 0.0 without one.
    """

    def __init__(self, sources: Sequence[Source], tokens: Sequence[int], max_leaves: int, max_nodes: int) -> None:
        self.max_nodes, self._branches_left = max_nodes, max_leaves - 1
        self._nodes: list[tuple[int, int]] = []  # by node: its parent, or -1 for the input, and its token
        self._parents: set[int] = set()
        # Negative probabilities, since a heap gives the smallest first; the count keeps equal ones in order.
        self._waiting: list[tuple[float, int, int, Followers]] = []
        self._count = 0
        self._queue(-1, 1.0, [(source, drafted) for source in sources for drafted in source.first(tokens)])
        self._offer()

    def take(self) -> bool:
        """Add the next node; `chance` must be above 0. Drop the node and return False if no branch is left for it."""
        negative, _, parent, followers = heappop(self._waiting)
        is_branch = parent in self._parents
        if is_branch and not self._branches_left:
            self._offer()
            return False
        self._branches_left -= is_branch
        self._parents.add(parent)
        self._nodes.append((parent, followers[0][1].token))
        found = [(source, drafted) for source, before in followers for drafted in source.after(before)]
        self._queue(len(self._nodes) - 1, -negative, found)
        self._offer()
        return True

    def has_node(self) -> bool:
        """Return whether the tree has a node, after an attempt to `take` one if it was empty."""
        return bool(self._nodes) or self.take()

    def plant(self, tree: Tree, count: int) -> None:
        """Copy the first `count` nodes into `tree`. A single chain gets id 0; several branches get the ids 1, 2 ..."""
        for parent, token in self._nodes[:count]:
            tree.add_node(parent + 1, token, Origin.SUFFIX)
        is_chain = all(parent == place for place, (parent, _) in enumerate(self._nodes[:count], start=-1))
        tree.assign_ids(0 if is_chain else 1)

    def _offer(self) -> None:
        self.chance = -self._waiting[0][0] if self._waiting and len(self._nodes) < self.max_nodes else 0.0

    def _queue(self, parent: int, probability: float, found: Followers) -> None:
        """Queue the drafts `found` after the node `parent` (-1: the input), which is accepted with `probability`."""
        for chance, followers in _merged(found):
            if probability * chance >= MIN_PROBABILITY:
                self._count += 1
                heappush(self._waiting, (-probability * chance, self._count, parent, followers))


def _merged(found: Followers) -> list[tuple[float, Followers]]:
    """Merge drafts of equal tokens. Return each token's probability, and its sources with their drafts.

    Of several probabilities of one token, the largest counts. At most one of several tokens is accepted. So tokens
    of other sources than the most probable token's source lose probability.
    """
    if len(found) == 1:
        return [(found[0][1].probability, found)]
    merged: dict[int, tuple[float, Followers]] = {}
    for source, drafted in found:
        chance, followers = merged.setdefault(drafted.token, (0.0, []))
        followers.append((source, drafted))
        merged[drafted.token] = max(chance, drafted.probability), followers
    if not merged:
        return []
    best, ((source, _), *_) = max(merged.values(), key=lambda each: each[0])
    return [
        (chance if followers[0][0] is source else chance * (1 - best) / (1 - chance * best), followers)
        for chance, followers in merged.values()
    ]


class Limits(NamedTuple):
    """What a step may cost. The unit of cost is a step of the same sequences without drafts, a plain step.

    `costs[n]`: the cost of a step of n rows, without prompt rows. `slopes[n]`: the least cost of each row beyond n.
    `max_rows`: the most rows, with the input of each sequence. `margin`: tokens per sequence that a step with drafts
    must be expected to give for each plain step of its cost. `max_cost`: the largest cost; `allow` can add to it.
    `max_wait`: the largest cost per expected token, for the sequence that expects the fewest tokens.
    """

    costs: Sequence[float]
    slopes: Sequence[float]
    max_rows: int
    margin: float
    max_cost: float
    max_wait: float

    def allow(self, tokens: float, cost: float) -> bool:
        """Return whether a step may cost `cost` plain steps. `tokens`: how many it is expected to give each sequence.

        If `max_cost` is above 1, half of (`tokens` - `max_cost`) is added to it, at most MAX_OVERDRAFT.
        """
        promised = max(min((tokens - self.max_cost) / 2, MAX_OVERDRAFT), 0.0)
        return cost <= self.max_cost + (promised if self.max_cost > 1 else 0.0)


def best_step(drafts: Sequence[Draft], sequences: int, limits: Limits) -> tuple[list[int], float]:
    """Choose the step with the most expected tokens a second. Return how many nodes of each draft it has, and its cost.

    Nodes of all drafts are added in the order of their probability, and each beginning of this order is a step. All
    numbers of nodes are 0 if no step with drafts is within `limits`. `sequences`: how many sequences the step has.
    """
    costs, slopes = limits.costs, limits.slopes
    rows, tokens = sequences, float(sequences)
    max_rows = min(limits.max_rows, rows + sum([draft.max_nodes for draft in drafts]))
    counts, expected = [0] * len(drafts), [1.0] * sequences
    best, best_value = [*counts], limits.margin * sequences
    waiting = [(-draft.chance, place) for place, draft in enumerate(drafts) if draft.chance]
    heapify(waiting)
    while waiting and (left := max_rows - rows):
        negative, place = waiting[0]
        # No later node is more probable, and each costs at least the slope.
        if tokens - left * negative <= best_value * (costs[rows] + left * slopes[rows]):
            break
        draft = drafts[place]
        if draft.take():
            rows += 1
            tokens -= negative
            counts[place] += 1
            expected[place] -= negative
            cost = costs[rows]
            is_slow = cost > limits.max_wait * min(expected)
            if tokens > best_value * cost and limits.allow(tokens / sequences, cost) and not is_slow:
                best, best_value = [*counts], tokens / cost
        if draft.chance:
            heapreplace(waiting, (-draft.chance, place))
        else:
            heappop(waiting)
    return best, costs[sequences + sum(best)]

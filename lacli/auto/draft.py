"""Drafts of the next tokens with their probabilities, as a tree, and the fastest step of several sequences."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from lacli.tree import Origin, Tree

MIN_PROBABILITY = 0.004
"""Less probable nodes are not considered. Source: 63 rows for 0.3 plain steps are 0.005 each."""

DECAY, EXPECTED_TRIES, MAX_RATE = 0.98, 6.0, 0.999
"""DECAY: factor of a draft's weight at the next draft of its kind. EXPECTED_TRIES: drafts that an expected rate counts
as. MAX_RATE: the largest rate, since two different tokens cannot both be certain. Source: docs/internals/auto.md."""

MAX_OVERDRAFT = 8.0
"""At most so many plain steps may exceed the budget, if a step promises twice as many tokens beyond it (auto.md)."""


class HitRates:
    """Accepted over drafted tokens in one sequence. `rates`: the current ones, by the kinds that a source defines."""

    def __init__(self, expected: Sequence[float]) -> None:
        self.rates = [min(rate, MAX_RATE) for rate in expected]
        self._hits = [EXPECTED_TRIES * rate for rate in expected]
        self._tries = [EXPECTED_TRIES] * len(expected)

    def record(self, kind: int, hit: bool) -> None:
        """Record whether a drafted token of this kind was accepted."""
        hits = self._hits[kind] = self._hits[kind] * DECAY + hit
        tries = self._tries[kind] = self._tries[kind] * DECAY + 1.0
        self.rates[kind] = min(hits / tries, MAX_RATE)


class Drafted(NamedTuple):
    """A token that may come next. `probability`: of its acceptance if everything above it is accepted.

    `place`, `length`: the source's own note of its position, passed back to `after`.
    """

    token: int
    probability: float
    place: int
    length: int


class Source:
    """Drafts tokens of one sequence."""

    def begin(self, tokens: Sequence[int]) -> None:
        """Learn the prompt."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Learn the tokens accepted since the last call, and whether the draft of each was right."""

    def first(self, tokens: Sequence[int]) -> Sequence[Drafted]:
        """Return drafts of the next token, best first."""
        raise NotImplementedError

    def after(self, drafted: Drafted) -> Sequence[Drafted]:
        """Return drafts of the token after one of the source's own drafts, best first."""
        return ()


Followers = list[tuple[Source, Drafted]]


class Draft:
    """The drafts of all `sources` as a tree of at most `max_nodes` nodes and `max_leaves` branches.

    The most probable node comes first. `chance`: probability that the next node is accepted, 0 if there is none.
    """

    def __init__(self, sources: Sequence[Source], tokens: Sequence[int], max_leaves: int, max_nodes: int) -> None:
        self.max_nodes, self._branches_left = max_nodes, max_leaves - 1
        # By node: its parent, or -1 for the input, and its token.
        self._nodes: list[tuple[int, int]] = []
        self._parents: set[int] = set()
        # Negative probabilities, since a heap gives the smallest first; the count keeps equal ones in order.
        self._waiting: list[tuple[float, int, int, Followers]] = []
        self._count = 0
        self._wait(-1, 1.0, [(source, drafted) for source in sources for drafted in source.first(tokens)])
        self._offer()

    def take(self) -> bool:
        """Take the next node; return False if no branch is left for it."""
        negative, _, parent, followers = heappop(self._waiting)
        is_branch = parent in self._parents
        if is_branch and not self._branches_left:
            self._offer()
            return False
        self._branches_left -= is_branch
        self._parents.add(parent)
        self._nodes.append((parent, followers[0][1].token))
        found = [(source, drafted) for source, before in followers for drafted in source.after(before)]
        self._wait(len(self._nodes) - 1, -negative, found)
        self._offer()
        return True

    def has_node(self) -> bool:
        """Take the first node if none is taken; return whether there is one."""
        return bool(self._nodes) or self.take()

    def plant(self, tree: Tree, count: int) -> None:
        """Put the first `count` nodes into a tree: a single chain gets id 0, else each branch an id of its own."""
        for parent, token in self._nodes[:count]:
            tree.add_node(parent + 1, token, Origin.SUFFIX)
        is_chain = all(parent == place for place, (parent, _) in enumerate(self._nodes[:count], start=-1))
        tree.assign_ids(0 if is_chain else 1)

    def _offer(self) -> None:
        self.chance = -self._waiting[0][0] if self._waiting and len(self._nodes) < self.max_nodes else 0.0

    def _wait(self, parent: int, reach: float, found: Followers) -> None:
        """Queue the drafts after a node that is accepted with probability `reach`."""
        for chance, followers in _merged(found):
            if reach * chance >= MIN_PROBABILITY:
                self._count += 1
                heappush(self._waiting, (-reach * chance, self._count, parent, followers))


def _merged(found: Followers) -> list[tuple[float, Followers]]:
    """Return each drafted token's probability and all sources that drafted it.

    If several sources draft a token, their largest probability counts. At most one of two tokens is right: the more
    likely the first, the less the second is worth.
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
    """The limits of a step.

    `costs`: by rows, in steps without drafts. `slopes`: by rows, the least cost of a further row. `max_rows`: the input
    of each sequence included. `margin`: tokens per plain step of cost that a step must promise each sequence.
    `max_cost`: the largest cost; half of the tokens promised beyond it are added, at most MAX_OVERDRAFT. `max_wait`:
    the largest cost per token that the sequence with the poorest drafts expects.
    """

    costs: Sequence[float]
    slopes: Sequence[float]
    max_rows: int
    margin: float
    max_cost: float
    max_wait: float

    def allow(self, tokens: float, cost: float) -> bool:
        """Return whether a step that promises `tokens` a sequence may cost `cost`."""
        promised = max(min((tokens - self.max_cost) / 2, MAX_OVERDRAFT), 0.0)
        return cost <= self.max_cost + (promised if self.max_cost > 1 else 0.0)


def best_step(drafts: Sequence[Draft], sequences: int, limits: Limits) -> tuple[list[int], float]:
    """Return how many nodes of each draft give the most tokens a second, and the step's cost.

    The drafts are merged, the most probable node first, and every beginning of this order may be the step.
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

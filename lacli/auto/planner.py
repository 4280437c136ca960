"""The draft that pays best: guesses of all sources in one tree, best first, cut where the next row costs too much.

A guess is taken to come true with its source's probability whatever became of other branches, so a node is worth the
product of the probabilities on its path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from lacli.auto.acceptance import SourceAccount
from lacli.tree import Origin

MIN_PROBABILITY = 0.004
"""Probability below which a node is not worth the time to consider it; 0.3 plain steps for 63 rows are 0.005 each."""


class Guess(NamedTuple):
    """A token that may come next, with the `probability` that the model chooses it if everything above is accepted.

    `place`: the source's own note of where the guess stands, passed back to `after`.
    """

    token: int
    probability: float
    place: int


class Source:
    """Guesses for a text that grows, is cut back, or goes on from an earlier one.

    `everywhere`: True if it also guesses what follows other sources' guesses. `account`: what its guesses are worth in
    trees.
    """

    origin: Origin
    everywhere = False

    def __init__(self) -> None:
        self.account = SourceAccount()

    def begin(self, text: Sequence[int]) -> None:
        """Begin a generation behind a prompt; what is known of its beginning stays known."""
        self.extend(text)

    def truncate(self, text: Sequence[int], length: int) -> None:
        """Forget what was learned behind the first `length` tokens of `text`, which is about to be cut back to them."""

    def extend(self, text: Sequence[int]) -> None:
        """Learn the tokens accepted since the last call, and how good the guess for each was."""

    def first(self, text: Sequence[int]) -> Sequence[Guess]:
        """Return guesses for the token behind the text, best first."""
        raise NotImplementedError

    def after(self, guess: Guess) -> Sequence[Guess]:
        """Return what may follow one of the source's own guesses, best first."""
        raise NotImplementedError

    def anywhere(self, previous: int, token: int) -> Sequence[Guess]:
        """Return what may follow `token` behind `previous`, guessed by any source, best first."""
        return ()


Followers = list[tuple[Source, Guess]]


class Node(NamedTuple):
    """A guess in the draft. `parent`: index of the node above it, -1 for the input; `chance`: if that is accepted."""

    parent: int
    token: int
    source: Source
    chance: float


class Draft(NamedTuple):
    """A step's guesses, each node after its parent. `tokens`: the expected number, the model's own included."""

    nodes: list[Node]
    tokens: float


MAX_OVERDRAFT = 8.0
"""Plain steps beyond the account that a chain may cost at most.

On the law of Q8_0 on two AVX-512 cores mode auto was 1.25 times as fast with 2 and 1.32 with 8 (benchmarks.replay).
"""


def is_affordable(tokens: float, cost: float, max_cost: float) -> bool:
    """True if a chain that promises `tokens` may cost `cost` plain steps; `max_cost`: what the account allows.

    Half of the tokens promised beyond `max_cost` may be spent too, unless the account is empty. On a machine where two
    rows cost 2.6 plain steps and eight 4.1 (Q8_0, two AVX-512 cores) no chain that pays fits into a new account.
    """
    promised = min((tokens - max_cost) / 2, MAX_OVERDRAFT)
    return cost <= max_cost + (promised if promised > 0 and max_cost > 1 else 0.0)


def chain_rows(
    chances: Iterable[float], relative: Sequence[float], slope: Sequence[float], max_rows: int, max_cost: float
) -> tuple[int, float]:
    """Return the rows of the chain that pays best, the input included, and its expected tokens.

    `chances`: probability of each guess if those above it came true. The rest is as in `plan`.
    """
    reach = tokens = best_value = best_tokens = 1.0
    rows = best = 1
    for chance in chances:
        reach *= chance
        if rows == max_rows or reach <= best_value * slope[rows]:
            break
        rows += 1
        tokens += reach
        if tokens > best_value * relative[rows] and is_affordable(tokens, relative[rows], max_cost):
            best, best_tokens, best_value = rows, tokens, tokens / relative[rows]
    return best, best_tokens


def plan(
    sources: Sequence[Source],
    text: Sequence[int],
    relative: Sequence[float],
    slope: Sequence[float],
    max_rows: int,
    max_cost: float,
    max_leaves: int,
    window_rows: int = 0,
) -> Draft:
    """Return the draft with the most expected tokens a second, of at most `max_rows` rows, the input included.

    `relative`, `slope`: by rows, as `StepCostModel` has them. `max_cost`: of the step, in plain steps. `max_leaves`:
    branches. `window_rows`: rows that the step has in any case.
    """
    planner = _Planner(sources, max_leaves)
    planner.ask_first(text)
    best, best_tokens, tokens = 0, 1.0, 1.0
    best_value = 1 / relative[1 + window_rows]
    while planner.waiting and len(planner.nodes) + 1 < max_rows:
        chance = planner.take()
        if not chance:
            continue
        tokens += chance
        rows = 1 + window_rows + len(planner.nodes)
        value = tokens / relative[rows]
        if value > best_value and relative[rows] <= max_cost:
            best, best_tokens, best_value = len(planner.nodes), tokens, value
        elif chance <= best_value * slope[rows]:
            # No further node is more probable, and even rows at their cheapest would cost more than they bring.
            break
    return Draft(planner.nodes[:best], best_tokens)


class _Planner:
    """Nodes in the order of their probability; taking a node queues its children."""

    def __init__(self, sources: Sequence[Source], max_leaves: int) -> None:
        self._sources = sources
        self._everywhere = [source for source in sources if source.everywhere]
        self._branches_left = max_leaves - 1
        self._parents: set[int] = set()
        self._count = 0
        self.nodes: list[Node] = []
        # Negative probabilities, since the heap gives the smallest first; the count keeps equal ones in order.
        self.waiting: list[tuple[float, int, Node, int, Followers]] = []

    def ask_first(self, text: Sequence[int]) -> None:
        found = [(source, guess) for source in self._sources for guess in source.first(text)]
        self._wait(-1, 1.0, text[-1], found)

    def take(self) -> float:
        """Take the most probable waiting node and return its probability, 0 if no branch is left for it."""
        negative, _, node, previous, followers = heappop(self.waiting)
        if node.parent in self._parents or (node.parent < 0 and self.nodes):
            if not self._branches_left:
                return 0.0
            self._branches_left -= 1
        self._parents.add(node.parent)
        self.nodes.append(node)
        found = [(source, guess) for source, before in followers for guess in source.after(before)]
        for source in self._everywhere:
            found += [(source, guess) for guess in source.anywhere(previous, node.token)]
        self._wait(len(self.nodes) - 1, -negative, node.token, found)
        return -negative

    def _wait(self, parent: int, reach: float, token: int, found: Followers) -> None:
        """Queue what may follow a node, guesses of the same token as one."""
        for chance, guess, followers in merged_guesses(found):
            if reach * chance >= MIN_PROBABILITY:
                node = Node(parent, guess.token, followers[0][0], chance)
                self._count += 1
                heappush(self.waiting, (-reach * chance, self._count, node, token, followers))


def merged_guesses(found: Followers) -> list[tuple[float, Guess, Followers]]:
    """Return by token the probability, one guess and all sources that guessed it.

    Two guesses that agree are as probable as the surer one. Of two that differ at most one comes true, so the other is
    worth the less the surer that one is.
    """
    if len(found) == 1:
        source, guess = found[0]
        return [(guess.probability * source.account.trust, guess, found)]
    merged: dict[int, tuple[float, Guess, Followers]] = {}
    for source, guess in found:
        known, chance = merged.get(guess.token), guess.probability * source.account.trust
        if known is None:
            merged[guess.token] = chance, guess, [(source, guess)]
        else:
            chance = max(known[0], chance)
            merged[guess.token] = chance, known[1], [*known[2], (source, guess)]
    if not merged:
        return []
    best, _, surest = max(merged.values(), key=lambda each: each[0])
    source = surest[0][0]
    return [
        (chance if followers[0][0] is source else chance * (1 - best) / (1 - chance * best), guess, followers)
        for chance, guess, followers in merged.values()
    ]

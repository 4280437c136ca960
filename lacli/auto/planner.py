"""The step that pays best: guesses of all texts and sources, best first, cut where the next row costs too much.

A guess is taken to come true with its source's probability whatever became of other branches, so a node is worth the
product of the probabilities on its path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate
from math import inf
from typing import NamedTuple

from lacli.auto.acceptance import AcceptanceEstimate, SourceAccount
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
    """Drafts tokens of one sequence.

    `everywhere`: True if it also guesses what follows other sources' guesses. `acceptance`: how often its guesses come
    true. `account`: what they are worth in trees.
    """

    origin: Origin
    acceptance: AcceptanceEstimate
    everywhere = False

    def __init__(self) -> None:
        self.account = SourceAccount()

    def begin(self, text: Sequence[int]) -> None:
        """Take in the prompt."""
        self.extend(text)

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


MAX_OVERDRAFT = 8.0
"""Plain steps beyond the account that a chain may cost at most.

On the law of Q8_0 on two AVX-512 cores mode auto was 1.25 times as fast with 2 and 1.32 with 8 (benchmarks.replay).
"""


def is_affordable(tokens: float, cost: float, max_cost: float, overdraft: float = MAX_OVERDRAFT) -> bool:
    """True if a chain that promises `tokens` may cost `cost` plain steps; `max_cost`: what the account allows.

    Half of the tokens promised beyond `max_cost`, at most `overdraft`, may be spent too, unless the account is empty.
    On a machine where two rows cost 2.6 plain steps and eight 4.1 (Q8_0, two AVX-512 cores) no chain that pays fits
    into a new account.
    """
    promised = min((tokens - max_cost) / 2, overdraft)
    return cost <= max_cost + (promised if promised > 0 and max_cost > 1 else 0.0)


class Limits(NamedTuple):
    """What a step may be.

    `relative`, `slope`: by rows, as `StepCostModel` has them. `max_rows`: the input of each text included. `max_cost`:
    in steps without guesses. `texts`: their number. `beside`: rows that the step has in any case, beyond `max_rows`.
    `max_wait`: steps without guesses that it may cost per token expected by the text that expects fewest.
    """

    relative: Sequence[float]
    slope: Sequence[float]
    max_rows: int
    max_cost: float
    texts: int = 1
    beside: int = 0
    max_wait: float = inf


def best_prefix(orders: Sequence[Chain | Branches], limits: Limits, *, chains: bool = False) -> tuple[list[int], float]:
    """Return how many guesses of each order make the step with the most expected tokens a second, and its tokens.

    The orders are merged, the most probable guess first, and every beginning of the merged order may be the step; one
    of `chains` may overdraw the account. Texts without an order bring a token each, as all do. An order for whose next
    guess another text would wait too long stands aside until that text expects more.
    """
    relative, slope, max_rows, max_cost, texts, beside, max_wait = limits
    plain, rows, tokens = relative[texts], texts + beside, float(texts)
    best_tokens, best_value = tokens, tokens / relative[rows]
    counts, best = [0] * len(orders), [0] * len(orders)
    expected, least, aside = [1.0] * texts, 1.0, list[tuple[float, int]]()
    cheapest = [*accumulate(reversed(relative), min)][::-1] if max_wait < inf else relative
    overdraft = MAX_OVERDRAFT if chains else 0.0
    bound = inf
    waiting = [(-order.chance, place) for place, order in enumerate(orders) if order.chance]
    heapify(waiting)
    max_rows += beside
    while waiting and rows < max_rows:
        negative, place = waiting[0]
        # A step costs what its size was last timed at, which `slope` may not know yet: in a tree, whose first guesses
        # are tried often, a guess that follows one that pays is tried as well.
        if (-negative if chains else bound) <= best_value * slope[rows]:
            # No further guess is more probable, and even rows at their cheapest would cost more than they bring.
            break
        if expected[place] > least and cheapest[rows + 1] > max_wait * least * plain:
            aside.append(heappop(waiting))
            continue
        order = orders[place]
        if order.take():
            rows += 1
            tokens -= negative
            counts[place] += 1
            expected[place] -= negative
            least = min(expected)
            cost = relative[rows]
            bound = -negative
            if (
                tokens > best_value * cost
                and is_affordable(tokens / texts, cost / plain, max_cost, overdraft)
                and cost <= max_wait * least * plain
            ):
                best, best_tokens, best_value = counts.copy(), tokens, tokens / cost
                bound = inf
        if order.chance:
            heapreplace(waiting, (-order.chance, place))
        else:
            heappop(waiting)
        while aside and cheapest[min(rows + 1, max_rows)] <= max_wait * least * plain:
            heappush(waiting, aside.pop())
    return best, best_tokens


class Chain:
    """One continuation of a text as the order in which its guesses enter a step.

    `chances`: probability of each token if those before it came true. `chance`: of the next one to come true, 0 where
    there is none. `taken`: those of the guesses before it.
    """

    def __init__(self, chances: Iterable[float]) -> None:
        self._chances = iter(chances)
        self.taken: list[float] = []
        self.chance = next(self._chances, 0.0)

    def take(self) -> bool:
        """Take the next guess; True, since none is left out."""
        self.taken.append(self.chance)
        self.chance *= next(self._chances, 0.0)
        return True


class Branches:
    """The guesses of all `sources` of a text as a tree of at most `max_nodes` guesses and `max_leaves` branches.

    The most probable ones come first. `chance`, `taken`: as in Chain. `nodes`: those that were taken, each after its
    parent. Taking one queues its children.
    """

    def __init__(self, sources: Sequence[Source], text: Sequence[int], max_leaves: int, max_nodes: int) -> None:
        self._everywhere = [source for source in sources if source.everywhere]
        self._branches_left = max_leaves - 1
        self._max_nodes = max_nodes
        self._parents: set[int] = set()
        self._count = 0
        self.nodes: list[Node] = []
        self.taken: list[float] = []
        # Negative probabilities, since the heap gives the smallest first; the count keeps equal ones in order.
        self._waiting: list[tuple[float, int, Node, int, Followers]] = []
        found = [(source, guess) for source in sources for guess in source.first(text)]
        self._wait(-1, 1.0, text[-1], found)
        self._offer()

    def take(self) -> bool:
        """Take the next guess; False if no branch is left for it."""
        negative, _, node, previous, followers = heappop(self._waiting)
        is_branch = node.parent in self._parents or (node.parent < 0 and len(self.nodes) > 0)
        if is_branch and not self._branches_left:
            self._offer()
            return False
        self._branches_left -= is_branch
        self._parents.add(node.parent)
        self.nodes.append(node)
        self.taken.append(-negative)
        found = [(source, guess) for source, before in followers for guess in source.after(before)]
        for source in self._everywhere:
            found += [(source, guess) for guess in source.anywhere(previous, node.token)]
        self._wait(len(self.nodes) - 1, -negative, node.token, found)
        self._offer()
        return True

    def _offer(self) -> None:
        self.chance = -self._waiting[0][0] if self._waiting and len(self.nodes) < self._max_nodes else 0.0

    def _wait(self, parent: int, reach: float, token: int, found: Followers) -> None:
        """Queue what may follow a node, guesses of the same token as one."""
        for chance, guess, followers in merged_guesses(found):
            if reach * chance >= MIN_PROBABILITY:
                node = Node(parent, guess.token, followers[0][0], chance)
                self._count += 1
                heappush(self._waiting, (-reach * chance, self._count, node, token, followers))


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

"""The step that pays best: against brute force over everything that the sources spell out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from math import inf
from operator import mul

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lacli.auto.acceptance import MAX_PROBABILITY
from lacli.auto.planner import (
    MAX_OVERDRAFT,
    MIN_PROBABILITY,
    Branches,
    Chain,
    Guess,
    Limits,
    Node,
    Source,
    best_prefix,
    is_affordable,
    merged_guesses,
)
from lacli.settings import LEAVES, DecodeSettings
from lacli.tree import Origin, Tree

Below = dict[int, list[Guess]]
"""What may follow a place of a source; its beginning is place 0."""

MANY = 100
TEXT = (1, 2)


@dataclass(frozen=True)
class Draft:
    """The guesses that a text's step has, and its expected tokens."""

    nodes: list[Node]
    tokens: float


def plan(
    sources: Sequence[Source],
    text: Sequence[int],
    relative: Sequence[float],
    slope: Sequence[float],
    max_rows: int,
    max_cost: float,
    max_leaves: int,
    beside: int = 0,
) -> Draft:
    """The best tree of a single text."""
    branches = Branches(sources, text, max_leaves, MANY)
    (count,), tokens = best_prefix([branches], Limits(relative, slope, max_rows, max_cost, beside=beside))
    assert tokens == pytest.approx(1 + sum(branches.taken[:count]))
    return Draft(branches.nodes[:count], tokens)


def chain_rows(
    chances: Iterable[float], relative: Sequence[float], slope: Sequence[float], max_rows: int, max_cost: float
) -> tuple[int, float]:
    """The rows of a single text's best chain, and its expected tokens."""
    (count,), tokens = best_prefix([Chain(chances)], Limits(relative, slope, max_rows, max_cost), chains=True)
    return 1 + count, tokens


class Spelled(Source):
    """A source that guesses what the test wrote down."""

    def __init__(self, below: Below, origin: Origin = Origin.SUFFIX) -> None:
        super().__init__()
        self.origin = origin
        self._below = below

    def first(self, text: Sequence[int]) -> Sequence[Guess]:
        return self._below.get(0, [])

    def after(self, guess: Guess) -> Sequence[Guess]:
        return self._below.get(guess.place, [])


class Everywhere(Source):
    """A source with guesses behind every two tokens that the test wrote down."""

    origin = Origin.RECYCLING
    everywhere = True

    def __init__(self, pairs: dict[tuple[int, int], list[Guess]]) -> None:
        super().__init__()
        self._pairs = pairs

    def first(self, text: Sequence[int]) -> Sequence[Guess]:
        return self.anywhere(text[-2], text[-1])

    def after(self, guess: Guess) -> Sequence[Guess]:
        return ()

    def anywhere(self, previous: int, token: int) -> Sequence[Guess]:
        return self._pairs.get((previous, token), [])


@dataclass(frozen=True)
class Place:
    """A node of all that is spelled out. path: the tokens to it. reach: its probability."""

    parent: int
    path: tuple[int, ...]
    reach: float


def spelled(sources: Sequence[Source], text: Sequence[int], deepest: int) -> list[Place]:
    """All that the sources guess, parents first, but what is too improbable to be thought about."""
    places: list[Place] = []

    def put(parent: int, path: tuple[int, ...], reach: float, found: list[tuple[Source, Guess]]) -> None:
        for chance, guess, followers in merged_guesses(found):
            if len(path) == deepest or reach * chance < MIN_PROBABILITY:
                continue
            here, mine = (*path, guess.token), len(places)
            places.append(Place(parent, here, reach * chance))
            below = [(source, after) for source, before in followers for after in source.after(before)]
            last = [*text, *here][-2:]
            below += [(source, after) for source in sources if source.everywhere for after in source.anywhere(*last)]
            put(mine, here, reach * chance, below)

    put(-1, (), 1.0, [(source, guess) for source in sources for guess in source.first(text)])
    return places


def subtrees(places: Sequence[Place], most: int) -> Iterator[frozenset[int]]:
    """All connected ones that begin at the input, of at most `most` nodes."""
    found = [frozenset[int]()]
    for node, place in enumerate(places):
        found += [tree | {node} for tree in found if len(tree) < most and (place.parent < 0 or place.parent in tree)]
    yield from found


def leaves(places: Sequence[Place], tree: frozenset[int]) -> int:
    return len(tree - {places[node].parent for node in tree})


def slopes(relative: Sequence[float]) -> list[float]:
    """By rows the least that a further row costs on average up to any larger size, by definition."""
    last = len(relative) - 1
    least = [
        min((relative[more] - relative[rows]) / (more - rows) for more in range(rows + 1, last + 1))
        for rows in range(last)
    ]
    return [*least, float("inf")]


def best_value(
    places: Sequence[Place], relative: Sequence[float], most: int, dearest: float, branches: int, beside: int
) -> float:
    """The most tokens a second, by trying all."""
    value = 1 / relative[1 + beside]
    for tree in subtrees(places, most - 1):
        cost = relative[1 + beside + len(tree)]
        if tree and cost <= dearest and leaves(places, tree) <= branches:
            value = max(value, (1 + sum(places[node].reach for node in tree)) / cost)
    return value


def check(draft: Draft, places: Sequence[Place]) -> None:
    """Its nodes are spelled out, each once and after its parent, and it brings what their probabilities sum to."""
    reach = {place.path: place.reach for place in places}
    paths: list[tuple[int, ...]] = []
    for index, node in enumerate(draft.nodes):
        assert node.parent < index
        paths.append((*(paths[node.parent] if node.parent >= 0 else ()), node.token))
    assert len(set(paths)) == len(paths)
    assert draft.tokens == pytest.approx(1 + sum(reach[path] for path in paths))


@st.composite
def sources(draw: st.DrawFn, tokens: int = 3, nodes: int = 5) -> Spelled:
    """A small random tree of guesses; the tokens of siblings differ."""
    below: Below = {}
    for place in range(1, draw(st.integers(0, nodes)) + 1):
        siblings = below.setdefault(draw(st.integers(0, place - 1)), [])
        token = draw(st.integers(0, tokens - 1))
        if token not in [guess.token for guess in siblings]:
            siblings.append(Guess(token, draw(st.floats(0.05, 0.99)), place))
    for siblings in below.values():
        siblings.sort(key=lambda guess: -guess.probability)
    return Spelled(below, draw(st.sampled_from([Origin.SUFFIX, Origin.POOL])))


@st.composite
def everywheres(draw: st.DrawFn) -> Everywhere:
    """Guesses behind some pairs of the tokens 0 .. 2; only a few, so that the tree stays small."""
    pairs = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=3, unique=True))
    chances = st.floats(0.05, 0.6)
    return Everywhere({pair: [Guess(draw(st.integers(0, 2)), draw(chances), 0)] for pair in [*pairs, TEXT]})


def stairs(size: int) -> st.SearchStrategy[list[float]]:
    """What steps cost, by rows: anything, as on machines where four rows cost less than three; or in steps."""
    anything = st.lists(st.floats(1, 6), min_size=size - 1, max_size=size - 1).map(lambda each: [1.0, 1.0, *each])
    rising = anything.map(sorted)
    flat = st.tuples(st.integers(1, 4), st.floats(0, 1.5)).map(
        lambda step: [1 + step[1] * (max(rows - 1, 0) // step[0]) for rows in range(size + 1)]
    )
    return st.one_of(anything, rising, flat)


@given(
    st.lists(sources(), max_size=3),
    st.one_of(st.none(), everywheres()),
    st.data(),
    st.integers(1, 8),
    st.one_of(st.just(1000.0), st.floats(1, 5)),
    st.integers(0, 3),
)
@settings(max_examples=600)
def test_the_draft_is_the_best_of_all_trees(
    chosen: list[Spelled], everywhere: Everywhere | None, data: st.DataObject, most: int, dearest: float, beside: int
) -> None:
    asked: list[Source] = [*chosen, *([everywhere] if everywhere else [])]
    places = spelled(asked, TEXT, most - 1)
    assume(len(places) <= 13)
    relative = data.draw(stairs(most + beside + 1))
    draft = plan(asked, TEXT, relative, slopes(relative), most, dearest, MANY, beside)
    check(draft, places)
    cost = relative[1 + beside + len(draft.nodes)]
    assert len(draft.nodes) < most
    assert not draft.nodes or cost <= dearest
    assert draft.tokens / cost == pytest.approx(best_value(places, relative, most, dearest, MANY, beside))


@given(st.lists(sources(), min_size=1, max_size=3), st.integers(1, 4), st.floats(0, 0.5))
@settings(max_examples=150)
def test_a_draft_has_no_more_leaves_than_it_may(chosen: list[Spelled], branches: int, slope: float) -> None:
    relative = [1 + slope * max(rows - 1, 0) for rows in range(20)]
    draft = plan(chosen, TEXT, relative, slopes(relative), 16, 1000.0, branches)
    check(draft, spelled(chosen, TEXT, 16))
    parents = {node.parent for node in draft.nodes}
    assert sum(index not in parents for index in range(len(draft.nodes))) <= branches
    if branches == 1:
        assert [node.parent for node in draft.nodes] == list(range(-1, len(draft.nodes) - 1))


def test_the_widest_draft_has_a_sequence_for_each_leaf() -> None:
    chosen = DecodeSettings(mode="auto", auto_rows=250)
    flat = {0: [Guess(token, 0.05, 1 + token) for token in range(40)]}
    flat |= {1 + token: [Guess(below, 0.4, 0) for below in range(5)] for token in range(40)}
    relative = [1 + rows * 1e-6 for rows in range(251)]
    draft = plan([Spelled(flat)], TEXT, relative, slopes(relative), 250, 2.0, LEAVES)
    tree = Tree(TEXT[-1])
    for node in draft.nodes:
        tree.add_node(node.parent + 1, node.token, node.source.origin)
    tree.assign_sequences(chosen.window + 1)
    assert len(tree.sequences[0]) == 1 + LEAVES
    assert max(tree.sequences[0]) < chosen.sequences


@given(st.lists(st.floats(0.05, 1), max_size=10), st.data(), st.integers(1, 12), st.floats(1, 6))
@settings(max_examples=500)
def test_the_rows_of_a_chain_are_the_best_number(
    chances: list[float], data: st.DataObject, most: int, dearest: float
) -> None:
    relative = data.draw(stairs(13))
    rows, tokens = chain_rows(chances, relative, slopes(relative), most, dearest)
    expected = [1.0]
    reach = 1.0
    for chance in chances[: most - 1]:
        reach *= chance
        expected.append(expected[-1] + reach)
    allowed = [
        size
        for size, promised in enumerate(expected, start=1)
        if size == 1 or is_affordable(promised, relative[size], dearest)
    ]
    assert rows in allowed
    assert tokens == pytest.approx(expected[rows - 1])
    assert tokens / relative[rows] == pytest.approx(max(expected[size - 1] / relative[size] for size in allowed))


@given(st.floats(1, 20), st.floats(1, 20), st.floats(-5, 10))
def test_a_chain_may_cost_what_may_be_lost_and_a_little_of_what_it_promises_beyond(
    tokens: float, cost: float, max_cost: float
) -> None:
    affordable = is_affordable(tokens, cost, max_cost)
    assert affordable or cost > max_cost
    assert not affordable or cost <= max_cost or (1 < max_cost < cost <= tokens and cost <= max_cost + MAX_OVERDRAFT)


def test_a_climb_that_pays_in_the_end_is_not_given_up_half_way() -> None:
    # Two rows bring 1.9 tokens at the price of one, and a third is dear; from there on each brings a little more.
    relative = [1.0, 1.0, 1.0, *(2 + 0.38 * more for more in range(30))]
    chances = [0.9, 0.8 / 0.9, *[1.0] * 28]
    best = max(range(1, 32), key=lambda rows: (1 + 0.9 * (rows > 1) + 0.8 * max(rows - 2, 0)) / relative[rows])
    assert best == 31
    assert chain_rows(chances, relative, slopes(relative), 31, 99.0)[0] == best
    chain = Spelled({place: [Guess(place, chance, place + 1)] for place, chance in enumerate(chances)})
    assert len(plan([chain], TEXT, relative, slopes(relative), 31, 99.0, MANY).nodes) == best - 1


def test_without_guesses_or_where_rows_are_too_dear_there_is_no_draft() -> None:
    relative = [1 + max(rows - 1, 0) for rows in range(9)]
    nothing = plan([Spelled({})], TEXT, [1.0] * 9, slopes([1.0] * 9), 8, 9.0, MANY)
    dear = plan([Spelled({0: [Guess(5, 0.9, 1)]})], TEXT, relative, slopes(relative), 8, 9.0, MANY)
    assert nothing == dear == Draft([], 1.0)


def test_a_node_that_is_hardly_ever_reached_is_not_considered() -> None:
    chain = Spelled({0: [Guess(5, 0.5, 1)], 1: [Guess(6, 0.05, 2)], 2: [Guess(7, 0.05, 3)]})
    free = [1.0] * 9
    assert len(plan([chain], TEXT, free, slopes(free), 8, 9.0, MANY).nodes) == 2


def test_a_node_says_who_guessed_it_first_and_all_who_did_say_what_follows_it() -> None:
    suffix = Spelled({0: [Guess(5, 0.6, 1)], 1: [Guess(7, 0.6, 2)]})
    pool = Spelled({0: [Guess(5, 0.8, 1), Guess(6, 0.5, 3)], 1: [Guess(8, 0.5, 2)]}, Origin.POOL)
    free = [1.0] * 9
    nodes = plan([suffix, pool], TEXT, free, slopes(free), 8, 9.0, MANY).nodes
    assert nodes[0] == Node(-1, 5, suffix, 0.8)
    assert [node.source for node in nodes if node.token == 6] == [pool]
    assert {(node.parent, node.token) for node in nodes if node.parent == 0} == {(0, 7), (0, 8)}


@given(st.lists(sources(tokens=4), min_size=1, max_size=4))
def test_merged_guesses_are_probabilities_and_the_surest_of_a_token_bounds_it(chosen: list[Spelled]) -> None:
    found: list[tuple[Source, Guess]] = [(source, guess) for source in chosen for guess in source.first(TEXT)]
    merged = merged_guesses(found)
    surest: dict[int, float] = {}
    for _, guess in found:
        surest[guess.token] = max(surest.get(guess.token, 0), guess.probability)
    assert {guess.token for _, guess, _ in merged} == set(surest)
    assert all(0 < chance <= surest[guess.token] + 1e-12 for chance, guess, _ in merged)
    if found:
        assert max(chance for chance, _, _ in merged) == max(surest.values())
    assert sorted(id(source) for _, _, followers in merged for source, _ in followers) == sorted(
        id(source) for source, _ in found
    )


@given(st.lists(sources(), min_size=1, max_size=2), st.lists(st.booleans(), max_size=20))
def test_a_source_whose_guesses_came_true_less_often_than_promised_is_trusted_less(
    chosen: list[Spelled], came: list[bool]
) -> None:
    for hit in came:
        chosen[0].account.record_guess(0.9, hit)
    trust = chosen[0].account.trust
    assert 0 < trust <= 1
    alone: list[tuple[Source, Guess]] = [(chosen[0], guess) for guess in chosen[0].first(TEXT)]
    surest = max((guess.probability for _, guess in alone), default=0.0)
    assert max((chance for chance, _, _ in merged_guesses(alone)), default=0.0) == pytest.approx(trust * surest)


def test_of_two_sources_that_are_as_sure_as_can_be_of_different_tokens_the_first_one_counts() -> None:
    one, other = Spelled({0: [Guess(5, MAX_PROBABILITY, 1)]}), Spelled({0: [Guess(6, MAX_PROBABILITY, 1)]}, Origin.POOL)
    free = [1.0] * 9
    assert plan([one, other], TEXT, free, slopes(free), 8, 9.0, MANY).nodes[0].token == 5
    assert [
        guess.token
        for chance, guess, _ in merged_guesses(
            [(one, Guess(5, MAX_PROBABILITY, 1)), (other, Guess(6, MAX_PROBABILITY, 1))]
        )
        if chance > 0.6
    ] == [5]


some_chances = st.lists(st.floats(0.05, 1), max_size=5)


@given(
    st.lists(some_chances, min_size=1, max_size=3), st.data(), st.integers(1, 12), st.floats(1, 4), st.integers(0, 2)
)
@settings(max_examples=500)
def test_the_chains_of_several_texts_are_the_best_of_all_lengths(
    texts: list[list[float]], data: st.DataObject, most: int, dearest: float, silent: int
) -> None:
    count, most = len(texts) + silent, most + len(texts) + silent
    relative = data.draw(stairs(most + 1))
    limits = Limits(relative, slopes(relative), most, dearest, count)
    orders = [Chain(chances) for chances in texts]
    counts, tokens = best_prefix(orders, limits, chains=True)
    value = 0.0
    for lengths in product(*[range(len(chances) + 1) for chances in texts]):
        rows = count + sum(lengths)
        if rows > most:
            continue
        promised = count + sum(
            sum(accumulate(chances[:length], mul)) for chances, length in zip(texts, lengths, strict=True)
        )
        if rows == count or is_affordable(promised / count, relative[rows] / relative[count], dearest):
            value = max(value, promised / relative[rows])
    rows = count + sum(counts)
    assert tokens == pytest.approx(
        count + sum(sum(order.taken[:length]) for order, length in zip(orders, counts, strict=True))
    )
    assert rows == count or is_affordable(tokens / count, relative[rows] / relative[count], dearest)
    assert tokens / relative[rows] == pytest.approx(value)


@given(st.lists(sources(nodes=4), min_size=2, max_size=3), st.data(), st.integers(0, 9), st.floats(1, 4))
@settings(max_examples=300)
def test_the_trees_of_several_texts_are_the_best_of_all_trees(
    chosen: list[Spelled], data: st.DataObject, more: int, dearest: float
) -> None:
    count = len(chosen)
    relative = data.draw(stairs(count + more + 1))
    orders = [Branches([source], TEXT, MANY, MANY) for source in chosen]
    counts, tokens = best_prefix(orders, Limits(relative, slopes(relative), count + more, dearest, count))
    found = [spelled([source], TEXT, MANY) for source in chosen]
    value = count / relative[count]
    for trees in product(*[list(subtrees(places, more)) for places in found]):
        rows = count + sum(map(len, trees))
        if rows <= count + more and relative[rows] / relative[count] <= dearest:
            reach = sum(places[node].reach for places, tree in zip(found, trees, strict=True) for node in tree)
            value = max(value, (count + reach) / relative[rows])
    assert tokens / relative[count + sum(counts)] == pytest.approx(value)


def test_no_text_waits_longer_for_the_guesses_of_another_than_it_may() -> None:
    relative = [1.0, 1.0, 1.0, 1.3, 1.6, 1.9, 2.2, 2.5, 2.8]
    limits = Limits(relative, slopes(relative), 8, 9.0, 2, max_wait=1.6)
    sure = [1.0] * 6
    assert best_prefix([Chain(sure)], limits, chains=True)[0] == [2]
    assert best_prefix([Chain(sure)], limits._replace(max_wait=inf), chains=True)[0] == [6]
    assert best_prefix([Chain([0.9]), Chain(sure)], limits, chains=True)[0] == [1, 5], "its own guess makes up for it"


def test_a_cliff_is_passed_by_two_texts_that_neither_would_pass_alone() -> None:
    # The third row is dear and the fourth is free.
    relative = [1.0, 1.0, 1.2, 2.2, 2.2]
    limits = Limits(relative, slopes(relative), 4, 9.0, 2)
    assert best_prefix([Chain([0.9])], limits)[0] == [0]
    assert best_prefix([Chain([0.9]), Chain([0.9])], limits)[0] == [1, 1]

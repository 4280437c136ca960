"""The tree of a sequence's most probable drafts, and the step of several sequences with the most tokens a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.auto.draft import MIN_PROBABILITY, Draft, Drafted, Limits, Source, best_step
from lacli.auto.step_cost import StepCostModel
from lacli.tree import Tree

Words = Mapping[tuple[int, ...], Sequence[tuple[int, float]]]


class Listed(Source):
    """A source with these drafts and probabilities by the path before them: {(): [(1, 0.5)], (1,): [(2, 0.9)]}."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._paths: list[tuple[int, ...]] = [()]

    def first(self, tokens: Sequence[int]) -> list[Drafted]:
        return self._below(())

    def after(self, drafted: Drafted) -> list[Drafted]:
        return self._below(self._paths[drafted.place])

    def _below(self, path: tuple[int, ...]) -> list[Drafted]:
        found = []
        for token, probability in self._words.get(path, ()):
            self._paths.append((*path, token))
            found.append(Drafted(token, probability, len(self._paths) - 1, len(path)))
        return found


def taken(draft: Draft) -> list[tuple[int, object]]:
    """Return the depth and the probability of each node, in the order of `draft.take`."""
    chances = []
    while draft.chance:
        chance = draft.chance
        if draft.take():
            chances.append(chance)
    tree = Tree(0)
    draft.plant(tree, len(chances))
    return [(tree.depths[node], pytest.approx(chance)) for node, chance in enumerate(chances, start=1)]


def drafted(*sources: Source, leaves: int = 9, nodes: int = 63) -> Draft:
    return Draft(sources, [0], leaves, nodes)


WORDS: Words = {(): [(1, 0.6), (2, 0.3)], (1,): [(3, 0.9)], (2,): [(4, 0.9)], (1, 3): [(5, 0.1)]}


def test_the_most_probable_node_comes_first_and_is_worth_the_product_of_its_path() -> None:
    expected = [(1, 0.6), (2, 0.54), (1, 0.3)]
    found = taken(drafted(Listed(WORDS)))
    assert found[:3] == expected and len(found) == 5


def test_nodes_that_are_hardly_ever_accepted_are_left_out() -> None:
    words = {(): [(1, 0.5)], (1,): [(2, 0.1)], (1, 2): [(3, 1.9 * MIN_PROBABILITY / 0.1)]}
    assert [depth for depth, _ in taken(drafted(Listed(words)))] == [1, 2]


@pytest.mark.parametrize(("leaves", "nodes", "most"), [(1, 63, 3), (2, 63, 5), (9, 2, 2)])
def test_it_has_at_most_so_many_branches_and_nodes(leaves: int, nodes: int, most: int) -> None:
    draft = drafted(Listed(WORDS), leaves=leaves, nodes=nodes)
    assert len(taken(draft)) == most


def test_two_drafts_of_one_token_are_one_node_as_probable_as_the_surer_one_and_others_are_worth_less() -> None:
    for ours, theirs in ([(1, 0.5)], [(1, 0.8), (2, 0.5)]), ([(1, 0.8)], [(2, 0.5)]):
        assert taken(drafted(Listed({(): ours}), Listed({(): theirs}))) == [(1, 0.8), (1, 0.5 * 0.2 / 0.6)]


def test_a_chain_is_in_the_sequence_itself_and_each_branch_in_one_of_its_own() -> None:
    one: Words = {(): [(1, 0.9)], (1,): [(2, 0.9)]}
    two: Words = {(): [(1, 0.9), (2, 0.9)]}
    for words, expected in ((one, [[0], [0], [0]]), (two, [[0, 1, 2], [1], [2]])):
        draft, tree = drafted(Listed(words)), Tree(0)
        count = len(taken(draft))
        draft.plant(tree, count)
        assert tree.ids == expected


rates = st.lists(st.floats(0.05, 1.0), max_size=5)
staircase = st.lists(st.floats(1.0, 6.0), min_size=16, max_size=16)


def chain(chances: Sequence[float]) -> Draft:
    words = {tuple(range(depth)): [(depth, chance)] for depth, chance in enumerate(chances)}
    return drafted(Listed(words))


def limits(costs: Sequence[float], **others: float) -> Limits:
    slopes = [
        min([(costs[more] - costs[rows]) / (more - rows) for more in range(rows + 1, len(costs))], default=inf)
        for rows in range(len(costs))
    ]
    chosen = {"max_rows": 15, "margin": 1.0, "max_cost": inf, "max_wait": inf, **others}
    return Limits(costs, slopes, **chosen)  # type: ignore[arg-type]  # rows are whole numbers


@given(st.lists(rates, min_size=1, max_size=3), staircase)
@settings(max_examples=300)
def test_no_other_beginning_of_the_merged_drafts_brings_more_for_what_it_costs(
    chances: list[list[float]], costs: list[float]
) -> None:
    sequences = len(chances)
    costs[: sequences + 1] = [1.0] * (sequences + 1)
    drafts = [chain(each) for each in chances]
    counts, cost = best_step(drafts, sequences, limits(costs))
    reaches = []
    for each in chances:
        reach = 1.0
        for chance in each:
            reach *= chance
            reaches.append(reach)
    order = sorted([reach for reach in reaches if reach >= MIN_PROBABILITY], reverse=True)[: 15 - sequences]
    values = [(sequences + sum(order[:count])) / costs[sequences + count] for count in range(len(order) + 1)]
    assert values[sum(counts)] == pytest.approx(max(values), rel=1e-6)
    assert cost == costs[sequences + sum(counts)]


def test_a_step_that_does_not_beat_the_margin_has_no_drafts() -> None:
    costs = [1.0, 1.0, 1.5, 2.0]
    assert best_step([chain([0.9])], 1, limits(costs, max_rows=3, margin=1.2)) == ([1], 1.5)
    assert best_step([chain([0.9])], 1, limits(costs, max_rows=3, margin=1.3)) == ([0], 1.0)


@pytest.mark.parametrize(
    ("overdraft", "max_cost", "cost"), [(0.0, 2.0, 2.0), (1.0, 2.0, 3.0), (9.0, 2.0, 5.5), (9.0, 1.0, 1.0)]
)
def test_a_step_costs_at_most_what_the_budget_has_and_half_of_what_it_promises_beyond(
    overdraft: float, max_cost: float, cost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.auto.draft.MAX_OVERDRAFT", overdraft)
    costs = [1.0, *[1 + 0.5 * rows for rows in range(15)]]
    assert best_step([chain([1.0] * 9)], 1, limits(costs, max_cost=max_cost))[1] == cost


def test_no_sequence_waits_long_for_the_drafts_of_others() -> None:
    costs = [1.0, 1.0, 1.0, *[1 + 0.3 * rows for rows in range(1, 14)]]
    counts, cost = best_step([chain([1.0] * 9), chain([])], 2, limits(costs, max_wait=1.5))
    assert (counts, cost) == ([1, 0], 1.3)


def test_rows_of_prompts_are_decoded_anyway() -> None:
    model = StepCostModel(16)
    assert model.costs_for(1, 4)[0][1:3] == pytest.approx([1.0, (1 + 5 * 0.35) / (1 + 4 * 0.35)])
    assert model.costs_for(2)[0][2:4] == pytest.approx([1.0, 1.7 / 1.35])

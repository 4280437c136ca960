"""How branches are divided: each once, with all that lies above it, so that all replicas have done at about one time.

The best division is found by trying every one that leaves neighbours together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations_with_replacement, pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.pool import NgramPool
from lacli.replicas.partition import CATCH_UP_STEPS, Load, Part, partition, paths_of
from lacli.settings import DecodeSettings, window_rows
from lacli.tree import ROOT, Origin, Tree
from lacli.window import WindowBranch

guesses = st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.booleans()), max_size=9)
"""Paths below the input, and whether all of their choices are wanted or the last one's only."""

fixed = st.floats(1e-3, 10)
row = st.one_of(st.just(0.0), st.floats(1e-3, 1))
loads = st.lists(st.builds(Load, fixed, row, st.integers(0, 12), st.integers(2, 60)), min_size=1, max_size=3)


def tree_of(paths: Sequence[tuple[Sequence[int], bool]]) -> Tree:
    tree = Tree(9)
    for sequence, (path, wanted) in enumerate(paths, start=1):
        end = tree.add_path(path, sequence, Origin.POOL, verify=wanted)
        tree.verified[end] = True
    return tree


def leaves(count: int) -> Tree:
    """So many guesses of one token."""
    return tree_of([([token], True) for token in range(count)])


def rows_below(paths: dict[int, list[int]], branches: Sequence[int]) -> int:
    return len(set(chain.from_iterable(paths[branch] for branch in branches)))


def slowest(paths: dict[int, list[int]], loads: Sequence[Load], divided: Sequence[Sequence[int]]) -> float:
    """When all have done; who has no branches does nothing."""
    times = [
        load.seconds(rows_below(paths, branches)) for load, branches in zip(loads, divided, strict=True) if branches
    ]
    return max(times, default=0.0)


def best(paths: dict[int, list[int]], loads: Sequence[Load]) -> float:
    """The shortest time of all divisions that give the loads neighbours in this order."""
    order = sorted(paths, key=paths.__getitem__)
    places = range(len(order) + 1)
    cuts = combinations_with_replacement(places, len(loads) - 1)
    ends = ((0, *inner, len(order)) for inner in cuts)
    return min(slowest(paths, loads, [order[begin:end] for begin, end in pairwise(each)]) for each in ends)


def able(paths: dict[int, list[int]], loads: list[Load]) -> list[Load]:
    """Loads, one of which can take the whole step."""
    first = loads[0]
    return [first._replace(max_rows=max(first.max_rows, 1 + first.behind + rows_below(paths, [*paths]))), *loads[1:]]


@given(guesses, loads)
@settings(max_examples=400)
def test_a_division_deals_every_branch_once_and_is_as_quick_as_the_best_one_of_neighbours(
    guessed: list[tuple[list[int], bool]], loads: list[Load]
) -> None:
    paths = paths_of(tree_of(guessed))
    loads = able(paths, loads)
    divided = partition(paths, loads)
    assert slowest(paths, loads, divided) <= 1.03 * best(paths, loads)
    assert sorted(chain.from_iterable(divided)) == sorted(paths)
    for load, branches in zip(loads, divided, strict=True):
        assert not branches or 1 + load.behind + rows_below(paths, branches) <= load.max_rows


@given(guesses, loads)
@settings(max_examples=200)
def test_a_part_is_what_the_tree_says_of_its_branches(guessed: list[tuple[list[int], bool]], loads: list[Load]) -> None:
    tree = tree_of(guessed)
    paths = paths_of(tree)
    for branches in partition(paths, able(paths, loads)):
        part = Part(tree, branches, paths)
        own = {node for node, ids in enumerate(tree.sequences) if node == ROOT or set(ids) & set(branches)}
        assert part.nodes == sorted(own)
        assert all(tree.parents[node] in own for node in part.nodes)
        assert part.tokens == [tree.tokens[node] for node in part.nodes]
        assert part.depths == [tree.depths[node] for node in part.nodes]
        assert part.verified == [tree.verified[node] for node in part.nodes]
        assert part.sequences[ROOT][0] == 0 and sorted(part.sequences[ROOT][1:]) == sorted(branches)
        for node, ids in zip(part.nodes[1:], part.sequences[1:], strict=True):
            assert sorted(ids) == sorted(set(tree.sequences[node]) & set(branches))


def test_the_paths_of_a_tree_are_its_branches_from_the_top_and_a_chain_stays_in_its_sequence() -> None:
    assert paths_of(tree_of([([1, 2], True), ([1, 3], True), ([1, 2], True)])) == {1: [1, 2], 2: [1, 3], 3: [1, 2]}
    chained = Tree(9)
    chained.add_path([4, 5], 0, Origin.CHAIN)
    assert paths_of(chained) == {0: [1, 2]}
    assert paths_of(Tree(9)) == {}
    part = Part(chained, [0], paths_of(chained))
    assert part.sequences == [[0], [0], [0]] == chained.sequences


def rows_of(count: int, *loads: Load) -> list[int]:
    return [len(branches) for branches in partition(paths_of(leaves(count)), loads)]


def test_one_that_is_twice_as_fast_gets_twice_the_rows() -> None:
    # With the input of each: (1 + n) s and 2 (1 + m) s, where n + m is 30.
    fast, slow = rows_of(30, Load(0.0, 1.0, 0, 99), Load(0.0, 2.0, 0, 99))
    assert abs((1 + fast) - 2 * (1 + slow)) <= 2


def test_one_that_lacks_ten_tokens_gets_ten_rows_less() -> None:
    ahead, behind = rows_of(30, Load(1.0, 1.0, 0, 99), Load(1.0, 1.0, 10, 99))
    assert abs(ahead - behind - 10) <= 1


def test_one_whose_call_alone_takes_longer_than_all_rows_elsewhere_gets_none() -> None:
    assert rows_of(30, Load(1.0, 0.1, 0, 99), Load(5.0, 0.0, 0, 99)) == [30, 0]
    assert rows_of(30, Load(5.0, 0.0, 0, 99), Load(1.0, 0.1, 0, 99)) == [0, 30]


def test_where_rows_cost_nothing_one_gets_them_all() -> None:
    assert sorted(rows_of(30, Load(1.0, 0.0, 0, 99), Load(1.0, 0.0, 0, 99))) == [0, 30]


def test_what_no_batch_of_one_can_take_the_others_get() -> None:
    # A batch of 8 has room for the input, 3 tokens that are lacking and 4 rows.
    assert rows_of(30, Load(1.0, 0.1, 3, 8), Load(100.0, 10.0, 0, 31)) == [4, 26]
    assert rows_of(30, Load(1.0, 0.1, 8, 8), Load(100.0, 10.0, 0, 31)) == [0, 30]


def test_a_step_without_guesses_has_nothing_to_deal() -> None:
    assert partition({}, [Load(1.0, 0.1, 0, 9), Load(1.0, 0.1, 0, 9)]) == [[], []]


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_the_columns_of_a_window_come_out_even(devices: int) -> None:
    """Section 3.4 of the paper: every device has row 0 up to its columns, and the columns below it once."""
    chosen = DecodeSettings(mode="lookahead", window=15, ngram=5)
    columns = WindowBranch(chosen, NgramPool(5, 15, 1000), 4000, lambda token: False)
    columns.open(range(1000, 1040), chosen.window)
    tree = Tree(1000)
    columns.add(tree)
    paths = paths_of(tree)
    divided = partition(paths, [Load(0.0, 1.0, 0, 999)] * devices)
    parts = [rows_below(paths, branches) for branches in divided if branches]
    repeated = sum(parts) - (len(tree) - 1)
    assert len(parts) == devices and 0 <= repeated < devices * chosen.window
    # The deepest column is one branch, which nobody can take apart.
    assert max(parts) <= window_rows(15, 5) / devices + chosen.window + chosen.ngram


@given(fixed, row, st.integers(0, 12), st.integers(1, 60), st.integers(0, 60))
def test_the_rows_that_fit_into_a_time_are_those_that_take_it(
    fixed: float, row: float, behind: int, most: int, rows: int
) -> None:
    load = Load(fixed, row, behind, most)
    seconds = load.seconds(rows)
    if 1 + rows + behind > most:
        assert seconds == inf
        return
    assert seconds == pytest.approx(fixed + row * (1 + rows + behind))
    fits = load.rows_within(seconds)
    assert rows <= fits <= most and (row == 0 or fits == rows)
    assert load.rows_within(fixed / 2) == 0


@given(fixed, row, st.integers(0, 40), st.integers(0, 20))
def test_what_one_lacks_counts_little_where_it_takes_the_next_steps_too(
    fixed: float, row: float, behind: int, rows: int
) -> None:
    load = Load(fixed, row, behind, 64)
    assert load.seconds_from_now_on(rows) == pytest.approx(
        sum([load.seconds(rows), *[load._replace(behind=0).seconds(rows)] * (CATCH_UP_STEPS - 1)]) / CATCH_UP_STEPS
    )

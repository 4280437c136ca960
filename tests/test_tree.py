"""A step's tree of drafts, the walk along accepted drafts, and the tree's batch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lacli import batch
from lacli.settings import DecodeSettings
from lacli.tree import ROOT, Origin, Tree
from lacli.verify import verify_tree
from lacli.window import Window

paths = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8)


def grown(guesses: list[list[int]], *, verify: bool = True) -> Tree:
    tree = Tree(9)
    for sequence, path in enumerate(guesses, start=1):
        tree.add_path(path, sequence, Origin.POOL, verify=verify)
    return tree


def test_paths_that_begin_alike_share_nodes() -> None:
    tree = grown([[1, 2], [1, 3], [4]])
    assert tree.tokens == [9, 1, 2, 3, 4]
    assert tree.depths == [0, 1, 2, 2, 1]
    assert tree.ids == [[0, 1, 2, 3], [1, 2], [1], [2], [3]]


@given(paths, st.lists(st.integers(0, 3), max_size=5))
def test_missing_says_what_adding_appends(guesses: list[list[int]], path: list[int]) -> None:
    tree = grown(guesses)
    missing, before = tree.missing(path), len(tree)
    tree.add_path(path, 99, Origin.POOL)
    assert len(tree) - before == missing


@given(paths, st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_the_walk_accepts_the_longest_agreeing_path_and_one_more(guesses: list[list[int]], text: list[int]) -> None:
    tree = grown(guesses)
    asked: list[int] = []

    def choose(node: int) -> int:
        asked.append(node)
        return text[tree.depths[node]]

    path = verify_tree(tree, choose, lambda token, count: None)
    agreeing = 0
    while any(guess[: agreeing + 1] == text[: agreeing + 1] for guess in guesses if len(guess) > agreeing):
        agreeing += 1
    assert path.tokens == text[: agreeing + 1]
    assert path.finish is None
    assert len(path.nodes) == agreeing
    assert asked == [ROOT, *path.nodes], "one choice for each accepted node, none twice"


def test_the_walk_stops_at_an_unknown_choice() -> None:
    tree = grown([[1, 2]], verify=False)
    assert verify_tree(tree, lambda node: 1, lambda token, count: None).tokens == [1]


@given(paths, st.integers(1, 6))
def test_the_walk_asks_for_no_choice_after_the_text_has_ended(guesses: list[list[int]], last: int) -> None:
    tree = grown(guesses)
    asked: list[int] = []

    def choose(node: int) -> int:
        asked.append(node)
        return 0

    path = verify_tree(tree, choose, lambda token, count: "length" if count == last else None)
    assert len(asked) == len(path.tokens) <= last
    assert (path.finish == "length") == (len(path.tokens) == last)


@given(paths, paths)
def test_reachable_counts_what_some_text_would_accept(verified: list[list[int]], others: list[list[int]]) -> None:
    tree = grown(verified)
    for sequence, path in enumerate(others, start=50):
        tree.verified[tree.add_path(path, sequence, Origin.WINDOW, verify=False)] = True
    reached: set[int] = set()
    for text in ([*path, -1] for path in [*verified, *others]):
        choices = [text[min(depth, len(text) - 1)] for depth in tree.depths]
        reached.update(verify_tree(tree, choices.__getitem__, lambda token, count: None).nodes)
    assert sorted(map(str, tree.reachable())) == sorted(str(tree.origins[node]) for node in reached)


attached = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=8)
"""Nodes to add: the number of the parent, modulo the number of nodes, and a token."""


def attach_all(nodes: list[tuple[int, int]]) -> Tree:
    tree = Tree(9)
    for above, token in nodes:
        parent = above % len(tree)
        if token not in tree.guesses(parent):
            tree.add_node(parent, token, Origin.SUFFIX)
    return tree


@given(attached, st.integers(1, 20))
def test_of_attached_nodes_each_leaf_gets_a_sequence_and_the_nodes_above_it_too(
    nodes: list[tuple[int, int]], first: int
) -> None:
    tree = attach_all(nodes)
    tree.assign_ids(first)
    leaves = [node for node in range(1, len(tree)) if node not in tree.parents[1:]]
    assert tree.ids[ROOT] == [0, *range(first, first + len(leaves))]
    for sequence, leaf in enumerate(leaves, start=first):
        owned = [node for node in range(len(tree)) if sequence in tree.ids[node]]
        above = [leaf]
        while above[0]:
            above.insert(0, tree.parents[above[0]])
        assert owned == above
    assert all(tree.ids[node] for node in range(len(tree)))


def test_a_shared_node_is_verified_if_any_path_wants_it() -> None:
    tree = Tree(9)
    tree.add_path([1, 2], 1, Origin.WINDOW, verify=False)
    tree.add_path([1], 2, Origin.POOL)
    assert tree.verified == [True, True, False]
    assert tree.origins[1] is Origin.WINDOW


def test_a_batch_has_a_row_for_each_node_at_its_depth_and_a_prompts_is_a_chain_without_outputs() -> None:
    rows = batch.Batch(4).set_tree(grown([[1, 2], [1, 3]]), past=40)
    assert rows.tokens.tolist() == [9, 1, 2, 3]
    assert rows.positions.tolist() == [40, 41, 42, 42]
    assert rows.sequence_counts.tolist() == [3, 2, 1, 1]
    assert rows.sequence_ids[:7].tolist() == [0, 1, 2, 1, 2, 1, 2]
    assert rows.outputs.tolist() == [1, 1, 1, 1]
    rows = batch.from_tokens([5, 6, 7], past=2)
    assert rows.positions.tolist() == [2, 3, 4]
    assert rows.sequence_ids.tolist() == [0, 0, 0]
    assert not rows.outputs.any()


def test_a_batch_is_written_again_and_again_and_each_row_points_at_its_own_ids() -> None:
    rows = batch.Batch(6)
    for guesses in ([[1]], [[1, 2], [1, 3]], [[path] for path in range(5)], [[1, 2], [1, 3]]):
        tree = grown(guesses)
        rows.set_tree(tree, past=7)
        assert len(rows) == len(tree)
        found = [
            np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(ctypes.c_int32)), (int(count),)).tolist()
            for address, count, _ in zip(rows.sequence_pointers, rows.sequence_counts, range(len(rows)), strict=False)
        ]
        assert found == tree.ids
        assert rows.positions[: len(rows)].tolist() == [7 + depth for depth in tree.depths]


def test_the_picture_of_a_step_equals_the_step() -> None:
    tree = Tree(0)
    for candidate in range(2):
        tree.add_path([1000 + 10 * candidate + depth for depth in range(3)], 6 + candidate, Origin.POOL)
    window = Window(5, 4, [0])
    window.rows = [[100 * row + column for column in range(5)] for row in range(3)]
    window.add_to(tree)
    drawn = {line[:17].strip(): line[17:] for line in (batch.__doc__ or "").splitlines() if line.startswith("    ")}

    def line(marks: Sequence[object]) -> str:
        return "".join(f"{mark:>2} " for mark in marks).rstrip()

    assert drawn["row"].split() == [str(row) for row in range(len(tree))]
    assert drawn["position"].split() == [str(depth) for depth in tree.depths]
    assert drawn["choice"].rstrip() == line(["=" if wanted else "" for wanted in tree.verified])[1:]
    for sequence in range(8):
        marks = ["*" if sequence in owners else "" for owners in tree.ids]
        assert drawn[f"id {sequence}"].rstrip() == line(marks)[1:]


def test_the_reference_settings_have_the_reference_shape() -> None:
    """llama.cpp's example has 120 rows, 76 of them with outputs, and 31 sequence ids for W=15 N=5 G=15."""
    settings = DecodeSettings(mode="lookahead")
    assert (settings.max_rows, settings.max_outputs, settings.ids) == (120, 76, 31)

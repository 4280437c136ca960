"""The lookahead window: paths, n-grams, sliding, narrowing; its branch of a step, and what is taken from its ends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.pool import NgramPool
from lacli.settings import DecodeSettings, WindowInit, window_rows
from lacli.tree import Origin, Tree
from lacli.window import Window, WindowBranch


def counting(first: int = 100) -> Callable[[], int]:
    numbers = count(first)
    return lambda: next(numbers)


def filled(rows: list[list[int]]) -> Window:
    window = Window(len(rows[0]), len(rows) + 1, counting())
    window.rows = [list(row) for row in rows]
    return window


def test_a_path_runs_along_row_zero_and_then_down_its_column() -> None:
    window = filled([[0, 1, 2], [10, 11, 12], [20, 21, 22]])
    assert list(window.paths()) == [[10, 20], [1, 11, 21], [1, 2, 12, 22]]


def test_an_ngram_is_a_column_and_its_result_and_the_first_begins_with_the_input() -> None:
    window = filled([[0, 1, 2], [10, 11, 12]])
    window.slide([20, 21, 22])
    assert list(window.ngrams(77, [5, 6, 7])) == [(77, (20, 5)), (11, (21, 6)), (12, (22, 7))]


def found(window: Window, *steps: list[int | None]) -> list[list[int]]:
    """The ends of each step's n-grams."""
    ends = []
    for results in steps:
        ends.append([continuation[-1] for _, continuation in window.ngrams(0, [token or -1 for token in results])])
        window.slide(results)
    return ends


def test_no_ngram_holds_a_first_guess_behind_its_first_token() -> None:
    window = Window(2, 5, counting())
    assert found(window, [1, 2], [3, 4], [5, 6], [7, 8], [9, 10]) == [[], [], [], [7, 8], [9, 10]]
    assert found(Window(2, 2, counting()), [1, 2]) == [[1, 2]], "the results alone follow the first token"


def test_a_column_with_a_guess_in_the_place_of_a_result_has_no_ngrams_until_it_is_the_first_token() -> None:
    window = Window(2, 4, counting())
    assert found(window, [1, 2], [3, None], [4, 5], [6, 7], [8, 9]) == [[], [], [4], [6], [8, 9]]


def test_columns_that_are_refilled_or_narrowed_away_have_no_ngrams() -> None:
    window = Window(3, 3, counting())
    found(window, [1, 2, 3])
    window.shift(1)
    assert found(window, [4, 5, 6], [7, 8, 9]) == [[4, 5], [7, 8, 9]]
    window.narrow(1)
    assert found(window, [1]) == [[1]]


def test_shifting_drops_leading_columns_and_refills_at_the_end() -> None:
    window = filled([[0, 1, 2], [10, 11, 12]])
    window.shift(2)
    assert [row[0] for row in window.rows] == [2, 12]
    assert all(token >= 100 for row in window.rows for token in row[1:])


def test_guesses_are_placed_by_the_position_they_are_for() -> None:
    window = Window(3, 4, counting(), guesses=[1, 2, 3])
    assert [row[:] for row in window.rows] == [[100, 1, 2], [1, 2, 3], [2, 3, 101]]


@given(st.integers(0, 6), st.integers(2, 6), st.integers(0, 8))
def test_every_shape_survives_its_changes(width: int, ngram: int, columns: int) -> None:
    window = Window(width, ngram, counting())
    window.slide(list(range(width)))
    window.shift(columns)
    window.narrow(width // 2)
    assert [len(row) for row in window.rows] == [width // 2] * (ngram - 1)
    assert [len(path) for path in window.paths()] == [column + ngram - 2 for column in range(width // 2)]


VOCABULARY = 1000
TEXT = [7, 3, 5]

widths = st.integers(0, 7)
ngrams = st.integers(2, 5)


def opened(width: int, ngram: int = 4, *, end: int = -1, init: WindowInit = "random", **chosen: object) -> WindowBranch:
    settings = DecodeSettings(mode="auto", window=15, ngram=ngram, window_init=init, **chosen)  # type: ignore[arg-type]
    columns = WindowBranch(settings, NgramPool(ngram, 50), VOCABULARY, lambda token: token == end)
    columns.open(TEXT, width)
    return columns


def grown(columns: WindowBranch) -> Tree:
    tree = Tree(TEXT[-1])
    columns.add(tree)
    return tree


def paths(tree: Tree, width: int) -> list[list[int]]:
    """The tokens of each column's sequence, the input not counted."""
    return [
        [tree.tokens[node] for node in range(1, len(tree)) if column in tree.sequences[node]]
        for column in range(1, width + 1)
    ]


@given(widths, ngrams)
def test_each_column_has_a_sequence_and_its_rows(width: int, ngram: int) -> None:
    columns = opened(width, ngram)
    tree = grown(columns)
    assert tree.sequences[0] == list(range(width + 1))
    assert [len(path) for path in paths(tree, width)] == [column + ngram - 2 for column in range(width)]
    # Random tokens of a large vocabulary: hardly ever do two paths begin alike but where they share the first row.
    assert len(tree) - 1 <= columns.rows == window_rows(width, ngram)


@given(widths, ngrams)
def test_only_the_choice_after_each_column_is_read(width: int, ngram: int) -> None:
    tree = grown(opened(width, ngram))
    ends = {0, *(len_path_end(tree, column) for column in range(1, width + 1))}
    assert set(tree.outputs()) == ends


def len_path_end(tree: Tree, column: int) -> int:
    """The last node of a column's sequence."""
    return max(node for node in range(len(tree)) if column in tree.sequences[node])


@given(widths, ngrams, st.integers(0, 40))
def test_a_window_is_narrowed_until_it_fits(width: int, ngram: int, most: int) -> None:
    columns = opened(width, ngram)
    columns.narrow(most)
    assert columns.rows <= most
    fitting = max(each for each in range(width + 1) if window_rows(each, ngram) <= most)
    assert columns.rows == window_rows(fitting, ngram)
    assert len(grown(columns).sequences[0]) == 1 + fitting


@given(st.integers(1, 7), st.integers(3, 5))
def test_what_a_column_found_goes_into_the_pool(width: int, ngram: int) -> None:
    columns = opened(width, ngram)
    for _ in range(ngram - 2):
        # Until then there are guesses that the model has not computed.
        tree = grown(columns)
        columns.take(tree, dict.fromkeys(range(len(tree)), 800), 1)
    tree = grown(columns)
    ends = [len_path_end(tree, column) for column in range(1, width + 1)]
    choices = {end: 900 + column for column, end in enumerate(ends)}
    expected = [[TEXT[-1], *paths(tree, width)[0]]]
    expected += [path[column - 1 :] for column, path in enumerate(paths(tree, width)) if column]
    columns.take(tree, choices, 1)
    for column, (key, *following) in enumerate(expected):
        assert (*following, 900 + column) in list(columns._pool.lookup(key))


@given(st.integers(1, 7), st.integers(3, 5))
def test_after_a_step_the_rows_have_moved_up_and_the_choices_are_the_last_one(width: int, ngram: int) -> None:
    columns = opened(width, ngram)
    before = [list(row) for row in columns._window.rows]
    tree = grown(columns)
    choices = {len_path_end(tree, column): 900 + column for column in range(1, width + 1)}
    columns.take(tree, choices, 3)
    assert columns._window.rows == [*before[1:], [900 + column for column in range(1, width + 1)]]


def test_an_end_token_is_no_guess() -> None:
    columns = opened(4, end=901)
    tree = grown(columns)
    columns.take(tree, {len_path_end(tree, column): 900 + column for column in range(1, 5)}, 1)
    assert 901 not in columns._window.rows[-1]
    assert columns._window.rows[-1][1:] == [902, 903, 904]


def test_columns_that_the_text_has_overtaken_are_refilled_where_that_is_asked_for() -> None:
    columns = opened(5, window_shift="refill")
    tree = grown(columns)
    choices = {len_path_end(tree, column): 900 + column for column in range(1, 6)}
    columns.take(tree, choices, 3)
    assert columns._window.rows[-1][:3] == [903, 904, 905]


@pytest.mark.parametrize("init", ["prompt", "random", "pool"])
def test_a_window_opened_again_begins_alike(init: WindowInit) -> None:
    one, other = opened(5, init=init), opened(5, init=init)
    other.open([9, 9], 3)
    other.open(TEXT, 5)
    assert grown(one).tokens == grown(other).tokens


def test_the_pool_gives_the_first_guesses_where_that_is_asked_for() -> None:
    columns = opened(5, init="pool")
    columns._pool.insert(TEXT[-1], (11, 12, 13))
    columns.open(TEXT, 5)
    assert paths(grown(columns), 5)[0][:2] == [11, 12]
    columns = opened(5, init="prompt")
    assert set(grown(columns).tokens) <= set(TEXT)


def test_without_columns_a_step_has_none() -> None:
    columns = opened(0)
    tree = grown(columns)
    assert columns.rows == 0 and len(tree) == 1 and tree.sequences == [[0]]
    assert all(origin is not Origin.WINDOW for origin in tree.origins)
    columns.take(tree, {}, 1)

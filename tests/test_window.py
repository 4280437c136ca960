"""The lookahead window: paths, n-grams, sliding, narrowing, its rows in a step, and the n-grams that it finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lacli.modes import Lookahead, Outcome
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings, window_rows
from lacli.tree import Tree
from lacli.window import Window

DRAWN = range(100, 1100)
"""The window draws from these tokens if the pool has none."""

END = 901


def is_end(token: int) -> bool:
    return token == END


def filled(rows: list[list[int]]) -> Window:
    window = Window(len(rows[0]), len(rows) + 1, DRAWN)
    window.rows = [list(row) for row in rows]
    return window


def test_a_path_runs_along_row_zero_and_then_down_its_column() -> None:
    window = filled([[0, 1, 2], [10, 11, 12], [20, 21, 22]])
    assert list(window.paths()) == [[10, 20], [1, 11, 21], [1, 2, 12, 22]]


def test_an_ngram_is_a_column_and_its_result_and_the_first_begins_with_the_input() -> None:
    window = filled([[0, 1, 2], [10, 11, 12]])
    window.slide([20, 21, 22], is_end)
    assert list(window.ngrams(77, [5, 6, 7])) == [(77, (20, 5)), (11, (21, 6)), (12, (22, 7))]


def found(window: Window, *steps: list[int]) -> list[list[int]]:
    """Slide the window by each step's results; return the last tokens of each step's n-grams."""
    ends = []
    for results in steps:
        ends.append([continuation[-1] for _, continuation in window.ngrams(0, results)])
        window.slide(results, is_end)
    return ends


def test_no_ngram_has_a_random_token_after_its_first_token() -> None:
    window = Window(2, 5, DRAWN)
    assert found(window, [1, 2], [3, 4], [5, 6], [7, 8], [9, 10]) == [[], [], [], [7, 8], [9, 10]]
    assert found(Window(2, 2, DRAWN), [1, 2]) == [[1, 2]], "an n-gram of 2 has only the result"


def test_an_end_token_is_replaced_in_the_window_and_no_ngram_has_its_replacement() -> None:
    window = Window(2, 4, DRAWN)
    assert found(window, [1, 2], [3, END], [4, 5], [6, 7], [8, 9]) == [[], [], [4], [6], [8, 9]]
    window.slide([1, END], is_end)
    assert window.rows[-1][0] == 1 and window.rows[-1][1] in DRAWN and window.rows[-1][1] != END


def test_known_tokens_fill_the_window_by_their_positions() -> None:
    first, *_ = rows = Window(3, 4, [100], guesses=[1, 2, 3]).rows
    assert first == [100, 1, 2] and rows[1:] == [[1, 2, 3], [2, 3, 100]]


widths = st.integers(0, 7)
ngrams = st.integers(2, 5)


def grown(window: Window) -> Tree:
    tree = Tree(5)
    window.add_to(tree)
    return tree


def paths(tree: Tree, width: int) -> list[list[int]]:
    """Return the tokens of each column's id, without the input."""
    return [
        [tree.tokens[node] for node in range(1, len(tree)) if column in tree.ids[node]]
        for column in range(1, width + 1)
    ]


@given(widths, ngrams)
def test_each_column_has_a_sequence_and_its_rows_and_only_its_end_is_read(width: int, ngram: int) -> None:
    tree = grown(Window(width, ngram, DRAWN))
    assert tree.ids[0] == list(range(width + 1))
    assert [len(path) for path in paths(tree, width)] == [column + ngram - 2 for column in range(width)]
    assert len(tree) - 1 <= window_rows(width, ngram)
    ends = (max(node for node in range(len(tree)) if column in tree.ids[node]) for column in range(1, width + 1))
    assert {node for node, wanted in enumerate(tree.verified) if wanted} == {0, *ends}


@given(widths, ngrams, st.integers(0, 40))
def test_a_window_is_narrowed_until_it_fits(width: int, ngram: int, most: int) -> None:
    window = Window(width, ngram, DRAWN)
    window.narrow(most)
    assert window.width == max(each for each in range(width + 1) if window_rows(each, ngram) <= most)
    assert len(grown(window).ids[0]) == 1 + window.width
    assert all(len(row) == window.width for row in window.rows)


@given(st.integers(1, 7), st.integers(3, 5))
def test_what_a_column_found_goes_into_the_pool_and_the_rows_move_up(width: int, ngram: int) -> None:
    pool = NgramPool(ngram, 50)
    settings = DecodeSettings(mode="lookahead", window=width, ngram=ngram, guesses=0, pool_prompt=False)
    mode = Lookahead(settings, pool, is_end)
    mode.begin([*DRAWN, 5])
    for step in range(ngram - 1):
        # Before the last step the window still has tokens that the model has not computed.
        assert not pool.statistics().ngrams
        before = [list(row) for row in mode._window.rows]
        tree = mode.grow([5], 1000)
        choices = {end: 800 + 10 * step + column for column, end in enumerate(mode._window._ends)}
        mode.observe(tree, Outcome(choices, [], len(tree), 1.0))
        assert mode._window.rows == [*before[1:], [*choices.values()]]
    expected = [[5, *paths(tree, width)[0]]]
    expected += [path[column - 1 :] for column, path in enumerate(paths(tree, width)) if column]
    for (key, *following), choice in zip(expected, choices.values(), strict=True):
        assert (*following, choice) in list(pool.lookup(key))


def test_a_window_begins_with_what_the_pool_knows_and_always_alike() -> None:
    def opened() -> Lookahead:
        pool = NgramPool(4, 4)
        pool.insert(5, (11, 12, 13))
        mode = Lookahead(DecodeSettings(mode="lookahead", window=5, ngram=4, pool_prompt=False), pool, is_end)
        mode.begin([7, 3, 5])
        return mode

    assert paths(opened().grow([7, 3, 5], 100), 5)[0][:2] == [11, 12]
    assert opened()._window.rows == opened()._window.rows

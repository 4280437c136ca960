"""The lookahead window: paths, n-grams, sliding once, dropping and refilling, narrowing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from lacli.window import Window


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


def test_with_bigrams_a_path_is_row_zero_alone() -> None:
    assert list(filled([[0, 1, 2]]).paths()) == [[], [1], [1, 2]]


def test_an_ngram_is_a_column_and_its_result_and_the_first_begins_with_the_input() -> None:
    window = filled([[0, 1, 2], [10, 11, 12]])
    assert list(window.ngrams(77, [5, 6, 7])) == [(77, (10, 5)), (1, (11, 6)), (2, (12, 7))]


def test_sliding_moves_rows_up_and_the_results_in() -> None:
    window = filled([[0, 1], [10, 11], [20, 21]])
    window.slide([30, 31])
    assert window.rows == [[10, 11], [20, 21], [30, 31]]


def test_shifting_drops_leading_columns_and_refills_at_the_end() -> None:
    window = filled([[0, 1, 2], [10, 11, 12]])
    window.shift(2)
    assert [row[0] for row in window.rows] == [2, 12]
    assert all(token >= 100 for row in window.rows for token in row[1:])


def test_shifting_by_more_than_the_width_refills_everything() -> None:
    window = filled([[0, 1], [10, 11]])
    window.shift(5)
    assert window.width == 2
    assert all(token >= 100 for row in window.rows for token in row)


def test_guesses_are_placed_by_the_position_they_are_for() -> None:
    window = Window(3, 4, counting(), guesses=[1, 2, 3])
    assert [row[:] for row in window.rows] == [[100, 1, 2], [1, 2, 3], [2, 3, 101]]


def test_an_empty_window_has_no_paths_and_no_ngrams() -> None:
    window = Window(0, 4, counting())
    assert list(window.paths()) == []
    assert list(window.ngrams(1, [])) == []
    window.slide([])
    window.shift(3)
    assert window.width == 0


@given(st.integers(0, 6), st.integers(2, 6), st.integers(0, 8))
def test_every_shape_survives_its_changes(width: int, ngram: int, columns: int) -> None:
    window = Window(width, ngram, counting())
    window.slide(list(range(width)))
    window.shift(columns)
    window.narrow(width // 2)
    assert [len(row) for row in window.rows] == [width // 2] * (ngram - 1)
    assert [len(path) for path in window.paths()] == [column + ngram - 2 for column in range(width // 2)]

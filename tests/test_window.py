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

"""How wide the window is: tried where it may pay, given up where it does not, wider where it does."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from lacli.auto.width import (
    FIRST,
    LONGEST,
    POSSIBLE,
    TRIAL,
    Width,
)
from lacli.settings import window_rows

MOST, NGRAM = 15, 5
ROWS = 129
FREE = [1.0] * ROWS
GPU = [1 + 0.3 * max(rows - 1, 0) / 63 for rows in range(ROWS)]
CPU = [1 + 0.3 * max(rows - 1, 0) for rows in range(ROWS)]


def driven(
    width: Width, relative: Sequence[float], steps: int, found: float, rows: int = 4, tokens: float = 2.0
) -> list[int]:
    """The columns of each step, where the window alone finds so many tokens a step on average."""
    columns, owed = [], 0.0
    for _ in range(steps):
        columns.append(width.decide(relative, rows, tokens))
        if columns[-1]:
            owed += found
            width.saw(int(owed))
            owed -= int(owed)
    return columns


def test_a_window_is_not_tried_at_once() -> None:
    assert not any(driven(Width(MOST, NGRAM, 1000), GPU, FIRST - 1, found=1))


def test_where_rows_are_dear_it_is_never_tried() -> None:
    assert not any(driven(Width(MOST, NGRAM, 1000), CPU, 20_000, found=9))


def test_where_rows_are_nearly_free_it_is_tried_with_a_few_columns_first() -> None:
    columns = driven(Width(MOST, NGRAM, 1000), GPU, FIRST + 1, found=0)
    assert 0 < columns[-1] < MOST / 2


def test_a_window_that_finds_much_becomes_as_wide_as_it_may_and_stays() -> None:
    columns = driven(Width(MOST, NGRAM, 1000), FREE, 1000, found=1)
    assert set(columns[-500:]) == {MOST}
    assert columns == sorted(columns)


def test_one_that_finds_nothing_is_given_up_after_a_trial_and_tried_more_and_more_seldom() -> None:
    columns = driven(Width(MOST, NGRAM, 1000), GPU, 50_000, found=0)
    begins = [step for step in range(1, len(columns)) if columns[step] and not columns[step - 1]]
    ends = [step for step in range(1, len(columns)) if columns[step - 1] and not columns[step]]
    assert all(end - begin == TRIAL for begin, end in zip(begins, ends, strict=False))
    pauses = [begin - end for end, begin in zip(ends, begins[1:], strict=False)]
    assert pauses == sorted(pauses) and pauses[0] < pauses[1] < pauses[2] and max(pauses) == LONGEST


def test_one_that_stops_finding_is_given_up() -> None:
    width = Width(MOST, NGRAM, 1000)
    driven(width, GPU, 500, found=1)
    assert width.columns
    assert 0 in driven(width, GPU, 100, found=0)


@given(st.floats(0, 2), st.integers(1, 64), st.floats(1, 6), st.floats(0, 1.5))
def test_what_fruitless_trials_cost_is_bounded(slope: float, rows: int, tokens: float, edge: float) -> None:
    relative = [1 + slope * max(each - 1, 0) / 63 + (edge if each > 30 else 0) for each in range(ROWS)]
    columns = driven(Width(MOST, NGRAM, 1000), relative, 6000, 0, rows, tokens)
    lost = 0.0
    for wide in columns:
        more = min(rows + window_rows(wide, NGRAM), ROWS - 1)
        lost += 1 - relative[min(rows, more)] / relative[more]
    assert lost <= POSSIBLE * sum(map(bool, columns)) + 1e-9
    assert lost <= 0.005 * len(columns)


@given(st.integers(0, 20), st.integers(2, 6), st.lists(st.tuples(st.integers(1, 64), st.integers(0, 4)), max_size=300))
def test_it_is_never_wider_than_it_may_be(most: int, ngram: int, steps: list[tuple[int, int]]) -> None:
    width = Width(most, ngram, 1000)
    for rows, found in steps:
        assert 0 <= width.decide(GPU, rows, 2.0) <= most
        if width.columns:
            width.saw(found)


def test_a_window_of_no_columns_is_never_tried() -> None:
    assert not any(driven(Width(0, NGRAM, 1000), FREE, 500, found=1))


def test_the_rows_of_a_window_cost_nothing_up_to_the_next_edge() -> None:
    edge = [1.0] * 33 + [3.0] * (ROWS - 33)
    columns = driven(Width(MOST, NGRAM, 1000), edge, 500, found=0.5, rows=4)
    assert set(columns[-100:]) == {7}

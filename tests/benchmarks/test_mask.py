"""The drawing of a step: its batch and mask, compared with the published example."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.mask import drawn, full_step, rows_of
from lacli.batch import Batch
from lacli.settings import DecodeSettings

EXAMPLE = DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=2)
"""The sizes in the drawings of llama.cpp's examples/lookahead/lookahead.cpp and of the paper's Figure 2 (b)."""

PUBLISHED_POSITIONS = [0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 1, 2, 3, 1, 2, 3]
PUBLISHED_LOGITS = [0, *range(10, 21)]
PUBLISHED_SEQUENCES = {
    0: [0],
    1: [0, 5, 10],
    2: [0, 1, 6, 11],
    3: [0, 1, 2, 7, 12],
    4: [0, 1, 2, 3, 8, 13],
    5: [0, 1, 2, 3, 4, 9, 14],
    6: [0, 15, 16, 17],
    7: [0, 18, 19, 20],
}
"""The rows of each sequence in the comment of llama.cpp's file. There the window's rows precede the candidates'."""

sizes = st.builds(
    lambda window, ngram, guesses: DecodeSettings(mode="lookahead", window=window, ngram=ngram, guesses=guesses),
    st.integers(0, 6),
    st.integers(2, 6),
    st.integers(0, 6),
)


def test_the_published_example_has_the_same_rows() -> None:
    rows = rows_of(EXAMPLE)
    kinds = {"I": 0, "L": 1, "V": 2}

    def place(index: int) -> tuple[int, str, int]:
        row = rows[index]
        return kinds[row.kind], row.part.partition(",")[0], row.position

    order = sorted(range(len(rows)), key=place)
    found = [rows[index] for index in order]
    assert [row.position for row in found] == PUBLISHED_POSITIONS
    assert [index for index, row in enumerate(found) if row.logits] == PUBLISHED_LOGITS
    for sequence, wanted in PUBLISHED_SEQUENCES.items():
        assert [index for index, row in enumerate(found) if sequence in row.ids] == wanted


@given(sizes)
def test_a_row_sees_what_llama_cpps_mask_lets_it_see_in_the_batch_that_is_decoded(settings: DecodeSettings) -> None:
    rows, batch = rows_of(settings), Batch(settings.max_rows).set_tree(full_step(settings), past=0)
    counts = batch.sequence_counts[: batch.rows]
    ids = np.split(batch.sequence_ids[: counts.sum()], np.cumsum(counts)[:-1])
    assert [row.position for row in rows] == batch.positions[: batch.rows].tolist()
    assert [row.logits for row in rows] == batch.outputs[: batch.rows].astype(bool).tolist()
    assert [sorted(row.ids) for row in rows] == [sorted(each.tolist()) for each in ids]
    for at, row in enumerate(rows):
        for other, seen in enumerate(rows):
            shares = not set(ids[at]).isdisjoint(ids[other])
            assert row.sees(seen) == (shares and batch.positions[other] <= batch.positions[at])
    lines = drawn(rows, settings)
    assert len(lines) == 2 * len(rows) + 6

"""`lacli mask`: the batch and its mask, held against the published example and against what an engine makes visible."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.batch import from_tree
from lacli.cli.mask import Mask, Order, as_json, as_lines, full_step, mask_of, ranges
from lacli.engine import Floats
from lacli.settings import DecodeSettings
from tests.fakes.engine import FakeEngine
from tests.program import call

EXAMPLE = DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=2)
"""The sizes that llama.cpp's examples/lookahead/lookahead.cpp and the paper's Figure 2 (b) draw."""

LARGE = DecodeSettings(mode="lookahead")
"""120 rows: a line of the table has several, and the mask is drawn in dots."""

SIZES = ("mask", "-W", "5", "-N", "4", "-G", "2")

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
"""The rows of each sequence in the comment of that file."""

sizes = st.builds(
    lambda window, ngram, guesses: DecodeSettings(mode="lookahead", window=window, ngram=ngram, guesses=guesses),
    st.integers(0, 6),
    st.integers(2, 6),
    st.integers(0, 6),
)


class Witness(FakeEngine):
    """An engine that notes which tokens each row sees."""

    def __init__(self, rows: int, sequences: int) -> None:
        super().__init__(cells=2 * rows + 8, batch_rows=rows + 8, sequences=sequences, vocabulary=2**31)
        self.seen: list[list[tuple[int, int]]] = []

    def logits_after(self, context: list[tuple[int, int]]) -> Floats:
        self.seen.append(context)
        return np.zeros(1)


def drawn(mask: Mask, width: int) -> list[str]:
    """The lines of the mask in the report, without what stands above and below it."""
    lines = as_lines(mask, width).split("\n\n")[1].splitlines()
    first = next(number for number, line in enumerate(lines) if line[:7].split() == ["0", "I"])
    return [line[8:] for line in lines[first:]]


def read_braille(lines: list[str], rows: int) -> list[list[int]]:
    """The dots of braille characters; the order of their bits is Unicode's."""
    bits = [[0, 3], [1, 4], [2, 5], [6, 7]]
    values = [
        [ord(line[at]) % 256 if line[at : at + 1].strip() else 0 for at in range(-(-rows // 2))] for line in lines
    ]
    return [
        [values[row // 4][column // 2] >> bits[row % 4][column % 2] & 1 for column in range(rows)]
        for row in range(rows)
    ]


def test_the_mask_is_the_published_one() -> None:
    mask = mask_of(EXAMPLE, "paper")
    assert [row.kind for row in mask.rows] == ["I"] + ["L"] * 14 + ["V"] * 6
    assert [row.position for row in mask.rows] == PUBLISHED_POSITIONS
    assert [row.index for row in mask.rows if row.logits] == PUBLISHED_LOGITS
    assert [row.candidates for row in mask.rows if row.kind == "V"] == [(1,)] * 3 + [(2,)] * 3
    for sequence, rows in PUBLISHED_SEQUENCES.items():
        assert [row.index for row in mask.rows if sequence in row.sequences] == rows
    for row in range(21):
        seen = {other for rows in PUBLISHED_SEQUENCES.values() if row in rows for other in rows[: rows.index(row) + 1]}
        assert set(np.flatnonzero(mask.visible[row])) == seen


def test_the_batch_has_candidates_first_and_the_window_by_columns() -> None:
    mask = mask_of(EXAMPLE)
    assert [row.kind for row in mask.rows] == ["I"] + ["V"] * 6 + ["L"] * 14
    assert [row.column for row in mask.rows if row.kind == "L"] == [0] * 2 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert [row.index for row in mask.rows] == list(range(21))


@given(sizes)
def test_the_mask_is_what_an_engine_makes_visible(settings: DecodeSettings) -> None:
    mask = mask_of(settings)
    batch = from_tree(full_step(settings), past=0)
    batch.outputs[:] = 1
    engine = Witness(len(batch), settings.sequences)
    assert engine.decode(batch)
    keys = list(zip(batch.positions.tolist(), batch.tokens.tolist(), strict=True))
    assert len(set(keys)) == len(keys), "a row is known by its position and token"
    for row, seen in enumerate(engine.seen):
        assert [keys[other] for other in np.flatnonzero(mask.visible[row])] == sorted(seen, key=keys.index)


@given(sizes)
def test_a_full_step_has_the_rows_that_the_settings_promise(settings: DecodeSettings) -> None:
    mask = mask_of(settings)
    assert len(mask.rows) == settings.max_rows
    assert mask.sequences == settings.sequences
    assert mask.count("V") == settings.guesses * (settings.ngram - 1)
    for row in mask.rows:
        if row.kind == "L":
            assert row.window_row is not None and row.column is not None
            assert row.position == row.window_row + row.column
            assert row.logits == (row.window_row == settings.ngram - 2)
        else:
            assert row.logits


@pytest.mark.parametrize("settings", [EXAMPLE, LARGE], ids=["21 rows", "120 rows"])
def test_what_is_drawn_in_a_terminal_is_the_mask(settings: DecodeSettings) -> None:
    mask = mask_of(settings)
    rows, seen = len(mask.rows), mask.visible.astype(int).tolist()
    narrowest = 8 + -(-rows // 2)
    assert read_braille(drawn(mask, narrowest), rows) == seen
    assert f"needs a terminal of {narrowest} columns" in as_lines(mask, narrowest - 1)
    if rows == 21:
        assert [[int(cell == "■") for cell in line.split()] for line in drawn(mask, 80)] == seen


@pytest.mark.parametrize("order", ["batch", "paper"])
@pytest.mark.parametrize("settings", [EXAMPLE, LARGE], ids=["a line a row", "a line a group"])
def test_the_report_fits_into_80_columns_and_its_table_names_each_row_once(
    settings: DecodeSettings, order: Order
) -> None:
    mask = mask_of(settings, order)
    text = as_lines(mask)
    assert max(map(len, text.splitlines())) <= 80
    named: list[int] = []
    for line in text.split("\n\n")[0].splitlines()[1:]:
        first, _, last = line.split()[0].partition("-")
        named += range(int(first), int(last or first) + 1)
    assert named == list(range(len(mask.rows)))


def test_ranges_name_every_number() -> None:
    assert ranges([3]) == "3"
    assert ranges([0, 6, 7, 9]) == "0, 6-7, 9"


def test_json_holds_rows_and_mask() -> None:
    done = call(*SIZES, "--order", "paper", "--json")
    found = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert found == json.loads(json.dumps(as_json(mask_of(EXAMPLE, "paper"))))
    assert [row["position"] for row in found["rows"]] == PUBLISHED_POSITIONS
    assert (found["outputs"], found["sequences"], found["order"]) == (12, 8, "paper")
    assert found["mask"][17] == [1] + [0] * 14 + [1, 1, 1] + [0] * 3


def test_the_sentence_gives_the_sizes() -> None:
    words = " ".join(call(*SIZES).out.split())
    assert "21 rows (1 input, 6 verification, 14 lookahead), 12 outputs, 8 sequences (W + G + 1)" in words
    assert "120 rows" in call("mask", "--preset", "7b").out


def test_no_window_and_no_guesses_leave_the_input() -> None:
    found = json.loads(call("mask", "-W", "0", "-G", "0", "--json").out)
    assert (found["mask"], found["rows"][0]["sequences"]) == ([[1]], [0])
    assert call("mask", "-W", "0", "-G", "0").code == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("-W", "200", "-G", "100"), "301 sequences"),
        (("-N", "1"), "-N must be at least 2"),
        (("-W", "-1"), "-W must be at least 0"),
        (("-W", "100", "-N", "30"), "a smaller -W, -N or -G"),
    ],
)
def test_bad_values_are_one_line_and_exit_2(flags: tuple[str, ...], said: str) -> None:
    done = call("mask", *flags)
    assert (done.code, done.out) == (2, "")
    assert said in done.err and len(done.err.splitlines()) == 1

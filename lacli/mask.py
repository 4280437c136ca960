"""The batch of one full lookahead step and its attention mask, taken from the code that decodes.

A real window over a real pool grows the tree; the mask follows from the batch's positions and sequence ids by
llama.cpp's rule. No model is needed, and how a mask is shown is `mask_report.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacli.batch import Batch, from_tree
from lacli.errors import UsageError
from lacli.modes import Lookahead
from lacli.pool import NgramPool
from lacli.replay import Rows
from lacli.settings import DecodeSettings, ModelSettings
from lacli.tree import Tree

Kind = Literal["I", "L", "V"]
"""Input, lookahead (the window) or verification (candidates)."""

Order = Literal["batch", "paper"]

Visible = npt.NDArray[np.bool_]

MOST_ROWS = ModelSettings().batch
"""Rows that a batch has where -b is not given."""

MOST_DRAWN = 300
"""Rows of a picture whose cells are still told apart."""

VOCABULARY = 2**30
"""Window guesses are drawn from so many tokens that no two of them begin a path alike."""

INPUT = VOCABULARY
"""The input token; the candidates' tokens come after it, so that they meet neither it nor the window's."""


@dataclass(frozen=True)
class Row:
    """One row of the batch. position: relative to the input's. logits: whether its choice is read.

    window_row, column: its place in the window, both from 0. candidates: those that it belongs to, from 1.
    """

    index: int
    kind: Kind
    position: int
    logits: bool
    sequences: tuple[int, ...]
    window_row: int | None = None
    column: int | None = None
    candidates: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mask:
    """The rows of one step. visible: (rows, rows), whether a row sees a row; the text before them is seen by all.

    order: of the rows, as the batch has them or as the paper draws them. shared: see `mask_of`.
    """

    settings: DecodeSettings
    rows: tuple[Row, ...]
    visible: Visible
    order: Order = "batch"
    shared: bool = False

    @property
    def outputs(self) -> int:
        """Rows whose logits are wanted."""
        return sum(row.logits for row in self.rows)

    @property
    def sequences(self) -> int:
        """Sequence ids in the batch."""
        return len({sequence for row in self.rows for sequence in row.sequences})

    def count(self, kind: Kind) -> int:
        """Rows of a kind."""
        return sum(row.kind == kind for row in self.rows)

    def as_in_paper(self) -> Mask:
        """The same with rows in the order of the paper's Figure 2 (b): the input, the window row by row, candidates."""
        order = sorted(range(len(self.rows)), key=lambda index: _place_in_paper(self.rows[index]))
        rows = tuple(replace(self.rows[old], index=new) for new, old in enumerate(order))
        return replace(self, rows=rows, visible=self.visible[np.ix_(order, order)], order="paper")


def mask_of(settings: DecodeSettings, *, shared: bool = False) -> Mask:
    """The batch and mask of a step with a full window and G candidates.

    shared: candidates begin alike two by two, and share that row. Raises UsageError when there are more
    than MOST_ROWS rows.
    """
    if settings.most_rows > MOST_ROWS:
        raise UsageError(
            f"the step has {settings.most_rows} rows, and {MOST_ROWS} are drawn at most", "try a smaller -W, -N or -G"
        )
    batch = from_tree(full_step(settings, shared=shared), past=0)
    return Mask(settings, _rows(batch, settings.window), visible_rows(batch), shared=shared)


def full_step(settings: DecodeSettings, *, shared: bool = False) -> Tree:
    """What mode lookahead grows where its pool knows G n-grams after the input; token ids mean nothing here."""
    settings = replace(settings, window_init="random")
    pool = NgramPool(settings.ngram, settings.guesses)
    for candidate in reversed(range(settings.guesses)):
        first = INPUT + 1 + candidate * settings.ngram
        continuation = list(range(first, first + settings.ngram - 1))
        if shared and settings.ngram > 2:
            continuation[0] = INPUT + 1 + (candidate - candidate % 2) * settings.ngram
        pool.insert(INPUT, tuple(continuation))
    mode = Lookahead(settings, pool, VOCABULARY, lambda token: False)
    mode.begin([INPUT])
    return mode.grow([INPUT], settings.most_rows)


def visible_rows(batch: Batch) -> Visible:
    """Which of its rows each row sees: those of its sequences whose position is not larger. (rows, rows).

    Source: llama.cpp's attention mask over a unified cache.
    """
    rows = len(batch)
    counts, positions = batch.sequence_counts[:rows], batch.positions[:rows]
    ids = batch.sequence_ids[: counts.sum()]
    member = np.zeros((rows, ids.max() + 1), np.int32)
    member[np.repeat(np.arange(rows), counts), ids] = 1
    visible: Visible = (member @ member.T > 0) & (positions[None, :] <= positions[:, None])
    return visible


def _rows(batch: Batch, window: int) -> tuple[Row, ...]:
    rows = Rows.of(batch)
    columns = zip(rows.positions, rows.outputs, rows.sequences, strict=True)
    return tuple(
        _row(index, position, output, tuple(sorted(sequences)), window)
        for index, (position, output, sequences) in enumerate(columns)
    )


def _row(index: int, position: int, logits: bool, sequences: tuple[int, ...], window: int) -> Row:
    """What a row is follows from its sequences: 0 is the text's own, 1 .. W a column each, then a candidate each."""
    if 0 in sequences:
        return Row(index, "I", position, logits, sequences)
    candidates = tuple(sequence - window for sequence in sequences if sequence > window)
    if candidates:
        return Row(index, "V", position, logits, sequences, candidates=candidates)
    column = min(sequences) - 1
    return Row(index, "L", position, logits, sequences, position - column, column)


def _place_in_paper(row: Row) -> tuple[int, int, int]:
    match row.kind:
        case "I":
            return (0, 0, 0)
        case "L":
            return (1, row.window_row or 0, row.column or 0)
        case "V":
            return (2, row.candidates[0], row.position)

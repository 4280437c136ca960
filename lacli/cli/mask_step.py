"""The attention mask of one lookahead step, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from textwrap import fill
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lacli.batch import Batch, from_tree
from lacli.check.replay import Rows
from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.modes import Lookahead
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.terminal.charts import Canvas
from lacli.tree import Tree

Kind = Literal["I", "L", "V"]
"""Input, lookahead (the window) or verification (candidates)."""

Order = Literal["batch", "paper"]

Visible = npt.NDArray[np.bool_]

MOST_ROWS = ModelSettings().batch
"""Rows that a batch has where -b is not given."""

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


NAMES: dict[Kind, str] = {"I": "input", "V": "verification", "L": "lookahead"}

MOST_LINES = 40
"""Rows up to which each has a line of the table; beyond, a candidate or a part of the window has."""

LABEL = 8
"""Columns of a line's label left of the mask."""

HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}


def as_json(mask: Mask) -> dict[str, Any]:
    """One object: sizes, the rows, and the mask as lists of 0 and 1, mask[i][j]: whether row i sees row j.

    position: relative to the input's. window_row, column: from 0, null outside the window; candidates: from 1.
    """
    settings = mask.settings
    return {
        "window": settings.window,
        "ngram": settings.ngram,
        "guesses": settings.guesses,
        "order": mask.order,
        "shared": mask.shared,
        "outputs": mask.outputs,
        "sequences": mask.sequences,
        "rows": [
            {
                "index": row.index,
                "kind": row.kind,
                "position": row.position,
                "logits": row.logits,
                "window_row": row.window_row,
                "column": row.column,
                "candidates": list(row.candidates),
                "sequences": list(row.sequences),
            }
            for row in mask.rows
        ],
        "mask": mask.visible.astype(int).tolist(),
    }


def as_lines(mask: Mask, width: int = 80) -> str:
    """The rows, who sees whom, and the sizes; width: of the terminal, in columns."""
    return "\n\n".join(["\n".join(_table(mask)), "\n".join(_matrix(mask, width)), fill(sizes(mask), min(width, 96))])


def sizes(mask: Mask) -> str:
    """How large the step is, in plain words."""
    settings, rows = mask.settings, len(mask.rows)
    parts = ", ".join(f"{mask.count(kind)} {name}" for kind, name in NAMES.items())
    sentence = (
        f"W={settings.window} N={settings.ngram} G={settings.guesses}: {_counted(rows, 'row')} ({parts}), "
        f"{_counted(mask.outputs, 'output')}, {_counted(mask.sequences, 'sequence')} (W + G + 1). "
        "Every row also sees all of the text before the input."
    )
    if mask.shared:
        saved = settings.most_rows - rows
        sentence += f" Candidates that begin alike share rows, which saves {saved} of {settings.most_rows} here."
    return sentence


def _table(mask: Mask) -> list[str]:
    """A line a row, or a line a group of rows where there are many."""
    groups = [[row] for row in mask.rows]
    if len(groups) > MOST_LINES:
        groups = [list(group) for _, group in groupby(mask.rows, key=lambda row: _group(mask, row))]
    lines = [["row", "kind", "part", "position", "logits", "sequences"]]
    lines += [_cells(group) for group in groups]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _group(mask: Mask, row: Row) -> tuple[object, ...]:
    return (row.kind, row.candidates, row.column if mask.order == "batch" else row.window_row)


def _cells(group: Sequence[Row]) -> list[str]:
    first = group[0]
    wanted = sum(row.logits for row in group)
    logits = ("yes" if wanted else "no") if wanted in (0, len(group)) else f"last {wanted}"
    sequences = list(dict.fromkeys(ranges(row.sequences) for row in group))
    if len(sequences) > 2:
        sequences = [sequences[0], "..", sequences[-1]]
    return [
        ranges([row.index for row in group]),
        first.kind,
        _part(group),
        ranges([row.position for row in group]),
        logits,
        " ".join(sequences) if ".." in sequences else ", then ".join(sequences),
    ]


def _part(group: Sequence[Row]) -> str:
    """What a row or a group is in words: candidates count from 1, rows and columns of the window from 0."""
    first = group[0]
    match first.kind:
        case "I":
            return "input"
        case "V":
            return f"{'candidates' if len(first.candidates) > 1 else 'candidate'} {ranges(first.candidates)}"
        case "L":
            rows = sorted({row.window_row or 0 for row in group})
            columns = sorted({row.column or 0 for row in group})
            return f"window {_ranged('row', rows)}, {_ranged('column', columns)}"


def _matrix(mask: Mask, width: int) -> list[str]:
    """The mask as large as the terminal lets it be: a cell of two columns, one column of half a line, or a dot."""
    rows = len(mask.rows)
    if LABEL + 2 * rows <= width and rows <= MOST_LINES:
        return _whole(mask)
    if LABEL + rows <= width:
        return ["each line is two rows", *_halved(mask)]
    if LABEL + -(-rows // 2) <= width:
        return ["each character is two columns of four rows", *_dotted(mask)]
    needed = LABEL + -(-rows // 2)
    return [f"The mask needs a terminal of {needed} columns."]


def _whole(mask: Mask) -> list[str]:
    tens = " ".join(str(row.index // 10) if row.index and row.index % 10 == 0 else " " for row in mask.rows)
    header = [tens, " ".join(str(row.index % 10) for row in mask.rows), " ".join(row.kind for row in mask.rows)]
    lines = [f"{'':{LABEL}}{line}".rstrip() for line in header if line.strip()]
    for row, seen in zip(mask.rows, mask.visible.tolist(), strict=True):
        cells = "".join("■ " if cell else "· " for cell in seen).rstrip()
        lines.append(f"{row.index:>{LABEL - 3}} {row.kind} {cells}")
    return lines


def _halved(mask: Mask) -> list[str]:
    seen = mask.visible.tolist()
    below = [*seen[1::2], [False] * len(seen)] if len(seen) % 2 else seen[1::2]
    cells = ["".join(HALVES[pair] for pair in zip(*two, strict=True)) for two in zip(seen[::2], below, strict=True)]
    return _labelled(mask, cells, across=1, down=2)


def _dotted(mask: Mask) -> list[str]:
    rows = len(mask.rows)
    canvas = Canvas(-(-rows // 2), -(-rows // 4))
    for row, column in zip(*mask.visible.nonzero(), strict=True):
        canvas.dot(int(column), int(row))
    return _labelled(mask, canvas.lines(), across=2, down=4)


def _labelled(mask: Mask, cells: Sequence[str], across: int, down: int) -> list[str]:
    """Lines of a smaller mask with their first row's number, under the columns' numbers and kinds."""
    rows = mask.rows
    numbers = "".join(f"{index:<{20 // across}}" for index in range(0, len(rows), 20)).rstrip()
    kinds = "".join(row.kind for row in rows[::across])
    lines = [f"{'':{LABEL}}{numbers}", f"{'':{LABEL}}{kinds}"]
    for index, line in enumerate(cells):
        first = rows[down * index]
        lines.append(f"{first.index:>{LABEL - 3}} {first.kind} {line}".rstrip())
    return lines


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers in few characters.

    >>> ranges([0, 6, 7, 8])
    '0, 6-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _ranged(name: str, numbers: Sequence[int]) -> str:
    return f"{name}s {ranges(numbers)}" if len(numbers) > 1 else f"{name} {ranges(numbers)}"


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"

"""A step's batch and mask as text for a person and as one JSON object for a program.

Formats records; builds no batch and prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from textwrap import fill
from typing import Any

from lacli.charts import Canvas
from lacli.mask import MOST_DRAWN, Kind, Mask, Row

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
    instead = "; --plot FILE.svg draws it" if rows <= MOST_DRAWN else ""
    return [f"The mask needs a terminal of {needed} columns{instead}."]


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

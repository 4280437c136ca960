"""`lacli mask`: the batch of one full lookahead step, drawn: what each row is and which rows it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lacli.cli import options
from lacli.cli.groups import with_groups
from lacli.cli.lookahead_options import Guesses, Ngram, Preset, Window
from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings, decode_settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from lacli.batch import Batch
    from lacli.tree import Tree

    Visible = npt.NDArray[np.bool_]

PICTURE = "Picture"

Kind = Literal["I", "L", "V"]

NAMES: dict[Kind, str] = {"I": "input", "V": "verification", "L": "lookahead"}

Order = Literal["batch", "paper"]

MAX_ROWS = ModelSettings().batch
"""Rows of a batch where -b is not given."""

MAX_LINES = 40
"""Rows up to which each has a line of its own in the table and a character of its own in the mask."""

LABEL = 8
"""Columns of a line's label left of the mask."""

WIDTH = 96
"""Columns of the sentence below the mask."""

VOCABULARY = 2**30
"""Token ids that the window's guesses are drawn from: no two of them begin a path alike."""

INPUT = VOCABULARY
"""The input token; the candidates' tokens follow it, so that they meet neither it nor the window's."""

OrderOption = Annotated[
    Order,
    typer.Option(
        "--order",
        help="Order of the rows. batch: candidates, then the window column by column; paper: the window row by row, "
        "then candidates, as in its Figure 2 (b).",
        rich_help_panel=PICTURE,
    ),
]


@with_groups()
def mask(
    preset: Preset = None,
    window: Window = None,
    ngram: Ngram = None,
    guesses: Guesses = None,
    order: OrderOption = "batch",
    json: options.Json = False,
) -> None:
    """Draw the batch of a lookahead step: what each row is and sees.

    It comes from the code that decodes, and needs no model.
    """
    from json import dumps
    from shutil import get_terminal_size

    from lacli.terminal.screen import Screen

    settings = decode_settings(preset, mode="lookahead", window=window, ngram=ngram, guesses=guesses)
    drawn = mask_of(settings, order)
    shown = dumps(as_json(drawn)) if json else as_lines(drawn, get_terminal_size().columns)
    Screen().line(shown, drawn=not json)


@dataclass(frozen=True)
class Row:
    """One row of the batch. `position`: relative to the input's. `logits`: whether its choice is read.

    `window_row`, `column`: its place in the window, both from 0. `candidates`: those it belongs to, from 1.
    """

    index: int
    kind: Kind
    position: int
    logits: bool
    window_row: int | None
    column: int | None
    candidates: tuple[int, ...]
    sequences: tuple[int, ...]


@dataclass(frozen=True)
class Mask:
    """The rows of one step. `visible`: (rows, rows), whether a row sees a row; all of them see the text before them."""

    settings: DecodeSettings
    rows: tuple[Row, ...]
    visible: Visible
    order: Order = "batch"

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
        """The same rows in the order of the paper's Figure 2 (b): the input, the window row by row, candidates."""

        def place(index: int) -> tuple[int, int, int]:
            row = self.rows[index]
            group, part = {"I": (0, 0), "L": (1, row.window_row or 0), "V": (2, min(row.candidates, default=0))}[
                row.kind
            ]
            return group, part, row.position

        order = sorted(range(len(self.rows)), key=place)
        rows = tuple(replace(self.rows[old], index=new) for new, old in enumerate(order))
        return replace(self, rows=rows, visible=self.visible[order][:, order], order="paper")


def mask_of(settings: DecodeSettings, order: Order = "batch") -> Mask:
    """The batch and mask of a step with a full window and G candidates. Raises UsageError above MAX_ROWS rows."""
    from lacli.batch import from_tree
    from lacli.check.replay import Rows

    if settings.max_rows > MAX_ROWS:
        raise UsageError(
            f"the step has {settings.max_rows} rows, and {MAX_ROWS} are drawn at most", "try a smaller -W, -N or -G"
        )
    batch = from_tree(full_step(settings), past=0)
    read = Rows.of(batch)
    columns = zip(read.positions, read.outputs, read.sequences, strict=True)
    rows = (
        _row(index, settings.window, position, logits, tuple(sorted(sequences)))
        for index, (position, logits, sequences) in enumerate(columns)
    )
    mask = Mask(settings, tuple(rows), _visible(batch))
    return mask.as_in_paper() if order == "paper" else mask


def full_step(settings: DecodeSettings) -> Tree:
    """The tree of mode lookahead where its pool knows G n-grams after the input; token ids mean nothing here."""
    from lacli.modes import Lookahead
    from lacli.pool import NgramPool

    settings = replace(settings, window_init="random")
    pool = NgramPool(settings.ngram, settings.guesses)
    for candidate in reversed(range(settings.guesses)):
        first = INPUT + 1 + candidate * settings.ngram
        pool.insert(INPUT, tuple(range(first, first + settings.ngram - 1)))
    mode = Lookahead(settings, pool, VOCABULARY, lambda token: False)
    mode.begin([INPUT])
    return mode.grow([INPUT], settings.max_rows)


def _visible(batch: Batch) -> Visible:
    """Whether each row sees each row, as llama.cpp's mask over a unified cache has it.

    A row sees the rows that share a sequence with it and whose position is not larger.
    """
    import numpy as np

    rows = len(batch)
    counts, positions = batch.sequence_counts[:rows], batch.positions[:rows]
    ids = batch.sequence_ids[: counts.sum()]
    member = np.zeros((rows, ids.max() + 1), np.int32)
    member[np.repeat(np.arange(rows), counts), ids] = 1
    visible: Visible = (member @ member.T > 0) & (positions[None, :] <= positions[:, None])
    return visible


def _row(index: int, window: int, position: int, logits: bool, sequences: tuple[int, ...]) -> Row:
    """A row by its sequences: 0 is the text's own, 1 .. W belong to a column each, those behind to a candidate each."""
    if 0 in sequences:
        return Row(index, "I", position, logits, None, None, (), sequences)
    candidates = tuple(sequence - window for sequence in sequences if sequence > window)
    if candidates:
        return Row(index, "V", position, logits, None, None, candidates, sequences)
    column = min(sequences) - 1
    return Row(index, "L", position, logits, position - column, column, (), sequences)


def as_json(mask: Mask) -> dict[str, Any]:
    """One object: sizes, the rows, and the mask as lists of 0 and 1, mask[i][j]: whether row i sees row j."""
    return {
        "window": mask.settings.window,
        "ngram": mask.settings.ngram,
        "guesses": mask.settings.guesses,
        "order": mask.order,
        "outputs": mask.outputs,
        "sequences": mask.sequences,
        "rows": [asdict(row) for row in mask.rows],
        "mask": mask.visible.astype(int).tolist(),
    }


def as_lines(mask: Mask, width: int = 80) -> str:
    """The rows, the mask, and the sizes, for a terminal of `width` columns."""
    return "\n\n".join([*map("\n".join, (_table(mask), _matrix(mask, width))), fill(sizes(mask), min(width, WIDTH))])


def sizes(mask: Mask) -> str:
    """How large the step is, in plain words."""
    from lacli.text.format import counted

    settings, rows = mask.settings, len(mask.rows)
    parts = ", ".join(f"{mask.count(kind)} {name}" for kind, name in NAMES.items())
    return (
        f"W={settings.window} N={settings.ngram} G={settings.guesses}: {counted(rows, 'row')} ({parts}), "
        f"{counted(mask.outputs, 'output')}, {counted(mask.sequences, 'sequence')} (W + G + 1). "
        "Every row also sees all of the text before the input."
    )


def _table(mask: Mask) -> list[str]:
    """A line a row; where there are many rows, a line for each candidate and each part of the window."""
    from lacli.text.format import columns

    groups = [[row] for row in mask.rows]
    if len(groups) > MAX_LINES:
        across = mask.order == "batch"
        parts = groupby(mask.rows, lambda row: (row.kind, row.candidates, row.column if across else row.window_row))
        groups = [list(rows) for _, rows in parts]
    return columns(["row", "kind", "part", "position", "logits", "sequences"], [_cells(group) for group in groups])


def _cells(group: Sequence[Row]) -> list[str]:
    wanted = sum(row.logits for row in group)
    logits = ("yes" if wanted else "no") if wanted in (0, len(group)) else f"last {wanted}"
    sequences = list(dict.fromkeys(ranges(row.sequences) for row in group))
    shown = ", then ".join(sequences) if len(sequences) < 3 else f"{sequences[0]} .. {sequences[-1]}"
    indices, positions = ([getattr(row, name) for row in group] for name in ("index", "position"))
    return [ranges(indices), group[0].kind, _part(group), ranges(positions), logits, shown]


def _part(group: Sequence[Row]) -> str:
    """The rows in words: candidates count from 1, rows and columns of the window from 0."""
    match group[0].kind:
        case "I":
            return "input"
        case "V":
            return _named("candidate", group[0].candidates)
        case "L":
            rows = sorted({row.window_row or 0 for row in group})
            columns = sorted({row.column or 0 for row in group})
            return f"window {_named('row', rows)}, {_named('column', columns)}"


def _matrix(mask: Mask, width: int) -> list[str]:
    """The mask as large as the terminal lets it be: two columns a cell, or dots, each two columns of four rows."""
    from lacli.terminal.charts import Canvas

    rows = len(mask.rows)
    if LABEL + 2 * rows <= width and rows <= MAX_LINES:
        tens = " ".join(str(row.index // 10) if row.index and row.index % 10 == 0 else " " for row in mask.rows)
        header = [tens, " ".join(str(row.index % 10) for row in mask.rows), " ".join(row.kind for row in mask.rows)]
        cells = ["".join("■ " if cell else "· " for cell in seen) for seen in mask.visible.tolist()]
        return _labelled(mask, [line for line in header if line.strip()], cells, 1)
    across, down = -(-rows // 2), -(-rows // 4)
    if LABEL + across > width:
        return [f"The mask needs a terminal of {LABEL + across} columns."]
    canvas = Canvas(across, down)
    for row, column in zip(*mask.visible.nonzero(), strict=True):
        canvas.dot(int(column), int(row))
    numbers = "".join(f"{index:<10}" for index in range(0, rows, 20))
    header = [numbers, "".join(row.kind for row in mask.rows[::2])]
    return ["each character is two columns of four rows", *_labelled(mask, header, canvas.lines(), 4)]


def _labelled(mask: Mask, header: Sequence[str], lines: Sequence[str], down: int) -> list[str]:
    """Lines of `down` rows each with the number and kind of their first row, under the header."""
    shown = [f"{'':{LABEL}}{line}" for line in header]
    shown += [f"{row.index:>{LABEL - 3}} {row.kind} {line}" for row, line in zip(mask.rows[::down], lines, strict=True)]
    return [line.rstrip() for line in shown]


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


def _named(name: str, numbers: Sequence[int]) -> str:
    return f"{name}{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"

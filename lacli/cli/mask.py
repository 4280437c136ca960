"""`lacli mask`: its flags, turned into settings and a picture of the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lacli.cli import options
from lacli.cli.groups import with_groups
from lacli.cli.lookahead_options import (
    Guesses,
    Ngram,
    Preset,
    Window,
)
from lacli.errors import UsageError
from lacli.settings import decode_settings

PICTURE = "Picture"

Order = Annotated[
    Literal["batch", "paper"],
    typer.Option(
        "--order",
        help="Rows as the batch has them (candidates first, then column by column), or as the paper's Figure 2 (b) "
        "draws them (the window row by row, then candidates).",
        rich_help_panel=PICTURE,
    ),
]
Shared = Annotated[
    bool,
    typer.Option("--shared", help="Let candidates begin alike two by two: they share a row.", rich_help_panel=PICTURE),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw the mask into this file too: .png, .svg or .pdf.",
                 rich_help_panel=PICTURE, show_default=False),
]  # fmt: skip


@with_groups()
def mask(
    preset: Preset = None,
    window: Window = None,
    ngram: Ngram = None,
    guesses: Guesses = None,
    order: Order = "batch",
    shared: Shared = False,
    plot: Plot = None,
    json: options.Json = False,
) -> None:
    """Draw the batch of one full lookahead step: what each row is, and which rows it sees.

    It comes from the code that decodes, and needs no model.
    """
    from functools import partial
    from json import dumps
    from shutil import get_terminal_size

    from lacli.cli.mask_step import MOST_DRAWN, as_json, as_lines, mask_of, sizes
    from lacli.plots import check_plot_path, mask_picture, save
    from lacli.terminal.screen import Screen

    screen = Screen()
    drawn = mask_of(
        decode_settings(preset, mode="lookahead", window=window, ngram=ngram, guesses=guesses), shared=shared
    )
    if order == "paper":
        drawn = drawn.as_in_paper()
    if plot is not None:
        if len(drawn.rows) > MOST_DRAWN:
            raise UsageError(f"nobody can read a picture of {len(drawn.rows)} rows", f"--plot draws up to {MOST_DRAWN}")
        check_plot_path(plot)
        save(plot, [partial(mask_picture, mask=drawn)], caption=sizes(drawn))
    screen.line(dumps(as_json(drawn)) if json else as_lines(drawn, get_terminal_size().columns))

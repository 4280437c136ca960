"""`lacli mask`: its flags, turned into settings and a picture of the batch."""

from __future__ import annotations

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


@with_groups()
def mask(
    preset: Preset = None,
    window: Window = None,
    ngram: Ngram = None,
    guesses: Guesses = None,
    order: Order = "batch",
    shared: Shared = False,
    json: options.Json = False,
) -> None:
    """Draw the batch of one full lookahead step: what each row is, and which rows it sees.

    It comes from the code that decodes, and needs no model.
    """
    from json import dumps
    from shutil import get_terminal_size

    from lacli.cli.mask_step import as_json, as_lines, mask_of
    from lacli.terminal.screen import Screen

    screen = Screen()
    drawn = mask_of(
        decode_settings(preset, mode="lookahead", window=window, ngram=ngram, guesses=guesses), shared=shared
    )
    if order == "paper":
        drawn = drawn.as_in_paper()
    screen.line(dumps(as_json(drawn)) if json else as_lines(drawn, get_terminal_size().columns))

"""`lacli rm`: its flags, and the question that it asks."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.model_names import complete_stored
from lacli.errors import UsageError
from lacli.text.files import is_terminal
from lacli.text.format import printable

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        autocompletion=complete_stored,
        help="owner/repo[:quant], hf:owner/repo/file.gguf or an alias: the models as 'lacli list' names them.",
    ),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
Partial = Annotated[
    bool, typer.Option("--unfinished", help="Only downloads that broke off: of these repositories, or all.")
]


def ask(question: str) -> bool:
    """Whether the user types yes; the question goes to stderr. Raises UsageError where nobody can be asked."""
    if not is_terminal(sys.stdin):
        raise UsageError("there is no terminal to ask on", "-y removes without asking")
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")


def remove(
    models: Names = None,
    yes: Yes = False,
    unfinished: Partial = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Remove models from the Hugging Face cache, after asking; other quants of the same repository stay.

    Files outside the cache are never touched. Exit code 1 where the answer was no.
    """
    from lacli.cli.folders import own_aliases
    from lacli.shelf.removal import remove_models
    from lacli.terminal.screen import Screen

    if not models and not unfinished:
        raise UsageError("no MODEL is given", "lacli list shows the models on this disk")
    screen = Screen(color=color, quiet=quiet)
    if not remove_models(
        models or (), own_aliases(), screen, None if yes else ask, unfinished=unfinished, as_json=json
    ):
        screen.note("nothing was removed")
        raise typer.Exit(1)

"""The `lacli` program: its commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from lacli import __version__
from lacli.cli import run
from lacli.errors import LacliError

app = typer.Typer(
    name="lacli",
    help="Run any GGUF model faster without a draft model and without changing the answer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"lacli {__version__}")
        raise typer.Exit


@app.callback()
def lacli(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run any GGUF model faster without a draft model and without changing the answer."""


def main() -> None:
    """Run the program; a LacliError ends it with one line on stderr (with a traceback under LACLI_DEBUG=1)."""
    try:
        app(prog_name="lacli")
    except LacliError as error:
        if os.environ.get("LACLI_DEBUG") == "1":
            raise
        from lacli.ui import Screen

        if error.what != "interrupted":
            Screen().error(error)
        sys.exit(error.exit_code)

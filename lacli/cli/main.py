"""The `lacli` program: its commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from lacli import __version__
from lacli.cli import bench, check, cost, mask, run
from lacli.errors import Interrupted, LacliError, UsageError

TYPER_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of Typer's complaints has no public name in every version."""

app = typer.Typer(
    name="lacli",
    help="Run any GGUF model faster without a draft model and without changing the answer.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("check")(check.check)
app.command("bench")(bench.bench)
app.command("cost")(cost.cost)
app.command("mask")(mask.mask)


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
    """Run the program; what a user can mend ends it with one line on stderr (a traceback under LACLI_DEBUG=1)."""
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], prog_name="lacli", standalone_mode=False))
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    except (LacliError, TYPER_USAGE_ERROR) as error:
        if os.environ.get("LACLI_DEBUG") == "1":
            raise
        from lacli.ui import Screen

        shown = error if isinstance(error, LacliError) else _in_one_line(error)
        if shown.what:
            Screen().error(shown)
        sys.exit(shown.exit_code)


def _in_one_line(error: Any) -> UsageError:
    """Typer's complaint about the command line, which it would frame and fill with every name of an option."""
    what = error.message.removeprefix("Value error, ")
    if parameter := getattr(error, "param", None):
        what = f"{parameter.opts[0]}: {what}"
    command = error.ctx.command_path if error.ctx else "lacli"
    similar = getattr(error, "possibilities", None)
    hint = f"perhaps {' or '.join(sorted(similar))}" if similar else f"{command} -h lists what there is"
    return UsageError(what[:1].lower() + what[1:].rstrip("."), hint)

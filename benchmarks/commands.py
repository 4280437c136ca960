"""What the commands beside `lacli bench` share: its flags, a request made of them, and errors as one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lacli.bench.rows import Format
from lacli.bench.run import Request
from lacli.bench.sweep import Axes, parse_modes
from lacli.bench.tasks import Task
from lacli.cli.bench import Amount
from lacli.errors import Interrupted, LacliError
from lacli.terminal.screen import Screen
from lacli.text.records import state_file

Picture = Annotated[Path, typer.Argument(metavar="PICTURE", help="The .png, .svg or .pdf file to write.")]
Rows = Annotated[str, typer.Argument(metavar="FILE", help="What `lacli bench -o json` has printed; - is stdin.")]


def chosen(modes: str) -> Axes:
    """The axes of a benchmark without a sweep."""
    return Axes(parse_modes(modes))


def request_of(tasks: Sequence[Task], amount: Amount, axes: Axes, form: Format) -> Request:
    """A request whose step costs are those that lacli keeps."""
    return Request(tuple(tasks), state_file(), amount.limits, axes, form)


def run(app: typer.Typer) -> None:
    """Run a command; what a user can mend ends it with one line on stderr."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    except LacliError as error:
        if error.what:
            Screen().error(error)
        sys.exit(error.exit_code)


def read_json(path: str) -> Any:
    """The JSON value of a file, or of stdin for `-`. Raises LacliError."""
    try:
        return json.loads(sys.stdin.read() if path == "-" else Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LacliError(f"cannot read {path}: {error}", "it is what lacli prints with -o json or --json") from error

"""`lacli doctor`: its flags, and the environment that the doctor looks at."""

from __future__ import annotations

from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.environment import known_variables, setting, with_variables
from lacli.cli.placement_options import endpoints
from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import spellings

NoTest = Annotated[bool, typer.Option("--no-test", help="Leave out the short answer of the demo model.")]
Rpc = Annotated[
    str,
    setting(
        *spellings("rpc"), metavar="HOST:PORT,..", show_default=False, help="RPC servers to ask what devices they have."
    ),
]


def doctor(
    context: typer.Context,
    no_test: NoTest = False,
    rpc: Rpc = "",
    threads: options.Threads = 0,
    json: options.Json = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Look at this installation: what lacli can use here, what is wrong, and what would make it faster.

    Exit code 0 when lacli works here, 1 when something is broken. Nothing is fetched.
    """
    import os
    import sys
    from json import dumps
    from shutil import get_terminal_size

    from lacli.cli.folders import own_aliases, own_folders
    from lacli.doctor.finding import usable
    from lacli.doctor.machine import Terminal, this_machine
    from lacli.doctor.product import examine_machine
    from lacli.doctor.report import as_json, as_lines
    from lacli.terminal.screen import Screen, console
    from lacli.text.files import is_terminal

    try:
        ModelSettings(threads=threads)
        servers = endpoints(rpc)
    except UsageError as error:
        raise with_variables(error, context) from error
    screen = Screen(color=color)
    colours = console(sys.stdout, color).color_system is not None
    encoding = getattr(sys.stdout, "encoding", None) or ""
    terminal = Terminal(is_terminal(sys.stdout), colours, encoding, get_terminal_size().columns)
    variables = known_variables(getattr((context.parent or context).command, "commands", {}))
    machine = this_machine(os.environ, variables, own_folders(), own_aliases(), terminal, servers)
    findings = examine_machine(machine, None if no_test else threads)
    screen.line(
        dumps(as_json(findings), ensure_ascii=False) if json else as_lines(findings, terminal), colored=not json
    )
    if not usable(findings):
        raise typer.Exit(1)

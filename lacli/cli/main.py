"""The `lacli` program: its commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer

from lacli import __version__
from lacli.cli.environment import (
    DEBUG,
    EPILOG,
    Command,
    variable_of,
    variables,
)
from lacli.errors import Interrupted, LacliError, OutputError, UsageError, reason_of

NO_SUCH_VALUE = {
    "bool_parsing": "neither yes nor no",
    "float_parsing": "no number",
    "greater_than_equal": "below {ge}",
    "int_parsing": "no whole number",
    "less_than_equal": "above {le}",
}
"""What a value is that Typer does not take, by pydantic's types of errors."""

TYPER_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of Typer's complaints has no public name in every version."""

COMMANDS = {
    "run": "run",
    "chat": "chat",
    "check": "check",
    "bench": "bench",
    "cost": "cost",
    "mask": "mask",
    "pull": "pull",
    "list": "list_models",
    "show": "show",
    "rm": "remove",
    "rpc-server": "rpc_server",
    "doctor": "doctor",
}
"""The function of each command, in the module of its name, in the order of the help."""

WITH_SETTINGS = ("run", "chat", "check", "bench", "cost", "pull", "show")
"""Commands whose help says how the environment sets their defaults."""


def program(names: Iterable[str] = tuple(COMMANDS)) -> typer.Typer:
    """Make the program with the commands of these names; the modules of others are not imported, which saves 20 ms."""
    made = typer.Typer(
        name="lacli",
        help="Run any GGUF model faster without a draft model and without changing the answer.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(lacli)
    for name in names:
        module = import_module(f"lacli.cli.{name.replace('-', '_')}")
        epilog = EPILOG if name in WITH_SETTINGS else None
        made.command(name, epilog=epilog, cls=Command)(getattr(module, COMMANDS[name]))
    return made


def commands() -> dict[str, Any]:
    """All commands by their names, with their options."""
    found: dict[str, Any] = getattr(typer.main.get_command(program()), "commands", {})
    return found


def _version(wanted: bool) -> None:
    if wanted:
        from lacli.llamacpp.build import LibraryMissing, load_library, version_lines

        print(f"lacli {__version__}")
        try:
            print("\n".join(version_lines(load_library())))
        except LibraryMissing as error:
            print(f"llama.cpp does not load: {error} ('lacli doctor' says what to do)")
        raise typer.Exit


def lacli(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run any GGUF model faster without a draft model and without changing the answer."""


def main() -> None:
    """Run the program; what a user can mend ends it with one line on stderr (a traceback under LACLI_DEBUG=1)."""
    try:
        asked = [name for name in sys.argv[1:2] if name in COMMANDS] or COMMANDS
        try:
            sys.exit(program(asked)(sys.argv[1:] or ["--help"], prog_name="lacli", standalone_mode=False))
        finally:
            # Python itself would do it too late for an exit code and a line about a full disk.
            if sys.stdout:
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    except (LacliError, TYPER_USAGE_ERROR) as error:
        if os.environ.get(DEBUG) == "1":
            raise
        from lacli.terminal.screen import Screen

        shown = _with_servers_variable(error) if isinstance(error, LacliError) else _in_one_line(error)
        if shown.what:
            Screen().error(shown)
        sys.exit(shown.exit_code)
    except (ImportError, OSError, RuntimeError) as error:
        if os.environ.get(DEBUG) == "1" or not (found := _of_the_system(error) or _missing_library()):
            raise
        from lacli.terminal.screen import Screen, abandon_stdout

        if isinstance(found, OutputError):
            abandon_stdout()
        if not isinstance(error, BrokenPipeError):
            Screen().error(found)
        sys.exit(found.exit_code)


FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EPIPE)
"""Why the system takes no more of what is written."""


def _of_the_system(error: Exception) -> LacliError | None:
    """What to say where the system refuses a file, or standard output what is written; None for other errors."""
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if error.filename is None and error.errno in FULL:
        return OutputError(f"cannot write: {reason_of(error)}", "check where stdout goes")
    place = "" if error.filename is None else f"{error.filename}: "
    return LacliError(f"{place}{reason_of(error)}", f"{DEBUG}=1 shows where")


def _with_servers_variable(error: LacliError) -> LacliError:
    """The error, where it is a server's, with the variable that named the server and may be forgotten."""
    typed = any(word.partition("=")[0] == "--rpc" for word in sys.argv[1:])
    named = next((name for name in variables("--rpc") if os.environ.get(name)), "")
    if typed or not named or not error.what.startswith("--rpc: ") or named in error.hint:
        return error
    return type(error)(error.what, "; ".join(filter(None, [error.hint, f"{named} sets --rpc"])))


def _missing_library() -> LacliError | None:
    """What to say where llama.cpp does not load, which its package tells with errors of several kinds."""
    from lacli.llamacpp.build import LibraryMissing, load_library

    try:
        load_library()
    except LibraryMissing as error:
        return LacliError(f"llama.cpp does not load: {error}", "lacli doctor says what to do")
    return None


def _in_one_line(error: Any) -> UsageError:
    """Typer's complaint about the command line, which it would frame and fill with every name of an option."""
    what = error.message.removeprefix("Value error, ")
    if parameter := getattr(error, "param", None):
        what = f"{parameter.opts[0]}{_not_wanted(error.__cause__) or f': {what}'}"
    command = error.ctx.command_path if error.ctx else _command_typed()
    similar = getattr(error, "possibilities", None)
    hint = f"perhaps {' or '.join(sorted(similar))}" if similar else f"{command} -h lists what there is"
    if error.ctx and error.ctx.parent and (others := _commands_with(getattr(error, "option_name", ""))):
        hint = f"lacli {_listed(others)} {'have' if others[1:] else 'has'} it"
    if parameter and error.ctx and (variable := variable_of(error.ctx, parameter)):
        hint = f"{variable} sets it"
    return UsageError(what[:1].lower() + what[1:].rstrip("."), hint)


def _commands_with(option: str) -> list[str]:
    """The commands that offer an option."""
    return [
        name
        for name, command in commands().items()
        if any(
            option in (*parameter.opts, *parameter.secondary_opts) and not getattr(parameter, "hidden", False)
            for parameter in command.params
        )
    ]


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _not_wanted(cause: Any) -> str:
    """What is wrong with an option's value, as it goes on after the option's name; "" where only Typer has words."""
    found = cause.errors() if hasattr(cause, "errors") else []
    if not found or found[0]["type"] not in NO_SUCH_VALUE:
        return ""
    return f" is {found[0]['input']!r}, which is {NO_SUCH_VALUE[found[0]['type']].format(**found[0].get('ctx', {}))}"


def _command_typed() -> str:
    """The command on the command line: what Typer says of an option without its value comes without it."""
    return " ".join(["lacli", *(name for name in sys.argv[1:2] if name in COMMANDS)])

"""The `lacli` program: its commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable
from importlib import import_module
from shlex import quote
from typing import Annotated, Any

import typer

from lacli import __version__
from lacli.cli import habits, help
from lacli.cli.environment import DEBUG, EPILOG, variable_of
from lacli.errors import Interrupted, LacliError, OutputError, UsageError, reason_of
from lacli.text.format import did_you_mean, listed, offered, suggest

NO_SUCH_VALUE = {
    "bool_parsing": "neither yes nor no",
    "float_parsing": "no number",
    "greater_than_equal": "below {ge:g}, the least",
    "int_parsing": "no whole number",
    "less_than_equal": "above {le:g}, the most",
}
"""What a value is that Typer does not take, by pydantic's types of errors."""

TYPER_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of Typer's complaints has no public name in every version."""

PANELS = {
    "Everyday": ("run", "chat", "serve", "doctor"),
    "Models": ("list", "pull", "show", "rm"),
    "Measure": ("bench", "check", "cost"),
    "More": ("mask", "rpc-server"),
}
"""The commands in the panels and in the order of the help."""

COMMANDS = {name: panel for panel, names in PANELS.items() for name in names}

FUNCTIONS = {"list": "list_models", "rm": "remove", "rpc-server": "rpc_server"}
"""The function of a command where it is not called like its module."""

NEAR = 0.81
"""Likeness above which a flag is offered in the place of an unknown one; 1 is the same."""

COMPLETION = ("--install-completion", "--show-completion")
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
"""Typer's flags for completion, and the shells that it has a script for."""

NO_READER = 141
"""Exit code where standard output's reader has gone away, without a word: 128 and SIGPIPE, as a shell has it of git."""

WITH_SETTINGS = ("run", "chat", "check", "bench", "cost", "pull", "show")
"""Commands whose help says how the environment sets their defaults."""


class Command(help.Command):
    """A command that knows flags of other tools, and takes no letters behind a flag of one letter as its value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            args, unknown = habits.understood(args, self.get_params(ctx))
            if unknown:
                raise UsageError(f"no such option: {unknown}", _instead_of(unknown, ctx))
        return super().parse_args(ctx, args)


def program(names: Iterable[str] = tuple(COMMANDS)) -> typer.Typer:
    """Make the program with the commands of these names; the modules of others are not imported, which saves 20 ms."""
    colored = None if not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" else False
    made = typer.Typer(
        name="lacli",
        cls=help.Program,
        suggest_commands=False,
        # Without it Typer imports rich for the help, which takes 50 ms.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "color": colored},
    )
    made.callback()(lacli)
    for name in names:
        module = import_module(f"lacli.cli.{name.replace('-', '_')}")
        epilog = EPILOG if name in WITH_SETTINGS else None
        function = getattr(module, FUNCTIONS.get(name, name))
        made.command(name, epilog=epilog, cls=Command, rich_help_panel=COMMANDS[name])(function)
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
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run any GGUF model faster without a draft model and without changing the answer."""


def main() -> None:
    """Run the program; what a user can mend ends it with one line on stderr (a traceback under LACLI_DEBUG=1)."""
    try:
        arguments = habits.translated(sys.argv[1:])
        if arguments[0] in COMPLETION:
            _check_shell(*arguments[:2])
        asked = [name for name in arguments[:1] if name in COMMANDS] or COMMANDS
        try:
            sys.exit(program(asked)(arguments, prog_name="lacli", standalone_mode=False))
        finally:
            # Python itself would do it too late for an exit code and a line about a full disk.
            if sys.stdout:
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    except SystemExit as end:
        # Typer makes 1 of it.
        sys.exit(NO_READER if isinstance(end.__context__, BrokenPipeError) else end.code)
    except (LacliError, TYPER_USAGE_ERROR) as error:
        if os.environ.get(DEBUG) == "1":
            raise
        from lacli.terminal.screen import Screen

        shown = error if isinstance(error, LacliError) else _in_one_line(error)
        if shown.what:
            Screen().error(shown)
        sys.exit(shown.exit_code)
    except (ImportError, OSError, RuntimeError) as error:
        if os.environ.get(DEBUG) == "1" or not (found := _of_the_system(error) or _missing_library()):
            raise
        from lacli.terminal.screen import Screen, abandon_stdout

        if isinstance(found, OutputError):
            abandon_stdout()
        if isinstance(error, BrokenPipeError):
            sys.exit(NO_READER)
        Screen().error(found)
        sys.exit(found.exit_code)


def _check_shell(flag: str, wanted: str = "") -> None:
    """Raise UsageError unless completion can be had in the shell that lacli was started from; Typer takes no other."""
    import shellingham

    try:
        shell = shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        shell = ""
    if shell not in SHELLS:
        what = f"no script completes in {shell}" if shell else "lacli was not started from a shell"
        raise UsageError(f"{flag}: {what}", "call it at a prompt of bash, zsh, fish or PowerShell")
    if wanted and not wanted.startswith("-") and wanted != shell:
        raise UsageError(
            f"{flag} is for the shell it is called in, which is {shell}", f"call it at a prompt of {wanted}"
        )


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
    what, context = error.message.removeprefix("Value error, ").rstrip("."), error.ctx
    hint = _all_flags(context)
    if parameter := getattr(error, "param", None):
        value, *choices = re.findall(r"'([^']*)'", what) if "is not one of" in what else [""]
        hint = did_you_mean(value, choices, hint)
        what = f"{parameter.opts[0]}{_not_wanted(error.__cause__) or f': {what}'}"
        if context and (variable := variable_of(context, parameter)):
            hint = f"{variable} sets it"
        elif parameter.opts[0] == "-s":
            hint = "a seed is a number; -sys gives a system prompt"
    elif option := getattr(error, "option_name", "") if hasattr(error, "possibilities") else "":
        hint = _instead_of(option, context)
    elif unknown := re.fullmatch(r"No such command '(.*)'", what):
        hint = _command_like(unknown[1])
    elif "unexpected extra" in what and context and context.info_name in ("run", "chat"):
        extra = what.partition("(s) ")[2].strip("()")
        what = f"words behind the prompt: {extra}"
        hint = f"a file's text is read with -f {extra}" if os.path.isfile(extra) else "put the prompt into quotes"
    return UsageError(what[:1].lower() + what[1:], hint)


def wrong_values() -> dict[str, str]:
    """Map each variable of the environment whose value an option cannot read to what is wrong with it."""
    found: dict[str, str] = {}
    for name, command in commands().items():
        context = typer.Context(command, info_name=name)
        for parameter in command.params:
            try:
                if parameter.envvar:
                    parameter.handle_parse_result(context, {}, [])
            except TYPER_USAGE_ERROR as error:
                if variable := variable_of(context, parameter):
                    found.setdefault(variable, _in_one_line(error).what)
    return found


def _all_flags(context: typer.Context | None) -> str:
    command = context.command_path if context else _command_typed()
    return f"{command} {'--help-all' if command != 'lacli' else '-h'} lists what there is"


def _instead_of(option: str, context: Any) -> str:
    """What to do about an option that a command has not: similar ones, other commands with it, or the help."""
    own = [name for each in context.command.get_params(context) for name in (*each.opts, *each.secondary_opts)]
    near = [option.swapcase()] if option.swapcase() in own else suggest(option, own, least=NEAR)
    if others := _commands_with(option):
        # Three names fit a line.
        shown = others if len(others) < 4 else [*others[:2], "others"]
        have, it = "have" if others[1:] else "has", option if near else "it"
        return f"{offered(near)} lacli {listed(shown, 'and')} {have} {it}".lstrip()
    if meant := [each for each in habits.FLAGS.get(option.replace("_", "-"), ()) if each in own]:
        return offered(meant[:1])
    longer = [name for name in own if name.startswith(option)]
    texts = [name for each in context.command.get_params(context) if _takes_text(each) for name in each.opts]
    takes_prompt = any(each.name in ("prompt", "first") for each in context.command.params)
    if takes_prompt and any(word.startswith(option) and " " in word.partition("=")[0] for word in sys.argv[1:]):
        return "a text that begins with - needs -p"
    with_a_space = [f"{option[:2]} {option[2:]}"] if option[:2] in texts else []
    return offered(near or longer[:3] or with_a_space) or _all_flags(context)


def _takes_text(parameter: Any) -> bool:
    """True if a flag takes any text as its value: letters behind it were meant as one."""
    if parameter.param_type_name != "option" or parameter.is_flag:
        return False
    return parameter.type_descriptor.annotation is str


def _command_like(name: str) -> str:
    from lacli.hub.names import own_aliases, read_aliases

    if " " in name and not name.endswith(".gguf"):
        return "lacli run -p TEXT answers a prompt"
    if name.endswith(".gguf") or "/" in name or name.lower() in read_aliases(own_aliases()):
        return f"lacli run {quote(name)} runs a model"
    near = suggest(name, [*COMMANDS, *habits.COMMANDS])
    return offered(list(dict.fromkeys(habits.COMMANDS.get(each, each) for each in near))) or _all_flags(None)


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


def _not_wanted(cause: Any) -> str:
    """What is wrong with an option's value, as it goes on after the option's name; "" where only Typer has words."""
    found = cause.errors() if hasattr(cause, "errors") else []
    if not found or found[0]["type"] not in NO_SUCH_VALUE:
        return ""
    return f" is {found[0]['input']!r}, which is {NO_SUCH_VALUE[found[0]['type']].format(**found[0].get('ctx', {}))}"


def _command_typed() -> str:
    """The command on the command line: what Typer says of an option without its value comes without it."""
    typed = (habits.COMMANDS.get(name, name) for name in sys.argv[1:2])
    return " ".join(["lacli", *(name for name in typed if name in COMMANDS)])

"""The `lacli` program: its commands, and its errors as one line with an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Collection, Iterable
from importlib import import_module
from inspect import signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from lacli import __version__
from lacli.cli import options
from lacli.cli.options import DEBUG, EPILOG, given_name
from lacli.errors import Interrupted, LacliError, OutputError, UsageError, reason_of
from lacli.settings import DecodeSettings, options_of

TYPER_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""The base class of Typer's errors, without a public name in some versions."""

MODELS = {"list": "list_models", "pull": "pull", "show": "show", "rm": "remove", "cost": "cost"}
"""Functions of models.py by command. Any other command has its own module, with a function of the same name."""

COMMANDS = ("run", "chat", "serve", "doctor", *MODELS, "bench", "check", "rpc-server")
"""The commands in the order of the help."""

ANSWERING = ("run", "chat", "serve")

FOREIGN = {
    **dict.fromkeys(("-e", "--escape"), (ANSWERING, "lacli decodes no escapes; $'a\\nb' has a newline in bash")),
    **dict.fromkeys(("-r", "--reverse-prompt"), (ANSWERING, "--stop TEXT ends an answer before a text")),
    **dict.fromkeys(("-f", "--file"), (("chat",), "lacli run has it, and /read FILE in a chat")),
    "--prompt-cache": (("serve",), "--slot-save-path keeps slots in files"),
    "--lora": (ANSWERING, "merge the adapter into the model's file with llama-export-lora"),
    "--mmproj": (ANSWERING, "lacli reads only text, no images or audio"),
}
"""Common flags of llama.cpp that lacli lacks: the commands that have an alternative, and the hint that names it."""

NO_READER = 141
"""Exit code if the reader of standard output has closed its pipe: 128 + SIGPIPE. No message is printed."""

PROMPT = (*signature(options.asked).parameters, "file", "no_stdin", "raw", "prompts", "prompt_cache", "prompt_cache_ro")
ANSWER = ("max_tokens", "stops", "grammar", "grammar_in_file", "json_schema", "json_schema_in_file", "ignore_eos")

HEADINGS: dict[str, Collection[str]] = {
    "Answer": (*ANSWER, "extract"),
    "Prompt": (*PROMPT, *signature(options.prompt_group).parameters),
    "Sampling": signature(options.sampling_group).parameters,
    "Drafting": (options.preset.name, *options_of(DecodeSettings)),
    "Machine": (*signature(options.engine_group).parameters, "offline"),
    "Output": ("answers", "at_a_time", "stats", "show_accepted", "json", "quiet", "verbose", "color", "output"),
}
"""The parameters of options by their heading in the help. An option has the first heading that names it."""

ORDER = ("Arguments", "Options", "Prompt", *HEADINGS)

COMMON = (
    *("prompt", "file", "system", "prompt_cache", "max_tokens", "stops", "json_schema", "temp", "seed", "mode"),
    *("window", "ngram", "guesses", "context", "gpu_layers", "threads", "engine", "stats", "json", "load", "log"),
    *("host", "port", "parallel", "api_key", "seconds", "modes", "classes", "contexts", "rows", "fresh"),
)
"""The parameters of the most used options. The help of a command with more than 20 options shows these alone."""


class Command(TyperCommand):
    """A command whose help groups the options under headings; if there are many, only --help-all shows them all.

    The flag --stats needs no value.
    """

    shows_all = False

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown = [(each, found) for each in self.get_params(ctx) if (found := each.get_help_record(ctx))]
        is_short = len(shown) > 20 and not self.shows_all
        records: dict[str, list[tuple[str, str]]] = {name: [] for name in ORDER}
        for each, (flags, told) in shown:
            named = (name for name, parameters in HEADINGS.items() if each.name in parameters)
            heading = "Arguments" if each.param_type_name == "argument" else next(named, "Options")
            if is_short and each.opts[2:]:
                # --help-all shows the other spellings.
                flags = f"{', '.join(flags.split(', ')[:2])} {flags.rpartition(' ')[2]}"
            if not is_short or heading == "Arguments" or each.name in COMMON:
                records[heading].append((flags, told))
        if is_short:
            records["Output"].append(("--help-all", f"List all {len(shown)} options."))
        for heading, entries in records.items():
            if entries:
                with formatter.section(heading):
                    formatter.write_dl(entries)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--help-all" in args:
            self.shows_all, args = True, ["--help"]
        for place in reversed(range(len(args))):
            if args[place] == "--stats" and args[place + 1 : place + 2] not in (["short"], ["full"]):
                args = [*args[: place + 1], "short", *args[place + 1 :]]
        return super().parse_args(ctx, args)


def program(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the Typer program with the commands `names`. With one command it starts 20 ms earlier than with all."""
    made = typer.Typer(
        name="lacli",
        # Rich's panels cut long flags off in a terminal of 80 columns.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(lacli)
    for name in names:
        own = name.replace("-", "_")
        module = import_module(f"lacli.cli.{'models' if name in MODELS else own}")
        made.command(name, epilog=EPILOG, cls=Command)(getattr(module, MODELS.get(name, own)))
    return made


def _version(wanted: bool) -> None:
    if wanted:
        from lacli.llamacpp.devices import version_lines

        print("\n".join([f"lacli {__version__}", *version_lines()]))
        raise typer.Exit


def lacli(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run any GGUF model faster without a draft model, with the same answer up to rounding."""


def main() -> None:
    """Run the program and exit. An error that a user can cause prints one line (with LACLI_DEBUG=1 a traceback)."""
    try:
        arguments = typed = sys.argv[1:] or ["--help"]
        if "_LACLI_COMPLETE" in os.environ:
            # Typer completes the line in these variables.
            typed = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]
        first = typed[:1]
        asked = first if first and first[0] in COMMANDS else () if first in (["--version"], ["-V"]) else COMMANDS
        try:
            sys.exit(program(asked)(arguments, prog_name="lacli", standalone_mode=False))
        finally:
            # Python's own flush comes too late to report a full disk by a message and an exit code.
            if sys.stdout:
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    except SystemExit as end:
        # Typer turns a broken pipe into code 1.
        sys.exit(NO_READER if isinstance(end.__context__, BrokenPipeError) else end.code)
    except (LacliError, TYPER_USAGE_ERROR, OSError) as error:
        if os.environ.get(DEBUG) == "1":
            raise
        from lacli.terminal.screen import Screen, abandon_stdout

        found = _in_one_line(error)
        if isinstance(found, OutputError) and isinstance(error, OSError):
            abandon_stdout()
        if isinstance(error, BrokenPipeError):
            sys.exit(NO_READER)
        if found.what:
            Screen().error(found)
        sys.exit(found.exit_code)


def _in_one_line(error: Any) -> LacliError:
    """Return an error of lacli, of Typer or of the system (OSError) as a LacliError whose message is one line."""
    if isinstance(error, LacliError):
        return error
    if isinstance(error, OSError):
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EPIPE):
            return OutputError(f"cannot write: {reason_of(error)}", "check where stdout goes")
        place = "" if error.filename is None else f"{error.filename}: "
        return LacliError(f"{place}{reason_of(error)}", f"{DEBUG}=1 shows where")
    commands, hint = FOREIGN.get(getattr(error, "option_name", ""), ((), ""))
    if error.ctx and error.ctx.info_name in commands:
        return UsageError(f"there is no {error.option_name}", hint)
    option = getattr(error, "param", None)
    if error.ctx and option and option.opts[0].startswith("-"):
        error.param_hint = f"'{given_name(error.ctx, option)}'"
    what = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    command = error.ctx.command_path if error.ctx else "lacli"
    return UsageError(what[:1].lower() + what[1:], f"{command} -h shows the usage")

"""Options that the environment can set: LACLI_ with any of their long names, or llama.cpp's own variable.

The names are made here, and errors are told which variable they come from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand

from lacli.errors import LacliError, ModelLoadError
from lacli.settings import OURS, THEIRS, spellings
from lacli.text.format import offered, suggest

DEBUG = "LACLI_DEBUG"
"""Shows tracebacks; `main.py` reads it, and it belongs to no option."""

NEAR = 0.75
"""Likeness above which a variable is offered in the place of an unknown one; 1 is the same."""

SAME_NAME = (
    "alias api-key-file cache-type-k cache-type-v chat-template chat-template-kwargs cors-origins "
    "ctx-size device flash-attn frequency-penalty host main-gpu min-p model no-repack offline port presence-penalty "
    "repeat-penalty rpc split-mode ssl-cert-file ssl-key-file tags tensor-split threads top-k top-p ui"
)
"""The options whose variable of llama.cpp is called like them."""

LLAMA_CPP = {f"--{name}": name.replace("-", "_").upper() for name in SAME_NAME.split()} | {
    "--batch-size": "BATCH",
    "--gpu-layers": "N_GPU_LAYERS",
    "--metrics": "ENDPOINT_METRICS",
    "--parallel": "N_PARALLEL",
    "--predict": "N_PREDICT",
    "--slots": "ENDPOINT_SLOTS",
    "--temp": "TEMPERATURE",
}
"""llama.cpp's variable behind LLAMA_ARG_, by the option that it sets (common/arg.cpp)."""

LLAMA_CPP_WHOLE = {"--api-key": "LLAMA_API_KEY"}
"""llama.cpp's variables without LLAMA_ARG_."""

SAID = {
    "on": ("on", "enabled", "true", "1", "yes", "y", "t"),
    "off": ("off", "disabled", "false", "0", "no", "n", "f"),
    "auto": ("auto", "-1"),
}
"""llama.cpp's words for a switch's positions (common/arg.cpp), and those that Typer takes."""

EPILOG = (
    "The environment can set defaults: LACLI_ and a flag's long name, such as LACLI_WINDOW=10 for --window or "
    "LACLI_STRICT=1; llama.cpp's names that are shown above work too. 'lacli doctor' shows what is set. Flags of one "
    "answer or one command (--json-schema, --stop, --port of rpc-server) have no variable."
)
"""The end of a command's help."""


class Bare(NamedTuple):
    """What an option means without a value, and the words of which the next argument is its value."""

    value: str
    words: frozenset[str]


BARE = {
    "--stats": Bare("short", frozenset(("short", "full"))),
    "--color": Bare("on", frozenset(("on", "off", "auto", "always", "never"))),
    **dict.fromkeys(spellings("flash_attention"), Bare("on", frozenset().union(*SAID.values()))),
}
"""Options whose value may be left out, where it is not joined by `=`; -fa and --color were bare in llama.cpp once."""


class Command(TyperCommand):
    """A command that tells what is ignored, and whose usage errors name the variables that set their options."""

    def make_parser(self, ctx: Any) -> Any:
        """Typer's parser, which takes the options of BARE without a value too, as Click's flag_value did."""
        parser: Any = super().make_parser(ctx)
        match = parser._match_long_opt

        def match_long_option(option: str, value: str | None, state: Any) -> None:
            bare = BARE.get(option)
            # Several words joined by commas are a wrong value, and no prompt.
            if bare and value is None and not (state.rargs and bare.words.issuperset(state.rargs[0].split(","))):
                value = bare.value
            match(option, value, state)

        parser._match_long_opt = match_long_option
        return parser

    def invoke(self, ctx: Any) -> Any:
        from lacli.cli.ignored import tell

        try:
            tell(ctx)
            return super().invoke(ctx)
        except LacliError as error:
            raise with_variables(error, ctx) from error


def setting(*names: str, help: str = "", **more: Any) -> Any:
    """Declare a Typer option whose default the environment can change, by the rule in EPILOG."""
    return typer.Option(*names, envvar=variables(*names), show_envvar=False, help=help, **more)


def variables(*names: str) -> list[str]:
    """An option's variables: LACLI_ with each long name and with llama.cpp's own X, then llama.cpp's."""
    longs = [name.split("/")[0] for name in names if name.startswith("--")]
    shared = [LLAMA_CPP[long] for long in longs if long in LLAMA_CPP]
    ours = [long.removeprefix("--").replace("-", "_").upper() for long in longs] + shared
    theirs = [THEIRS + each for each in shared] + [LLAMA_CPP_WHOLE[long] for long in longs if long in LLAMA_CPP_WHOLE]
    return [*(OURS + each for each in dict.fromkeys(ours)), *theirs]


def threads(value: str) -> int:
    """Read -t; -1 is llama.cpp's default and stands for 0."""
    try:
        return 0 if int(value) == -1 else int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a number") from None


def detail(value: str) -> str:
    """Read how much --stats prints: a word, or yes or no as it was before there were two."""
    if value.strip().lower() in ("", *SAID["off"]):
        return ""
    if value == "full":
        return value
    if value == "short" or value.strip().lower() in SAID["on"]:
        return "short"
    raise typer.BadParameter(f"{value!r} is neither 'short' nor 'full'")


def switch(value: str) -> str:
    """Read on, off or auto, in llama.cpp's words too."""
    return _said(value, tuple(SAID))


def yes_or_no(value: str) -> bool:
    """Read a flag's variable, in llama.cpp's words too."""
    return _said(value, ("on", "off")) == "on"


def _said(value: str, positions: tuple[str, ...]) -> str:
    found = next((position for position in positions if value.strip().lower() in SAID[position]), "")
    if not found:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(map(repr, positions))}")
    return found


def variable_of(context: typer.Context, parameter: Any) -> str:
    """The variable that set an option; '' if the command line or the default did."""
    source = context.get_parameter_source(getattr(parameter, "name", ""))
    if source is None or source.name != "ENVIRONMENT":
        return ""
    return next((name for name in _names(parameter) if os.environ.get(name)), "")


def with_variables(error: LacliError, context: typer.Context) -> LacliError:
    """Add to an error the variables that set the options it speaks of: they may be forgotten."""
    spoken = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", str(error)))
    if isinstance(error, ModelLoadError) and context.params.get("model_file"):
        spoken.add("-m")
    found = [
        f"{variable} sets {next(name for name in parameter.opts if name in spoken)}"
        for parameter in context.command.params
        if spoken.intersection(parameter.opts) and (variable := variable_of(context, parameter))
    ]
    return type(error)(error.what, "; ".join(filter(None, [error.hint, *found])))


def known_variables(commands: Mapping[str, Any]) -> dict[str, str]:
    """Map each variable that an option of these commands reads to the option's first name, LACLI_DEBUG to ''."""
    parameters = [parameter for command in commands.values() for parameter in command.params]
    return {DEBUG: ""} | {name: parameter.opts[0] for parameter in parameters for name in _names(parameter)}


def without_variable(commands: Mapping[str, Any]) -> dict[str, str]:
    """Map the variables that the long flags without one would have to these flags."""
    parameters = [parameter for command in commands.values() for parameter in command.params if not parameter.envvar]
    flags = [flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)]
    return {variables(flag)[0]: flag for flag in flags if flag.startswith("--")}


def unknown_variables(
    environ: Mapping[str, str], known: Mapping[str, str], bare: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Map each variable that looks like lacli's and is not among the `known` ones to a word on what was meant.

    `bare`: flags without a variable, as `without_variable` returns them. Of llama.cpp's variables, most of which lacli
    does not read, only those count that look like a slip in one that it reads.
    """
    found = {}
    for name in sorted(environ):
        prefix = next((each for each in (OURS, THEIRS) if name.startswith(each)), "")
        if prefix and environ[name] and name not in known:
            if bare and name in bare:
                found[name] = f"{bare[name]} has no variable"
                continue
            # Their common beginning would make any two alike.
            names = [each.removeprefix(prefix) for each in known if each.startswith(prefix)]
            near = suggest(name.removeprefix(prefix), names, most=1, least=NEAR)
            if prefix == OURS and not near:
                near = _of_short_flag(name.removeprefix(OURS), known)
            if (turned := name.replace("LACLI_NO_", OURS, 1)) in known:
                found[name] = f"write {turned}=0"
                continue
            if prefix == OURS or (near and _is_slip(name.removeprefix(prefix), near[0])):
                found[name] = offered([prefix + each for each in near])
    return found


def _of_short_flag(letter: str, known: Mapping[str, str]) -> list[str]:
    """What stands behind LACLI_ for the short flags of a letter in either case: PREDICT and NGRAM for n."""
    found: dict[str, str] = {}
    for variable, flag in known.items():
        if flag.lower() == f"-{letter.lower()}":
            found.setdefault(flag, variable.removeprefix(OURS))
    return [*found.values()]


def _is_slip(name: str, near: str) -> bool:
    """False for a name of llama.cpp's own, which resemble others by a word more or less, or as UBATCH does BATCH."""
    words, others = set(name.split("_")), set(near.split("_"))
    return name != "UBATCH" and not (words <= others or others <= words)


def _names(parameter: Any) -> list[str]:
    """An option's variables; Typer takes one name, several or none."""
    return [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []

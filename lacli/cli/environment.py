"""The environment's names of options: LACLI_ with the option's long name, and what llama.cpp reads for the same.

The one place where these names are made, and where an error is told which variable it comes from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Protocol

import typer

from lacli.errors import UsageError

OURS, THEIRS = "LACLI_", "LLAMA_ARG_"

DEBUG = "LACLI_DEBUG"
"""Shows tracebacks; `main.py` reads it."""

LLAMA_CPP = {
    "--batch-size": "BATCH",
    "--cache-type-k": "CACHE_TYPE_K",
    "--cache-type-v": "CACHE_TYPE_V",
    "--chat-template": "CHAT_TEMPLATE",
    "--context-shift": "CONTEXT_SHIFT",
    "--ctx-size": "CTX_SIZE",
    "--flash-attn": "FLASH_ATTN",
    "--frequency-penalty": "FREQUENCY_PENALTY",
    "--gpu-layers": "N_GPU_LAYERS",
    "--min-p": "MIN_P",
    "--offline": "OFFLINE",
    "--predict": "N_PREDICT",
    "--presence-penalty": "PRESENCE_PENALTY",
    "--repeat-penalty": "REPEAT_PENALTY",
    "--temp": "TEMPERATURE",
    "--threads": "THREADS",
    "--top-k": "TOP_K",
    "--top-p": "TOP_P",
}
"""What llama.cpp's tools read from the environment, by the option that it is the default of (common/arg.cpp)."""

EPILOG = (
    "The environment can set defaults: LACLI_ and an option's long name, such as LACLI_WINDOW=10 for --window or "
    "LACLI_STRICT=1; where another name is shown above, that one. 'lacli doctor' shows what is set."
)
"""The end of a command's help."""


class Parameter(Protocol):
    """What is read of Typer's options here."""

    opts: list[str]
    envvar: Any


def setting(*names: str, **more: Any) -> Any:
    """A Typer option whose default the environment can change; `names` as Typer takes them.

    Its help names the variables where llama.cpp has one too; ours alone follow the rule that EPILOG gives.
    """
    found = variables(*names)
    return typer.Option(*names, envvar=found, show_envvar=len(found) > 1, **more)


def variables(*names: str) -> list[str]:
    """The environment's names of an option, ours first: LACLI_X, LLAMA_ARG_X where llama.cpp has X, else LACLI_X."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    shared = LLAMA_CPP.get(long)
    return [OURS + shared, THEIRS + shared] if shared else [OURS + long[2:].replace("-", "_").upper()]


def variable_of(context: typer.Context, parameter: Parameter) -> str:
    """The variable that an option took its value from; '' where it comes from the command line or the default."""
    source = context.get_parameter_source(getattr(parameter, "name", ""))
    if source is None or source.name != "ENVIRONMENT":
        return ""
    names = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar
    return next((name for name in names if os.environ.get(name)), "")


def with_variables(error: UsageError, context: typer.Context) -> UsageError:
    """The error with the variables that set the options it speaks of, which the user may have forgotten."""
    spoken = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", str(error)))
    found = [
        f"{variable} sets {next(name for name in parameter.opts if name in spoken)}"
        for parameter in context.command.params
        if spoken.intersection(parameter.opts) and (variable := variable_of(context, parameter))
    ]
    return UsageError(error.what, "; ".join(filter(None, [error.hint, *found])))


def known_variables(commands: Mapping[str, Any]) -> dict[str, str]:
    """Every variable that an option of these commands reads, with the option's name; LACLI_DEBUG is no option's."""
    found = {
        variable: parameter.opts[0]
        for command in commands.values()
        for parameter in command.params
        for variable in ([parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or [])
    }
    return {DEBUG: "", **found}

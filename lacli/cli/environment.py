"""Options that the environment can set: LACLI_ with any of their long names, or llama.cpp's own variable."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import typer

from lacli.errors import UsageError
from lacli.options import said

OURS, THEIRS = "LACLI_", "LLAMA_ARG_"
"""The beginnings of variables: lacli's own, and those of llama.cpp's that it reads too."""

DEBUG = "LACLI_DEBUG"
"""Shows tracebacks; `main.py` reads it, and it belongs to no option."""

OTHERS = {
    "--api-key": "LLAMA_API_KEY",
    "--batch-size": "LLAMA_ARG_BATCH",
    "--gpu-layers": "LLAMA_ARG_N_GPU_LAYERS",
    "--metrics": "LLAMA_ARG_ENDPOINT_METRICS",
    "--parallel": "LLAMA_ARG_N_PARALLEL",
    "--predict": "LLAMA_ARG_N_PREDICT",
    "--slots": "LLAMA_ARG_ENDPOINT_SLOTS",
    "--temp": "LLAMA_ARG_TEMPERATURE",
}
"""llama.cpp's variables that are not called like their option (common/arg.cpp)."""

EPILOG = (
    "The environment can set defaults: LACLI_ and a flag's long name, such as LACLI_WINDOW=10 for --window. The "
    "LLAMA_ARG_ variables of llama.cpp work too. 'lacli doctor' shows what is set."
)
"""The end of a command's help."""


def setting(*names: str, parser: Callable[[str], Any] | None = None, **more: Any) -> Any:
    """Declare a Typer option whose default the environment can change, by the rule in EPILOG."""

    def parse(text: str) -> Any:
        try:
            return parser and parser(text)
        except UsageError as error:
            raise typer.BadParameter(str(error)) from None

    return typer.Option(*names, envvar=variables(*names), show_envvar=False, parser=parser and parse, **more)


def variables(*names: str) -> list[str]:
    """An option's variables: LACLI_ with each long name, then llama.cpp's; behind LACLI_ its name is known too."""
    longs = [name.split("/")[0] for name in names if name.startswith("--")]
    own = [long.removeprefix("--").replace("-", "_").upper() for long in longs]
    others = [OTHERS[long] for long in longs if long in OTHERS]
    ours = [*own, *(each.removeprefix(THEIRS) for each in others if each.startswith(THEIRS))]
    return [*dict.fromkeys([*(OURS + each for each in ours), *(THEIRS + each for each in own), *others])]


def detail(value: str) -> str:
    """Read how much --stats prints: short or full, or of a variable yes or no."""
    return value if value in ("short", "full") else {"on": "short", "off": ""}[said(value, ("on", "off"))]


def yes_or_no(value: str) -> bool:
    """Read a flag's variable, in llama.cpp's words too."""
    return said(value, ("on", "off")) == "on"


def variable_of(context: typer.Context, parameter: Any) -> str:
    """The variable that set an option; '' if the command line or the default did."""
    source = context.get_parameter_source(getattr(parameter, "name", ""))
    if source is None or source.name != "ENVIRONMENT":
        return ""
    names = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []
    return next((name for name in names if os.environ.get(name)), "")

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
    """An option's variables: LACLI_ with each long name and with llama.cpp's own X, then llama.cpp's."""
    longs = [name.split("/")[0] for name in names if name.startswith("--")]
    shared = [LLAMA_CPP[long] for long in longs if long in LLAMA_CPP]
    ours = [long.removeprefix("--").replace("-", "_").upper() for long in longs] + shared
    theirs = [THEIRS + each for each in shared] + [LLAMA_CPP_WHOLE[long] for long in longs if long in LLAMA_CPP_WHOLE]
    return [*(OURS + each for each in dict.fromkeys(ours)), *theirs]


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

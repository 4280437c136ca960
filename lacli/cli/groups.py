"""Typer's options made of the registry's, the variables that set them, and groups of options that commands share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar

import typer

from lacli.options import Option, options_of

Made = TypeVar("Made")

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
    "LACLI_ and a flag's long name set a default, such as LACLI_WINDOW=10; llama.cpp's LLAMA_ARG_ variables do too."
)
"""The end of a command's help."""


def setting(*names: str, **more: Any) -> Any:
    """Declare a Typer option whose default the environment can change, by the rule in EPILOG."""
    return typer.Option(*names, envvar=variables(*names), show_envvar=False, **more)


def variables(*names: str) -> list[str]:
    """Return an option's variables: LACLI_ with each long name, then llama.cpp's."""
    longs = [name.split("/")[0] for name in names if name.startswith("--")]
    words = [long.removeprefix("--").replace("-", "_").upper() for long in longs]
    others = [OTHERS[long] for long in longs if long in OTHERS]
    return [*(f"LACLI_{each}" for each in words), *(f"LLAMA_ARG_{each}" for each in words), *others]


def parameters_of(settings: type[Any], *, only: Collection[str] = (), without: Collection[str] = ()) -> list[Parameter]:
    """Return a Typer option for each field of a settings class that has a flag; its value is None if it is not given.

    `only`: fields, () for all. `without`: fields that are left out.
    """
    return [
        parameter(each)
        for each in options_of(settings).values()
        if each.help and (not only or each.name in only) and each.name not in without
    ]


def parameter(each: Option) -> Parameter:
    """Return the Typer option of one setting."""
    flags, kind, shown = each.flags, str if each.read else each.kind, each.shown
    if each.repeated:
        kind = list[str]
    if each.default is True:
        flags = (f"{flags[0]}/--no-{flags[0].removeprefix('--')}", *flags[1:])
    elif not shown and each.default is not False and each.default not in (None, "", ()):
        shown = str(each.default)
    declare = setting if each.variable else typer.Option
    # Typer would put a default of its own in parentheses.
    told = f"{each.help}  [default: {shown}]" if shown else each.help
    declared = declare(*flags, help=told, metavar=each.metavar, show_default=False, parser=each.read)
    return Parameter(each.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, declared])


def group(make: Callable[..., Made], *options: Parameter) -> Callable[..., Made]:
    """Return a function that makes settings of those of its options that are given, lists as tuples."""

    def made(**values: Any) -> Made:
        given = {name: value for name, value in values.items() if value is not None}
        return make(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})

    made.__signature__ = Signature(options)  # type: ignore[attr-defined]
    return made


def with_groups(**groups: Callable[..., Any]) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Replace a command's parameters of these names by their groups' options, in their place.

    A group is a function whose parameters are Typer options. The command is called with what the groups return.
    """

    def decorate(command: Callable[..., Made]) -> Callable[..., Made]:
        parts = {name: signature(each, eval_str=True).parameters for name, each in groups.items()}
        own = signature(command, eval_str=True).parameters
        options = [each for name, one in own.items() for each in parts.get(name, {name: one}).values()]

        @wraps(command)
        def with_settings(**given: Any) -> Made:
            made = {
                name: groups[name](**{option: given.pop(option) for option in part}) for name, part in parts.items()
            }
            return command(**given, **made)

        # Typer reads a command's options from its signature and its annotations.
        shown = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in options]
        with_settings.__signature__ = Signature(shown)  # type: ignore[attr-defined]
        with_settings.__annotations__ = {each.name: each.annotation for each in shown}
        return with_settings

    return decorate


def typed(context: typer.Context) -> frozenset[str]:
    """Return the parameters whose options stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")

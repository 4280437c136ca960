"""Groups of options that commands share: a command names the settings it wants, and gets their flags.

A group is a function whose parameters are Typer options and whose result is a settings object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

import typer

from lacli.cli.environment import with_variables
from lacli.errors import UsageError

Group = Callable[..., Any]


def with_groups(**groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameters of these names by their groups' options, in their place.

    The command is called with what the groups make of the options; a parameter `given` gets the names of the options'
    parameters that were typed. An option that the command has itself is its own,
    and the group's stays at its default.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = signature(command).parameters
        parts = {name: [each for each in _parameters(group) if each.name not in own] for name, group in groups.items()}
        shown: list[Parameter] = []
        for parameter in _parameters(command):
            if parameter.name != "given":
                shown += parts.get(parameter.name, [parameter])

        @wraps(command)
        def with_settings(called: typer.Context | None = None, **given: Any) -> None:
            try:
                made = {
                    name: groups[name](**{each.name: given.pop(each.name) for each in part})
                    for name, part in parts.items()
                }
                if "given" in own:
                    made["given"] = _typed(called)
                command(**given, **made)
            except UsageError as error:
                if called is None:
                    raise
                raise with_variables(error, called) from error

        context = Parameter("called", Parameter.KEYWORD_ONLY, annotation=typer.Context)
        with_settings.__signature__ = Signature([*shown, context])  # type: ignore[attr-defined]  # for inspect.signature
        with_settings.__annotations__ = {parameter.name: parameter.annotation for parameter in [*shown, context]}
        return with_settings

    return decorate


def _typed(called: typer.Context | None) -> frozenset[str]:
    """The parameters whose options stand on the command line."""
    if called is None:
        return frozenset()
    sources = {name: called.get_parameter_source(name) for name in called.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Keyword parameters with their annotations evaluated where the function stands."""
    hints = get_type_hints(function, include_extras=True)
    return [
        parameter.replace(annotation=hints[parameter.name], kind=Parameter.KEYWORD_ONLY)
        for parameter in signature(function).parameters.values()
    ]

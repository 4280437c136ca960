"""Groups of options that commands share: a command names the settings it wants, and gets their flags.

A group is a function whose parameters are Typer options and whose result is a settings object, or a table of options
with what makes settings of their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from lacli.cli.environment import setting
from lacli.settings import spellings


class Table(NamedTuple):
    """Options by the fields of a settings class that they set, and what makes settings of all their values."""

    options: tuple[Parameter, ...]
    make: Callable[..., Any]


Group = Callable[..., Any] | Table


def field_options(settings: Any, rows: Mapping[str, str | Mapping[str, Any]]) -> list[Parameter]:
    """Options with the names, types and defaults of the fields of `settings`, an instance with its defaults.

    `rows`: the help of each field, or all that `setting` is told of it.
    """
    hints = get_type_hints(type(settings))
    return [
        flag(name, hints[name], getattr(settings, name), **({"help": row} if isinstance(row, str) else row))
        for name, row in rows.items()
    ]


def flag(name: str, kind: Any, default: object, **more: Any) -> Parameter:
    """An option called like a setting, which the environment can set. `kind`: the type of its value."""
    first, *others = spellings(name)
    first += f"/--no-{first.removeprefix('--')}" if default is True else ""
    return option(name, kind, default, setting(first, *others, **more))


def option(name: str, kind: Any, default: object, declared: Any) -> Parameter:
    """One option of a table. `kind`: the type of its value. `declared`: a Typer option."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared])


def declared_options(declared: Mapping[str, Any]) -> list[Parameter]:
    """Options that are declared as types of parameters, by their names; None where they are not typed."""
    return [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in declared.items()]


def with_groups(**groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameters of these names by their groups' options, in their place.

    The command is called with what the groups make of the options. An option that the command has itself is its own,
    and the group's stays at its default.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = {each.name: each for each in _options(command)}
        shared = {name: _options(group) for name, group in groups.items()}
        parts = {name: [each for each in group if each.name not in own] for name, group in shared.items()}
        shown = [each for parameter in own.values() for each in parts.get(parameter.name, [parameter])]

        @wraps(command)
        def with_settings(**given: Any) -> None:
            made = {
                name: _maker(groups[name])(**{each.name: given.pop(each.name) for each in part})
                for name, part in parts.items()
            }
            command(**given, **made)

        # Typer reads a command's options from its signature and its annotations.
        with_settings.__signature__ = Signature(shown)  # type: ignore[attr-defined]
        with_settings.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
        return with_settings

    return decorate


def typed(context: typer.Context) -> frozenset[str]:
    """Return the parameters whose options stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def _maker(group: Group) -> Callable[..., Any]:
    return group.make if isinstance(group, Table) else group


def _options(group: Group) -> list[Parameter]:
    """Keyword parameters with their annotations evaluated where the function stands."""
    if isinstance(group, Table):
        return list(group.options)
    hints = get_type_hints(group, include_extras=True)
    return [
        parameter.replace(annotation=hints[parameter.name], kind=Parameter.KEYWORD_ONLY)
        for parameter in signature(group).parameters.values()
    ]

"""Groups of options that commands share: a command names the settings it wants, and gets their flags.

A group is a function whose parameters are Typer options and whose result is a settings object, or a table of options
with what makes settings of their values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from lacli.cli.environment import setting, yes_or_no
from lacli.options import Option, options_of


class Table(NamedTuple):
    """Options by the names of their values, and what makes settings of those."""

    options: tuple[Parameter, ...]
    make: Callable[..., Any]


Group = Callable[..., Any] | Table


def parameters_of(settings: type[Any], default: Any = None, *, only: tuple[str, ...] = ()) -> list[Parameter]:
    """Return a Typer option for each field of a settings class that has a flag.

    `default`: settings with the values of options that are not given; without them the value is None, and help shows
    the class's own. `only`: fields, () for all.
    """
    return [
        _parameter(each, getattr(default, each.name, None))
        for each in options_of(settings).values()
        if each.help and (not only or each.name in only)
    ]


def group_of(settings: type[Any]) -> Table:
    """Return the options of a settings class as a group."""
    return Table(tuple(parameters_of(settings, settings())), lambda **values: settings(**given(settings, values)))


def _parameter(each: Option, default: Any) -> Parameter:
    """Return a setting's Typer option."""
    flags, kind, shown = each.flags, each.kind, each.shown or False
    if each.repeated or each.read or not each.variable:
        kind, default = (list[str] if each.repeated else str), None
    elif default is True:
        flags = (f"{flags[0]}/--no-{flags[0].removeprefix('--')}", *flags[1:])
    elif default is None and not shown:
        shown = str(each.default) if each.default else False
    declared = (setting if each.variable else typer.Option)(
        *flags,
        help=each.help,
        metavar=each.metavar,
        show_default=shown or (default is not None and default != "" and default is not False),
        parser=yes_or_no if kind is bool else None if each.repeated else each.read,
    )
    return option(each.name, Annotated[kind if default is not None else kind | None, declared], default)


def option(name: str, kind: Any, default: Any = None) -> Parameter:
    """Return one option of a table. `kind`: the type of its value, annotated with its Typer option."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def given(settings: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that were given, of repeated options as tuples of what their texts stand for."""
    known = options_of(settings)
    found = {name: value for name, value in values.items() if value is not None}
    for name, value in found.items():
        if known[name].repeated:
            found[name] = tuple(map(known[name].read or str, value))
    return found


def with_groups(**groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameters of these names by their groups' options, in their place.

    The command is called with what the groups make of the options. An option that the command has itself is its own,
    and the group's is as if it was not given.
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

"""The pages of -h and --help-all: usage, examples and flags in panels, wrapped at spaces to fit the terminal.

Typer's own pages give each spelling of a flag a column and cut what is too long for its column.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from inspect import cleandoc
from shutil import get_terminal_size
from textwrap import TextWrapper
from typing import Any

import typer
from typer.core import TyperGroup

from lacli.cli import environment
from lacli.settings import THEIRS

MOST_COLUMNS = 100
"""Columns of a page at most: longer lines are hard to read."""

LEAST_COLUMNS = 28
"""Columns of a flag's words at least beside it; where there are fewer, they stand under it."""

LONGEST = 28
"""Columns of a flag with its value at most where its words stand beside it."""

FLAGS = "Flags"
"""The panel of the program's own flags, below those of its commands."""

TOGETHER = "\N{NO-BREAK SPACE}"
"""A space at which no line ends."""


@dataclass(frozen=True)
class Page:
    """What a command's pages have beside its flags.

    `examples`: command lines. `flags`: those of the short page in order, by one of their names with spaces between;
    None for all.
    """

    examples: tuple[str, ...]
    flags: str | None = None


PAGES = {
    "": Page(('lacli run qwen2.5-0.5b "Why is the sky blue?"',), ""),
    "run": Page(
        (
            'lacli run qwen2.5-0.5b "Why is the sky blue?"',
            'git diff | lacli run qwen2.5-coder-1.5b -p "Review this change."',
        ),
        "-p -f -sys -n -c -t -ngl --temp --mode --stats --show-accepted --json --help-all",
    ),
    "chat": Page(
        ("lacli chat qwen2.5-0.5b", "lacli chat --load size.json"),
        "-p -sys --load --log -n -c -t -ngl --temp --mode --stats --show-accepted --help-all",
    ),
    "serve": Page(
        ("lacli serve qwen2.5-0.5b", "lacli serve qwen2.5-0.5b --host 0.0.0.0 --api-key SECRET -np 8"),
        "--host --port -np --drain --api-key --alias -n -c -t -ngl --temp --mode --help-all",
    ),
    "doctor": Page(("lacli doctor",)),
    "list": Page(("lacli list",)),
    "pull": Page(("lacli pull qwen2.5-0.5b", "lacli pull Qwen/Qwen3-0.6B-GGUF:Q8_0"), "--offline --json -q --help-all"),
    "show": Page(
        ("lacli show qwen2.5-0.5b", "lacli show qwen2.5-0.5b -c 32768 -ctk q8_0"),
        "-c -ctk -ctv -W -N -G --template --json --help-all",
    ),
    "rm": Page(("lacli rm qwen2.5-0.5b",), "-y --json -q --help-all"),
    "bench": Page(
        ("lacli bench qwen2.5-0.5b", "lacli bench qwen2.5-0.5b --classes code,chat -W 5,10,15"),
        "--modes --classes --prompts --seconds --each -r -n -W -N -G -t -ngl --json --help-all",
    ),
    "check": Page(
        ("lacli check qwen2.5-0.5b", "lacli check qwen2.5-0.5b --strict --fail-on-difference"),
        "--prompts --each -p -f -n --mode --strict --fail-on-difference -t -ngl --temp --json --help-all",
    ),
    "cost": Page(
        ("lacli cost qwen2.5-0.5b", "lacli cost qwen2.5-0.5b --contexts 64,4096 --rows 1-16"),
        "--seconds --contexts --rows --fresh -t -ngl -fa -ctk -ctv --json --help-all",
    ),
    "mask": Page(("lacli mask -W 4 -N 3 -G 2",)),
    "rpc-server": Page(("lacli rpc-server -H 0.0.0.0",)),
}
"""The pages of the commands, and of the program itself by an empty name."""


class WithPages:
    """A command or a group of Typer's with these pages, and with the flag --help-all."""

    _show_all: Any = None

    def get_params(self, ctx: Any) -> list[Any]:
        """Typer's own list with -h at its end, and --help-all behind it."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        if self._show_all is None:
            self._show_all = copy(found[-1])
            self._show_all.name, self._show_all.opts = "help_all", ["--help-all"]
            self._show_all.help, self._show_all.callback = "Show every flag.", _print_all
        return [*found, self._show_all]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Hand the short page to Typer, which prints it."""
        formatter.write(page(self, ctx, full=False))


class Command(WithPages, environment.Command):
    """A command with these pages."""


class Program(WithPages, TyperGroup):
    """The program with these pages."""


def _print_all(context: typer.Context, parameter: typer.CallbackParam, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        typer.echo(page(context.command, context, full=True), color=context.color)
        raise typer.Exit


def page(command: Any, context: typer.Context, *, full: bool) -> str:
    """A command's page. `full`: with every flag, all of its names and variables, and all paragraphs."""
    here = PAGES[command.name if context.parent else ""]
    width = min(get_terminal_size().columns, MOST_COLUMNS)
    shown = [each for each in command.get_params(context) if not getattr(each, "hidden", False)]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    flags = [each for each in shown if each not in arguments]
    if not full and here.flags is not None:
        by_name = {name: each for each in flags for name in each.opts}
        flags = [by_name[name] for name in here.flags.split()]
    inner = getattr(command, "commands", {})
    panels = {"": [(each.metavar, each.help if full else _first_sentence(each.help)) for each in arguments]}
    for each in inner.values():
        panels.setdefault(each.rich_help_panel, []).append((each.name, _first_sentence(each.help)))
    for each in flags:
        name = FLAGS if inner else each.rich_help_panel if full else None
        panels.setdefault(name or "", []).append((_term(each, full=full), _words(each, full=full)))
    blocks = _panels({name: rows for name, rows in panels.items() if rows}, width)
    paragraphs = cleandoc(command.help).split("\n\n")
    return "\n\n".join(
        [
            _wrapped(_usage(context, arguments, inner), width, others=4),
            *(_wrapped(" ".join(each.split()), width) for each in (paragraphs if full else paragraphs[:1])),
            "\n".join(_wrapped(each, width, 2, 6) for each in here.examples),
            *(blocks if full else ["\n".join(blocks)]),
            *([_wrapped(command.epilog, width)] if full and command.epilog else []),
        ]
    )


def _usage(context: typer.Context, arguments: list[Any], inner: object) -> str:
    takes = [f"[{each.metavar}]{'...' * (each.nargs != 1)}" for each in arguments]
    if inner:
        takes = ["COMMAND [MODEL]"]
    behind = "; flags: lacli COMMAND -h, lacli --help-all" if inner else ""
    return " ".join(["Usage:", context.command_path, *takes, f"[FLAGS]{behind}"])


def _term(parameter: Any, *, full: bool) -> str:
    """A flag's names with the word for its value: -n, --predict N. `full`: all of its names."""
    names = sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: name[:2] == "--")
    if not full:
        names = [*[name for name in names if name[:2] != "--"][:1], *[name for name in names if name[:2] == "--"][:1]]
    return ", ".join(names) + ("" if parameter.is_flag else f" {_value(parameter)}")


def _words(parameter: Any, *, full: bool) -> str:
    """A flag's help with its default. `full`: all of it, with llama.cpp's variables; otherwise its first sentence."""
    found = [parameter.help if full else _first_sentence(parameter.help)]
    if default := _default(parameter):
        found.append(f"(default:{TOGETHER}{default})")
    names = parameter.envvar if full and isinstance(parameter.envvar, list) else ()
    return " ".join([*found, *(f"({name})" for name in names if name.startswith(THEIRS))])


def _value(parameter: Any) -> str:
    """The word for an option's value: its own, its choices, or one for its type."""
    kind = parameter.type_descriptor
    by_type = "N" if kind.annotation in (int, float) else "TEXT"
    return (parameter.metavar or "").strip("<>") or "|".join(kind.choices or ()) or by_type


def _default(parameter: Any) -> str:
    """An option's default in words; "" where there is none to tell."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if not parameter.show_default or parameter.default in (None, ""):
        return ""
    if parameter.is_flag:
        return str((parameter.opts if parameter.default else parameter.secondary_opts or [""])[0])
    return f"{parameter.default:g}" if isinstance(parameter.default, float) else str(parameter.default)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(cleandoc(text).split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".") + "."


def _panels(panels: dict[str, list[tuple[str, str]]], width: int) -> list[str]:
    """The panels of a page, whose rows line up, with their names."""
    rows = [row for rows in panels.values() for row in rows]
    column = 2 + max((len(term) for term, _ in rows if len(term) <= LONGEST), default=0) + 2
    longest = max(len(word) for _, text in rows for word in text.split(" "))
    column = column if width - column >= max(longest, LEAST_COLUMNS) else 6
    blocks = {name: "\n".join(_row(*row, width, column) for row in rows) for name, rows in panels.items()}
    return [f"{typer.style(name, bold=True)}\n{text}" if name else text for name, text in blocks.items()]


def _row(term: str, text: str, width: int, column: int) -> str:
    """A row of a panel: its text beside the term, or under it where the term reaches into the text's column."""
    named = _wrapped(term, width, 2, 6).split("\n")
    lines = _wrapped(text, width, column, column).split("\n")
    shown = [line.replace(line.strip(), typer.style(line.strip(), fg="cyan")) for line in named]
    if len(named) == 1 and len(named[0]) + 2 <= column:
        shown = [shown[0] + lines.pop(0)[len(named[0]) :]]
    return "\n".join([*shown, *lines])


def _wrapped(text: str, width: int, first: int = 0, others: int = 0) -> str:
    """Text wrapped at spaces only. `first`, `others`: columns before its first line and before the others."""
    wrapper = TextWrapper(width, " " * first, " " * others, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(text).replace(TOGETHER, " ")

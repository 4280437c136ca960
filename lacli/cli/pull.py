"""`lacli pull`: models fetched one after another, and the paths of their files."""

from __future__ import annotations

import json as json_format
from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.model_names import complete_model
from lacli.errors import UsageError

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        autocompletion=complete_model,
        help="owner/repo[:quant] on Hugging Face, or a name of 'lacli list'. hf:owner/repo/file.gguf names one file.",
    ),
]


def pull(
    models: Names = None,
    model_file: options.ModelFile = None,
    hf_repo: options.HubRepository = None,
    offline: options.Offline = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Fetch models from Hugging Face, or their newest versions.

    It prints the paths of their files. They go to the Hugging Face cache, which llama-cli shares.
    """
    from lacli.hub.download import check_file, fetch_model
    from lacli.hub.names import HubModel, own_aliases, read_aliases, read_name
    from lacli.llamacpp.gguf import parts
    from lacli.terminal.screen import Screen

    models = options.model_names(models, model_file, hf_repo)
    if not models:
        raise UsageError(options.NO_MODEL, options.NAMES)
    screen = Screen(color=color, quiet=quiet)
    aliases = read_aliases(own_aliases(), screen.note)
    wanted = [(name, read_name(name, aliases)) for name in models]
    pulled: list[dict[str, str | int]] = []
    try:
        for name, model in wanted:
            if isinstance(model, HubModel):
                flags = {"offline": offline, "quiet": quiet, "fresh": not offline}
                path = check_file(fetch_model(model, **flags, say=screen.note))
            else:
                path = check_file(model)
            size = sum(part.stat().st_size for part in parts(path))
            pulled.append({"name": name, "model": str(model), "path": str(path), "size": size})
            if not json:
                screen.line(str(path))
    finally:
        # If one fails, those before it are there all the same.
        if json:
            screen.line(json_format.dumps({"models": pulled}, ensure_ascii=False))

"""`lacli pull`: its flags, and one call of `pull_models`."""

from __future__ import annotations

from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.model_names import complete_name
from lacli.errors import UsageError

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        autocompletion=complete_name,
        help="owner/repo[:quant] or hf:owner/repo/file.gguf on the Hugging Face Hub, or an alias ('lacli list').",
    ),
]


def pull(
    models: Names = None,
    offline: options.Offline = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Fetch models from the Hugging Face Hub, or their newest versions, and print the paths of their files.

    They go to the Hugging Face cache, which llama-cli shares. A download that breaks off goes on where it ended; only
    that of a file above 50 GB begins anew.
    """
    from lacli.cli.folders import own_aliases
    from lacli.shelf.pulling import pull_models
    from lacli.terminal.screen import Screen

    if not models:
        raise UsageError("no MODEL is given", "lacli list shows the names that lacli knows")
    pull_models(models, own_aliases(), Screen(color=color, quiet=quiet), offline=offline, as_json=json)

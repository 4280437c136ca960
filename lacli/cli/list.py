"""`lacli list`: its flags, and the width of the terminal."""

from __future__ import annotations

from lacli.cli import options


def list_models(json: options.Json = False) -> None:
    """List the models on this disk, and the short names (aliases) that can be given as MODEL.

    On disk are the models of the Hugging Face cache, which llama-cli shares. Nothing is fetched.
    """
    from lacli.cli.folders import own_aliases
    from lacli.shelf.listing import list_shelf
    from lacli.terminal.screen import Screen
    from lacli.text.files import columns

    list_shelf(own_aliases(), Screen(), width=columns(), as_json=json)

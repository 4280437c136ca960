"""`lacli list`: its flags, and the width of the terminal."""

from __future__ import annotations

import json as json_format
from time import time

from lacli.cli import options


def list_models(json: options.Json = False) -> None:
    """List the models on this disk, and names for MODEL.

    With what each weighs and the memory it takes to run. On disk are the models of the Hugging Face cache, which
    llama-cli shares. Nothing is fetched.
    """
    from lacli.hub.listing import inventory_json, inventory_text, take_inventory
    from lacli.hub.names import own_aliases
    from lacli.terminal.screen import Screen
    from lacli.text.files import columns

    screen = Screen()
    found = take_inventory(own_aliases(), screen.note)
    if json:
        screen.line(json_format.dumps(inventory_json(found), ensure_ascii=False))
    else:
        screen.line(inventory_text(found, columns(), time()))

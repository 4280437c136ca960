"""`lacli pull` as a whole: models fetched into the hub's cache by their names, and their paths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lacli.hub.aliases import read_aliases
from lacli.hub.names import HubModel, read_name
from lacli.llamacpp.gguf import parts
from lacli.resolve import check_file
from lacli.terminal.screen import Screen


@dataclass(frozen=True)
class Pulled:
    """A model that is on this disk now: what was asked for, what it means, the file to open, bytes of all its parts."""

    name: str
    model: str
    path: Path
    size: int


def pull_models(
    names: Sequence[str], own: Path, screen: Screen, *, offline: bool = False, as_json: bool = False
) -> None:
    """Fetch models one after another, and print each one's path as soon as it is there; as JSON, all at the end.

    own: the user's aliases. The hub is asked for the newest of each unless offline. Raises ModelLoadError for the
    first that cannot be had.
    """
    aliases = read_aliases(own, screen.note)
    wanted = [(name, read_name(name, aliases)) for name in names]
    pulled: list[Pulled] = []
    try:
        for name, model in wanted:
            path = check_file(_fetch(model, name, screen, offline=offline) if isinstance(model, HubModel) else model)
            pulled.append(Pulled(name, str(model), path, sum(part.stat().st_size for part in parts(path))))
            if not as_json:
                screen.line(str(path))
    finally:
        # Where one fails, those before it are there all the same.
        if as_json:
            screen.line(json.dumps({"models": [_as_json(each) for each in pulled]}, ensure_ascii=False))


def _as_json(pulled: Pulled) -> dict[str, str | int]:
    return {"name": pulled.name, "model": pulled.model, "path": str(pulled.path), "size": pulled.size}


def _fetch(model: HubModel, name: str, screen: Screen, *, offline: bool) -> Path:
    from lacli.hub.download import fetch_model

    # That the newest could not be asked for is no mere note.
    return fetch_model(
        model,
        offline=offline,
        quiet=screen.quiet,
        fresh=not offline,
        name=name,
        say=screen.note,
        warn=lambda sentence: screen.say(f"lacli: {sentence}"),
    )

"""`lacli show` as a whole: a model that is on this disk, found by its name and shown; nothing is fetched."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lacli.errors import LacliError, ModelLoadError
from lacli.hub.aliases import read_aliases
from lacli.hub.cache import find_cached
from lacli.hub.names import HubModel, read_name
from lacli.llamacpp.gguf import read_header
from lacli.llamacpp.settings import ModelSettings
from lacli.resolve import check_file, demo_model
from lacli.settings import DecodeSettings
from lacli.shelf.card import make_card
from lacli.shelf.card_report import card_json, card_text
from lacli.terminal.screen import Screen, loading_model


@dataclass(frozen=True)
class ShowPlan:
    """How a card is shown. width: columns of the terminal, 0 for none. template: the chat template alone, whole."""

    width: int = 0
    template: bool = False
    json: bool = False
    verbose: bool = False


def show_model(
    name: str | None, own: Path, loading: ModelSettings, decoding: DecodeSettings, plan: ShowPlan, screen: Screen
) -> None:
    """Print what a model is and needs. own: the user's list of aliases.

    Raises ModelLoadError when it is not on this disk or its file cannot be read.
    """
    path = find_on_disk(name, own, screen)
    if name is None:
        screen.note(f"no MODEL given: this is the bundled demo model {path.name}")
    if plan.template and not plan.json:
        screen.line(_template(path))
        return
    with loading_model(screen):
        card = make_card(path, loading, decoding, verbose=plan.verbose)
    if plan.json:
        screen.line(json.dumps(card_json(card, loading, decoding), ensure_ascii=False))
    else:
        screen.line(card_text(card, loading, decoding, plan.width))


def find_on_disk(name: str | None, own: Path, screen: Screen) -> Path:
    """The file of a MODEL argument that is on this disk. Raises ModelLoadError where it is not."""
    if name is None:
        return demo_model()
    found = read_name(name, read_aliases(own, screen.note))
    if isinstance(found, HubModel):
        cached = find_cached(found, anything=True)
        if cached is None:
            raise ModelLoadError(f"{found} is not on this disk", f"lacli pull {name} fetches it")
        found = cached
    return check_file(found)


def _template(path: Path) -> str:
    template = read_header(path).template
    if not template:
        raise LacliError(f"{path.name} has no chat template", "prompts are continued as they are")
    return template

"""What `lacli list` shows: the models on this disk and what the aliases mean, as two tables or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lacli.hub.cache import LocalModel, cache_folder, cached_models, local_file, matching
from lacli.hub.names import Alias, HubModel, alias_model, read_aliases
from lacli.llamacpp.gguf import Header
from lacli.llamacpp.model import LARGEST_DEFAULT_CONTEXT
from lacli.text.format import age_in_words, columns, printable, size_in_words

HEADER = ("MODEL", "SIZE", "MEMORY", "TYPE", "CONTEXT", "LAST USED")
ALIAS_HEADER = ("ALIAS", "", "SIZE", "MEMORY", "WHAT IT IS", "MODEL")

F16_BYTES = 2
"""Bytes of a number in the cache without -ctk and -ctv."""


def running_memory(header: Header) -> int:
    """Bytes of a model's weights and of its cache at the default context; llama.cpp's buffers come on top."""
    return header.weights + F16_BYTES * header.cell_values * min(header.context, LARGEST_DEFAULT_CONTEXT)


@dataclass(frozen=True)
class Inventory:
    """What is listed. `own`: the path of the user's list of aliases."""

    models: Sequence[LocalModel]
    aliases: Mapping[str, Alias]
    cache: Path
    own: Path

    def here(self, alias: Alias) -> list[LocalModel]:
        """The models on this disk that the alias means, in any quant if it names none."""
        wanted = alias_model(alias)
        if isinstance(wanted, HubModel):
            return matching(self.models, wanted)
        return [model for model in self.models if model.path == wanted]

    def sizes(self, alias: Alias) -> tuple[int, int]:
        """Bytes of the file and to run it, of the only model here that it means or by the list of aliases, or 0."""
        here = self.here(alias)
        if len(here) == 1 and (header := here[0].header):
            return here[0].size, running_memory(header)
        return alias.size, alias.size + alias.cache


def take_inventory(own: Path, say: Callable[[str], None] | None = None) -> Inventory:
    """All models on this disk: those of the hub by name and the files that aliases name.

    `own`: the user's list of aliases, which need not exist; `say` is told of its broken lines.
    """
    aliases, cache = read_aliases(own, say), cache_folder()
    models = cached_models()
    for alias in aliases.values():
        path = alias_model(alias)
        if isinstance(path, Path) and path.is_file():
            models.append(local_file(alias.name, path))
    return Inventory(models, aliases, cache, own)


def inventory_json(found: Inventory) -> dict[str, Any]:
    """One object. `size`, `memory`: bytes, null if unknown. `last_used`: UTC."""
    return {
        "cache": str(found.cache),
        "models": [_model_json(model) for model in found.models],
        "aliases": [_alias_json(alias, found) for alias in found.aliases.values()],
    }


def _alias_json(alias: Alias, found: Inventory) -> dict[str, Any]:
    size, memory = (each or None for each in found.sizes(alias))
    told = {
        "name": alias.name,
        "model": str(alias_model(alias)),
        "words": alias.words,
        "on_disk": bool(found.here(alias)),
    }
    return {**told, "size": size, "memory": memory}


def _model_json(model: LocalModel) -> dict[str, Any]:
    header, used = model.header, model.last_used
    return {
        "name": model.name,
        "path": str(model.path),
        "repository": model.repository or None,
        "file": model.file or None,
        "size": model.size,
        "memory": running_memory(header) if header else None,
        "type": header.file_type if header else None,
        "context": header.context if header else None,
        "last_used": datetime.fromtimestamp(used, UTC).isoformat(timespec="seconds") if used else None,
        "problem": model.problem or None,
    }


def inventory_text(found: Inventory, width: int, now: float) -> str:
    """The aliases, what the signs mean, and last what is on this disk, because a terminal shows the end.

    `width`: columns of the terminal; 0: one line for each model and alias. `now`: seconds since 1970.
    """
    legend = (
        "MEMORY: weights and cache at the default context (-c)",
        "* on this disk",
        f"names of your own: lines 'NAME OWNER/REPO QUANT' or 'NAME FILE.gguf' in {found.own}",
    )
    parts = [*_alias_table(found, width), "", *legend]
    return "\n".join([*parts, "", *_model_table(found, now)] if found.models else parts)


def _alias_table(found: Inventory, width: int) -> list[str]:
    """One row an alias, without the model if the terminal has no room for it."""
    rows = []
    for alias in found.aliases.values():
        size, memory = found.sizes(alias)
        sign = "*" * bool(found.here(alias))
        told = (size_in_words(each) if each else "-" for each in (size, memory))
        rows.append((alias.name, sign, *told, alias.words or str(alias_model(alias)), str(alias_model(alias))))
    lines = columns(ALIAS_HEADER, rows, right=(2, 3))
    if width and max(map(len, lines)) > width:
        return columns(ALIAS_HEADER[:-1], [row[:-1] for row in rows], right=(2, 3), width=width)
    return lines


def _model_table(found: Inventory, now: float) -> list[str]:
    """One row a model, with its problem below it."""
    rows = []
    for model in found.models:
        used = age_in_words(now - model.last_used) if model.last_used else "-"
        known = ("-", "-", "-")
        if header := model.header:
            known = size_in_words(running_memory(header)), header.file_type, f"{header.context:,}"
        rows.append((model.name, size_in_words(model.size), *known, used))
    first, *lines = columns(HEADER, rows, right=(1, 2, 4))
    shown = [first]
    for line, model in zip(lines, found.models, strict=True):
        shown += [line, *([f"    {printable(model.problem)}"] if model.problem else [])]
    return shown

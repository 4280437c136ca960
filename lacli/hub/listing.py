"""What `lacli list` shows: the models on this disk and what the aliases mean, as two tables or as JSON.

A model's memory is that of its weights and of its cache at the default context; what is not on this disk has the
figures of the list of aliases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lacli.hub.cache import LocalModel, cache_folder, cached_models, local_file, matching
from lacli.hub.names import Alias, HubModel, alias_model, read_aliases
from lacli.llamacpp.devices import total_memory
from lacli.llamacpp.gguf import Header
from lacli.llamacpp.model import LARGEST_DEFAULT_CONTEXT
from lacli.terminal.screen import wrapped
from lacli.text.format import DAY, age_in_words, columns, printable, size_in_words

HEADER = ("MODEL", "SIZE", "MEMORY", "TYPE", "CONTEXT", "LAST USED")
ALIAS_HEADER = ("ALIAS", "", "SIZE", "MEMORY", "WHAT IT IS", "MODEL")
SIZES = (2, 3)
"""The columns of sizes among those of the aliases."""


F16_BYTES = 2
"""Bytes of a number in the cache without -ctk and -ctv."""


def running_memory(header: Header) -> int:
    """Bytes of a model's weights and of its cache at the default context; llama.cpp's buffers come on top."""
    per_layer = header.kv_heads if header.kv_heads[1:] else header.kv_heads * header.layers
    numbers = sum(per_layer) * (header.key_length + header.value_length)
    return header.weights + F16_BYTES * numbers * min(header.context, LARGEST_DEFAULT_CONTEXT)


@dataclass(frozen=True)
class Inventory:
    """What is listed. `own`: the path of the user's list of aliases. `memory`: bytes of this machine's, 0: unknown."""

    models: Sequence[LocalModel]
    aliases: Mapping[str, Alias]
    cache: Path
    own: Path
    memory: int = 0

    def here(self, alias: Alias) -> list[LocalModel]:
        """The models on this disk that the alias means, in any quant if it names none."""
        wanted = alias_model(alias)
        if isinstance(wanted, HubModel):
            return matching(self.models, wanted)
        return [model for model in self.models if model.path == wanted]

    def sizes(self, alias: Alias) -> tuple[int, int]:
        """Bytes of the file and to run it: of the only model here that it means, or by the list; 0: unknown."""
        here = self.here(alias)
        if len(here) == 1 and (header := here[0].header):
            return here[0].size, running_memory(header)
        return alias.size, alias.size + alias.cache

    def is_too_large(self, alias: Alias) -> bool:
        """True if it takes more memory to run than this machine has without a GPU's."""
        return 0 < self.memory < self.sizes(alias)[1]

    def containing(self, words: Sequence[str]) -> Inventory:
        """Keep the aliases with all `words` in name, repository or description, and the local models they name."""

        def has(*texts: str) -> bool:
            return all(word.casefold() in " ".join(texts).casefold() for word in words)

        aliases = {name: each for name, each in self.aliases.items() if has(each.name, each.target, each.words)}
        meant = [model for alias in aliases.values() for model in self.here(alias)]
        models = [each for each in self.models if each in meant or has(each.name, each.file or each.path.name)]
        return replace(self, models=models, aliases=aliases)


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
    return Inventory(models, aliases, cache, own, total_memory())


def inventory_json(found: Inventory) -> dict[str, Any]:
    """One object. `size`, `memory`: bytes, null if unknown. `last_used`: UTC."""
    return {
        "cache": str(found.cache),
        "models": [_model_json(model) for model in found.models],
        "aliases": [_alias_json(alias, found) for alias in found.aliases.values()],
    }


def _alias_json(alias: Alias, found: Inventory) -> dict[str, Any]:
    size, memory = found.sizes(alias)
    return {
        "name": alias.name,
        "model": alias.target,
        "words": alias.words,
        "own": alias.own,
        "on_disk": bool(found.here(alias)),
        "size": size or None,
        "memory": memory or None,
    }


def _model_json(model: LocalModel) -> dict[str, Any]:
    header = model.header
    return {
        "name": model.name or None,
        "path": str(model.path),
        "repository": model.repository or None,
        "file": model.file or None,
        "size": model.size,
        "memory": running_memory(header) if header else None,
        "type": header.file_type if header else None,
        "architecture": header.architecture if header else None,
        "parameters": header.parameters if header else None,
        "context": header.context if header else None,
        "last_used": _utc(model.last_used),
        "problem": model.problem or None,
    }


def _utc(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None


def inventory_text(found: Inventory, width: int, now: float) -> str:
    """The aliases, what the signs mean, and last what is on this disk, because a terminal shows the end.

    `width`: columns of the terminal; 0: one line for each model and alias. `now`: seconds since 1970.
    """
    parts = [_alias_table(found, width), _legend(found, width)] if found.aliases else []
    if found.models:
        parts.append(_model_table(found, now))
    return "\n\n".join(parts)


def _alias_table(found: Inventory, width: int) -> str:
    """One row an alias, without the model if the terminal has no room for it."""
    rows = []
    for alias in found.aliases.values():
        wanted = {"*": found.here(alias), "+": alias.own, "!": found.is_too_large(alias)}
        signs = "".join(sign for sign, is_so in wanted.items() if is_so)
        size, memory = (size_in_words(each) if each else "-" for each in found.sizes(alias))
        rows.append((alias.name, signs, size, memory, alias.words or alias.target, alias.target))
    lines = columns(ALIAS_HEADER, rows, right=SIZES)
    if width and max(map(len, lines)) > width:
        lines = columns(ALIAS_HEADER[:-1], [row[:-1] for row in rows], right=SIZES, width=width)
    return "\n".join(lines)


def _legend(found: Inventory, width: int) -> str:
    lines = ["MEMORY: weights and cache at the default context (-c)", "* on this disk"]
    if any(map(found.is_too_large, found.aliases.values())):
        lines.append(f"! takes more than the {size_in_words(found.memory)} of this machine, a GPU's memory not counted")
    if any(alias.own for alias in found.aliases.values()):
        lines.append(f"+ of your own, from {found.own}")
    else:
        lines.append(f"names of your own: lines 'NAME OWNER/REPO QUANT' or 'NAME FILE' in {found.own}")
    lines.append("lacli show MODEL tells more of one, lacli pull MODEL fetches one, lacli rm MODEL removes one")
    return "\n".join(wrapped(line, width) if width else line for line in lines)


def _model_table(found: Inventory, now: float) -> str:
    """One row a model, with its problem below it."""
    header, *lines = columns(HEADER, [_model_row(model, now) for model in found.models], right=(1, 2, 4))
    shown = [header]
    for line, model in zip(lines, found.models, strict=True):
        shown += [line, *([f"    {printable(model.problem)}"] if model.problem else [])]
    return "\n".join(shown)


def _model_row(model: LocalModel, now: float) -> tuple[str, ...]:
    header, seconds = model.header, now - model.last_used
    # Linux notes reads once a day by default (relatime), so no hour is certain.
    used = age_in_words(seconds) if seconds >= DAY else "today"
    return (
        model.name,
        size_in_words(model.size),
        size_in_words(running_memory(header)) if header else "-",
        header.file_type if header else "-",
        f"{header.context:,}" if header and header.context else "-",
        used if model.last_used else "-",
    )

"""The output of `lacli list` and `lacli show`, as text and JSON: models on this disk, aliases, one model's card.

A card shows the memory that llama.cpp counts for simulated contexts: no weights are read, no memory is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lacli.errors import LacliError
from lacli.hub.cache import LocalModel, cache_folder, cached_models, local_file, matching
from lacli.hub.names import Alias, HubModel, alias_model, read_aliases
from lacli.llamacpp.context import LlamaContext, max_rollback
from lacli.llamacpp.gguf import Header, read_header
from lacli.llamacpp.library import start
from lacli.llamacpp.machine import with_threads
from lacli.llamacpp.model import LARGEST_DEFAULT_LIMIT, LlamaModel
from lacli.llamacpp.settings import ContextSize, ModelSettings, fit_to_batch
from lacli.settings import MODES, DecodeSettings, ModeName
from lacli.text.format import age_in_words, align_columns, count_in_words, printable, size_in_words

HEADER = ("MODEL", "SIZE", "MEMORY", "TYPE", "CONTEXT", "LAST USED")
ALIAS_HEADER = ("ALIAS", "", "SIZE", "MEMORY", "WHAT IT IS", "MODEL")


def running_memory(header: Header) -> int:
    """Return the bytes of a model's weights and of its cache at the default context, without the compute buffers."""
    # The default cache type is F16, of 2 bytes.
    return header.weights + 2 * header.cell_values * min(header.trained_tokens, LARGEST_DEFAULT_LIMIT)


@dataclass(frozen=True)
class Inventory:
    """What `lacli list` shows. `cache`: the hub cache's folder. `own`: the path of the user's list of aliases."""

    models: Sequence[LocalModel]
    aliases: Mapping[str, Alias]
    cache: Path
    own: Path

    def here(self, alias: Alias) -> list[LocalModel]:
        """Return the models on this disk that the alias means. An alias without a quant means all quants."""
        wanted = alias_model(alias)
        if isinstance(wanted, HubModel):
            return matching(self.models, wanted)
        return [model for model in self.models if model.path == wanted]

    def sizes(self, alias: Alias) -> tuple[int, int]:
        """Return the bytes of the alias's files and the bytes of memory to run them, 0 if unknown.

        They are of the model on this disk if the alias means exactly one readable model, and from `alias` if not.
        """
        here = self.here(alias)
        if len(here) == 1 and (header := here[0].header):
            return here[0].size, running_memory(header)
        return alias.size, alias.size + alias.cache


def take_inventory(own: Path, say: Callable[[str], None] | None = None) -> Inventory:
    """Find all aliases, and all models on this disk: in the hub's cache, and the files that aliases name.

    `own`: the user's list of aliases, which need not exist. `say`: called with a sentence for each faulty line.
    """
    aliases, cache = read_aliases(own, say), cache_folder()
    models = cached_models()
    for alias in aliases.values():
        path = alias_model(alias)
        if isinstance(path, Path) and path.is_file():
            models.append(local_file(alias.name, path))
    return Inventory(models, aliases, cache, own)


def inventory_json(found: Inventory) -> dict[str, Any]:
    """Return the JSON object of `lacli list`. `size`, `memory`: bytes. `last_used`: UTC text. null: unknown."""
    return {
        "cache": str(found.cache),
        "models": [_model_json(model) for model in found.models],
        "aliases": [_alias_json(alias, found) for alias in found.aliases.values()],
    }


def _alias_json(alias: Alias, found: Inventory) -> dict[str, Any]:
    size, memory = (each or None for each in found.sizes(alias))
    return {
        "name": alias.name,
        "model": str(alias_model(alias)),
        "words": alias.words,
        "on_disk": bool(found.here(alias)),
        "size": size,
        "memory": memory,
    }


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
        "context": header.trained_tokens if header else None,
        "last_used": datetime.fromtimestamp(used, UTC).isoformat(timespec="seconds") if used else None,
        "problem": model.problem or None,
    }


def inventory_text(found: Inventory, width: int, now: float) -> str:
    """Return a table of aliases, a legend and, if there are any, a table of the models on this disk.

    The models come last, since a terminal shows the end. `width`: its columns, 0: no limit. `now`: seconds since 1970.
    """
    legend = (
        "MEMORY: weights and cache at the default context (-c)",
        "* on this disk",
        f"names of your own: lines 'NAME OWNER/REPO QUANT' or 'NAME FILE.gguf' in {found.own}",
    )
    parts = [*_alias_table(found, width), "", *legend]
    return "\n".join([*parts, "", *_model_table(found, now)] if found.models else parts)


def _alias_table(found: Inventory, width: int) -> list[str]:
    """Return the lines of a table with one row an alias, without the column MODEL if `width` (0: any) is too small."""
    rows = []
    for alias in found.aliases.values():
        size, memory = found.sizes(alias)
        sign = "*" * bool(found.here(alias))
        told = (size_in_words(each) if each else "-" for each in (size, memory))
        rows.append((alias.name, sign, *told, alias.words or str(alias_model(alias)), str(alias_model(alias))))
    lines = align_columns(ALIAS_HEADER, rows, right=(2, 3))
    if width and max(map(len, lines)) > width:
        return align_columns(ALIAS_HEADER[:-1], [row[:-1] for row in rows], right=(2, 3), width=width)
    return lines


def _model_table(found: Inventory, now: float) -> list[str]:
    """Return the lines of a table with one row a model; a model's problem, if any, is the line after its row."""
    rows = []
    for model in found.models:
        used = age_in_words(now - model.last_used) if model.last_used else "-"
        known = ("-", "-", "-")
        if header := model.header:
            known = size_in_words(running_memory(header)), header.file_type, f"{header.trained_tokens:,}"
        rows.append((model.name, size_in_words(model.size), *known, used))
    first, *lines = align_columns(HEADER, rows, right=(1, 2, 4))
    shown = [first]
    for line, model in zip(lines, found.models, strict=True):
        shown += [line, *([f"    {printable(model.problem)}"] if model.problem else [])]
    return shown


@dataclass(frozen=True)
class Memory:
    """The memory of a context of `tokens` cells in bytes, without the weights.

    `cache`: the KV cache. `plain`, `lookahead`: cache, compute and output buffers in this mode, None if it cannot run.
    """

    tokens: int
    cache: int
    plain: int
    lookahead: int | None


@dataclass(frozen=True)
class Card:
    """What `lacli show` prints. `modes`: all that work; `notes`: about modes. `problem`: why no mode works, or ""."""

    path: Path
    header: Header
    description: str = ""
    modes: tuple[ModeName, ...] = ()
    notes: tuple[str, ...] = ()
    memory: tuple[Memory, ...] = ()
    problem: str = ""


def make_card(
    path: Path, model_settings: ModelSettings, decode_settings: DecodeSettings, *, verbose: bool = False
) -> Card:
    """Return a model file's card. A file that can be read but not run gives a card with a `problem`.

    The memory is for `model_settings.context` cells, or for 4096, 8192 and all trained tokens if `context` is 0.
    `decode_settings`: the lookahead whose memory is counted. `verbose`: print llama.cpp's log on stderr. Raises
    ModelLoadError if the file cannot be read, UsageError if a step of `decode_settings` has more rows than a batch.
    """
    header, settings = read_header(path), with_threads(model_settings)
    fit_to_batch(decode_settings, settings)
    notes, memory = list[str](), list[Memory]()
    try:
        with LlamaModel(path, settings, verbose=verbose, simulated=True) as model:
            back, description = max_rollback(model, settings), model.description
            if model.chain_only:
                notes.append(f"{f'drafts of at most {back} tokens' if back else 'no drafts'}: {model.chain_only}")
            # llama.cpp allocates some memory for each cell even if the context is simulated.
            whole = min(model.trained_tokens, 2**20)
            shown = [settings.context] if settings.context else sorted({min(4096, whole), min(8192, whole), whole})
            for tokens in shown:
                memory.append(_memory(model, replace(settings, context=tokens), decode_settings))
    except LacliError as error:
        if not memory:
            return Card(path, header, problem=error.what)
        notes.append(error.what)
    # Lookahead drafts trees; the other modes also work with chains.
    able = tuple(mode for mode in MODES if mode == "plain" or back < 0 or (back and mode != "lookahead"))
    return Card(path, header, description, able, tuple(notes), tuple(memory))


def _memory(model: LlamaModel, model_settings: ModelSettings, decode_settings: DecodeSettings) -> Memory:
    tokens, cache, plain = _buffers(model, model_settings, DecodeSettings(mode="plain"))
    ahead = None if model.chain_only else _buffers(model, model_settings, decode_settings)[2]
    return Memory(tokens, cache, plain, ahead)


def _buffers(model: LlamaModel, model_settings: ModelSettings, decode_settings: DecodeSettings) -> tuple[int, int, int]:
    """Return the cells of a context for `decode_settings`, the bytes of its cache, and the bytes of all its buffers."""
    with LlamaContext(model, model_settings, ContextSize.of(decode_settings)) as context:
        mebibytes = start().buffers
        # KV holds the cells, RS the recurrent states.
        cache = mebibytes["KV"] + mebibytes["RS"]
        return context.cells, round(cache * 2**20), round(sum(mebibytes.values()) * 2**20)


def card_json(card: Card) -> dict[str, Any]:
    """Return the JSON object of `lacli show`. Sizes are bytes; null means unknown or absent."""
    return {
        "path": str(card.path),
        "description": card.description or None,
        **{name: value or None for name, value in asdict(card.header).items()},
        "modes": list(card.modes),
        "notes": list(card.notes),
        "problem": card.problem or None,
        "memory": [asdict(each) for each in card.memory],
    }


def card_text(card: Card, decode_settings: DecodeSettings) -> str:
    """Return lines of facts, then a table of each context's memory. `decode_settings`: the lookahead in the table."""
    lines = [f"{name:8}  {printable(words)}" for name, words in _facts(card) if words]
    weights = card.header.weights
    rows = [
        (
            f"{each.tokens:,}",
            size_in_words(each.cache),
            size_in_words(weights + each.plain),
            "-" if each.lookahead is None else size_in_words(weights + each.lookahead),
        )
        for each in card.memory
    ]
    if rows:
        flags = f"-W {decode_settings.window} -N {decode_settings.ngram} -G {decode_settings.guesses}"
        lines += ["", *align_columns(("CONTEXT", "CACHE", "PLAIN", "LOOKAHEAD"), rows, right=range(4))]
        lines += [f"with {size_in_words(weights)} of weights; LOOKAHEAD: {flags}"]
    return "\n".join(lines)


def _facts(card: Card) -> list[tuple[str, str]]:
    header = card.header
    heads = f", {max(header.heads)} heads on {max(header.kv_heads)}" if any(header.heads) else ""
    bits = header.weights * 8 / max(header.parameters, 1)
    size = f"{size_in_words(header.size)}, {count_in_words(header.parameters)} parameters of {bits:.1f} bits"
    return [
        ("model", header.name or card.path.name),
        ("file", str(card.path)),
        ("kind", card.description or f"{header.architecture} {header.file_type}"),
        ("size", size),
        ("context", f"trained with {header.trained_tokens:,} tokens" if header.trained_tokens else ""),
        ("shape", f"{header.layers} layers, embedding {header.embedding:,}{heads}, vocabulary {header.vocabulary:,}"),
        ("experts", f"{header.experts_used} of {header.experts} a token" if header.experts else ""),
        ("template", "its own" if header.template else "none of its own"),
        ("modes", f"none: {card.problem}" if card.problem else ", ".join(card.modes)),
        *(("", note) for note in card.notes),
    ]

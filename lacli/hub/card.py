"""One model's card: what its file says, its modes, and the memory that contexts of it take.

The memory is llama.cpp's own count: contexts are made as they would be, but simulated, so that no weights are read and
nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lacli.errors import LacliError, ModelLoadError
from lacli.llamacpp.context import LlamaContext, max_rollback
from lacli.llamacpp.devices import with_threads
from lacli.llamacpp.gguf import Header, read_header
from lacli.llamacpp.library import library
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings, check_rows
from lacli.settings import MODES, DecodeSettings, ModeName
from lacli.terminal.screen import wrapped
from lacli.text.format import columns, count_in_words, printable, size_in_words

CONTEXTS = (4096, 8192)
"""Tokens of the contexts that are shown beside the model's own if none is asked for."""

MAX_CONTEXT = 2**20
"""Tokens of the largest context that is counted unasked: llama.cpp takes some memory a cell even then."""

CACHES = ("KV", "RS")
"""llama.cpp's names for the buffers of cells and of recurrent states."""

MIB = 2**20


@dataclass(frozen=True)
class Memory:
    """What a context of `tokens` cells takes beside the weights, in MiB.

    `cache`: of all its tokens. `plain`: buffers of plain decoding (compute and outputs). `lookahead`: the same with the
    sequences and rows of lookahead; None if the model cannot.
    """

    tokens: int
    cache: float
    plain: float
    lookahead: float | None


@dataclass(frozen=True)
class Card:
    """Everything that is shown of a model.

    `description`: llama.cpp's words for it. `notes`: sentences about the modes. `problem`: why it cannot be run, or "";
    nothing that takes a loaded model is known then.
    """

    path: Path
    header: Header
    description: str = ""
    adds_bos: bool = False
    modes: tuple[ModeName, ...] = ()
    notes: tuple[str, ...] = ()
    memory: tuple[Memory, ...] = ()
    problem: str = ""


def make_card(
    path: Path, model_settings: ModelSettings, decode_settings: DecodeSettings, *, verbose: bool = False
) -> Card:
    """The card of a model file; of several contexts where `model_settings.context` is 0.

    `decode_settings`: those of the lookahead whose memory is counted.
    Raises ModelLoadError if the file cannot be read, UsageError if the settings contradict each other.
    """
    header = read_header(path)
    check_rows(decode_settings, model_settings)
    try:
        model = LlamaModel(path, with_threads(model_settings), verbose=verbose, simulated=True)
    except ModelLoadError as error:
        return Card(path, header, problem=error.what)
    with model:
        back = max_rollback(model, with_threads(model_settings))
        notes = _notes(model, header, back)
        memory: list[Memory] = []
        try:
            for tokens in _contexts(model, model_settings.context):
                memory.append(_memory(model, replace(model_settings, context=tokens), decode_settings))
        except LacliError as error:
            if isinstance(error, ModelLoadError) and not memory:
                return Card(path, header, model.description, problem=error.what)
            notes.append(error.what)
        return Card(path, header, model.description, model.adds_bos, _modes(back), tuple(notes), tuple(memory))


def _contexts(model: LlamaModel, asked: int) -> list[int]:
    if asked:
        return [asked]
    whole = min(model.context, MAX_CONTEXT)
    return sorted({*(tokens for tokens in CONTEXTS if tokens < whole), whole} - {0})


def _memory(model: LlamaModel, model_settings: ModelSettings, decode_settings: DecodeSettings) -> Memory:
    tokens, cache, plain = _buffers(model, model_settings, DecodeSettings(mode="plain"))
    ahead = None if model.chain_only else _buffers(model, model_settings, decode_settings)[2]
    return Memory(tokens, cache, plain, ahead)


def _buffers(
    model: LlamaModel, model_settings: ModelSettings, decode_settings: DecodeSettings
) -> tuple[int, float, float]:
    """Cells of a context, and MiB of its cache and of its other buffers."""
    with LlamaContext(model, model_settings, decode_settings) as engine:
        kinds = library().buffers
        cache = sum(kinds.get(kind, 0.0) for kind in CACHES)
        return engine.cells, cache, sum(kinds.values()) - cache


def _modes(back: int) -> tuple[ModeName, ...]:
    """The modes of a model that can roll back `back` guesses, -1 for any: lookahead needs trees of them."""
    if not back:
        return ("plain",)
    return MODES if back < 0 else tuple(mode for mode in MODES if mode != "lookahead")


def _notes(model: LlamaModel, header: Header, back: int) -> list[str]:
    """Why a mode is missing, and what makes guesses dearer."""
    notes = []
    if why := model.chain_only:
        guesses = f"guesses in one chain of at most {back} only" if back else "no guesses"
        notes.append(f"{guesses}: {why}")
    if header.sliding_window:
        notes.append(f"a sliding window of {header.sliding_window} tokens, whose cache is kept whole for guesses")
    if header.experts:
        notes.append(f"{header.experts_used} of {header.experts} experts a token: every further row wakes more of them")
    return notes


def card_json(card: Card, model_settings: ModelSettings, decode_settings: DecodeSettings) -> dict[str, Any]:
    """One object. *_mib: MiB. null: not known, or there is none."""
    header = card.header
    facts = {name: value or None for name, value in asdict(header).items() if name != "weights"}
    return {
        "path": str(card.path),
        "description": card.description or None,
        "type": facts.pop("file_type"),
        "chat_template": facts.pop("template"),
        "weights_mib": round(header.weights / MIB, 2),
        **facts,
        "heads": _one_or_all(header.heads),
        "kv_heads": _one_or_all(header.kv_heads),
        "bos": None if card.problem else card.adds_bos,
        "modes": list(card.modes),
        "notes": list(card.notes),
        "problem": card.problem or None,
        "cache_type_k": model_settings.cache_type_k,
        "cache_type_v": model_settings.cache_type_v,
        "batch": model_settings.batch,
        "window": decode_settings.window,
        "ngram": decode_settings.ngram,
        "guesses": decode_settings.guesses,
        "memory": [_memory_json(each, header.weights / MIB) for each in card.memory],
    }


def _memory_json(memory: Memory, weights: float) -> dict[str, Any]:
    ahead = memory.lookahead
    return {
        "context": memory.tokens,
        "cache_mib": round(memory.cache, 2),
        "plain_mib": round(weights + memory.cache + memory.plain, 2),
        "lookahead_mib": None if ahead is None else round(weights + memory.cache + ahead, 2),
    }


def _one_or_all(numbers: Sequence[int]) -> int | list[int] | None:
    """One number for all layers if they have the same."""
    return (numbers[0] if len(set(numbers)) == 1 else list(numbers)) if numbers else None


def card_text(card: Card, model_settings: ModelSettings, decode_settings: DecodeSettings, width: int) -> str:
    """A line a fact, then a table of memory. `width`: columns of the terminal, 0 for none."""
    lines = [f"{name:8}  {printable(words)}" for name, words in _facts(card) if words]
    lines = [wrapped(line, width) if width and not line.startswith("file") else line for line in lines]
    if card.memory:
        lines += ["", *_memory_lines(card, model_settings, decode_settings)]
    return "\n".join(lines)


def _facts(card: Card) -> list[tuple[str, str]]:
    header = card.header
    label = f" (called {header.size_label})" if header.size_label else ""
    heads = f", {_range(header.heads)} heads on {_range(header.kv_heads)}" if any(header.heads) else ""
    shape = f"{header.layers} layers, embedding {header.embedding:,}{heads}, vocabulary {header.vocabulary:,}"
    bits = header.weights * 8 / max(header.parameters, 1)
    template = "its own (--template prints it)" if header.template else "none of its own"
    return [
        ("model", header.name or card.path.name),
        ("file", str(card.path)),
        ("kind", card.description or f"{header.architecture} {header.file_type}"),
        ("size", f"{size_in_words(header.size)}, {count_in_words(header.parameters)} parameters{label}"),
        ("type", f"{header.file_type}, {bits:.1f} bits a parameter"),
        ("context", f"trained with {header.context:,} tokens" if header.context else ""),
        ("shape", shape),
        ("state", ", ".join(f"{name} {size}" for name, size in header.recurrent.items())),
        ("template", template),
        ("modes", f"none: {card.problem}" if card.problem else ", ".join(card.modes)),
        *(("", note) for note in card.notes),
    ]


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(most) if least == most else f"{least} to {most}"


def _memory_lines(card: Card, model_settings: ModelSettings, decode_settings: DecodeSettings) -> list[str]:
    """A row a context: its cache, and all memory with the weights."""
    weights = card.header.weights / MIB
    rows = [
        (
            f"{each.tokens:,}",
            _in_words(each.cache),
            _in_words(weights + each.cache + each.plain),
            "-" if each.lookahead is None else _in_words(weights + each.cache + each.lookahead),
        )
        for each in card.memory
    ]
    flags = f"-W {decode_settings.window} -N {decode_settings.ngram} -G {decode_settings.guesses}"
    return [
        *columns(("CONTEXT", "CACHE", "PLAIN", "LOOKAHEAD"), rows, right=range(4)),
        f"{_in_words(weights)} of weights and -b {model_settings.batch} included. LOOKAHEAD: {flags}",
    ]


def _in_words(mebibytes: float) -> str:
    """Memory in the units of sizes on a disk."""
    return size_in_words(round(mebibytes * MIB))

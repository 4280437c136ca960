"""A model's card as lines for a person and as one JSON object. Formats records; looks at nothing and prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.shelf.card import Card, Chat, Memory
from lacli.shelf.columns import table
from lacli.terminal.screen import wrapped
from lacli.text.format import (
    count_in_words,
    memory_in_words,
    printable,
    size_in_words,
)

MIB = 2**20
FILE = "file"
INDENT = " " * 4
COLUMN = 12
"""Where the facts begin."""

MEMORY_HEADER = ("CONTEXT", "CACHE", "PLAIN", "ALL", "LOOKAHEAD", "ALL")
LONGEST_LINE = 40
"""Characters of a template's beginning that are shown."""


def card_text(card: Card, loading: ModelSettings, decoding: DecodeSettings, width: int) -> str:
    """A line a fact, then a table of memory. width: columns of the terminal, 0 for none."""
    facts = [*_on_file(card), *_on_chat(card), *_on_running(card)]
    lines = [f"{name:10}  {printable(words)}" for name, words in facts if words]
    if card.memory:
        lines += ["", *_on_memory(card, loading, decoding, width)]
    return "\n".join(_fitted(line, width) for line in lines)


def _fitted(line: str, width: int) -> str:
    """A line for a terminal; a path stays one word, below its name where there is hardly any room beside it."""
    narrow = 0 < width < 2 * COLUMN
    if not width or (line.startswith(FILE) and not narrow):
        return line
    if narrow and line.startswith(" " * COLUMN):
        line = INDENT + line.lstrip()
    return wrapped(line, width)


def card_json(card: Card, loading: ModelSettings, decoding: DecodeSettings) -> dict[str, Any]:
    """One object. *_mib: MiB. null: not known, or there is none."""
    header = card.header
    return {
        "path": str(card.path),
        "architecture": header.architecture,
        "name": header.name or None,
        "description": card.description or None,
        "size_label": header.size_label or None,
        "parameters": header.parameters,
        "type": header.file_type,
        "size": header.size,
        "weights_mib": round(header.weights / MIB, 2),
        "context": header.context or None,
        "layers": header.layers,
        "embedding": header.embedding,
        "heads": _one_or_all(header.heads),
        "kv_heads": _one_or_all(header.kv_heads),
        "key_length": header.key_length or None,
        "value_length": header.value_length or None,
        "sliding_window": header.sliding_window or None,
        "experts": header.experts or None,
        "experts_used": header.experts_used or None,
        "recurrent": header.recurrent or None,
        "vocabulary": header.vocabulary or None,
        "bos": None if card.problem else card.adds_bos,
        "chat_template": header.template or None,
        "template": _chat_json(card.chat),
        "modes": list(card.modes),
        "notes": list(card.notes),
        "problem": card.problem or None,
        "cache_type_k": loading.cache_type_k,
        "cache_type_v": loading.cache_type_v,
        "batch": loading.batch,
        "window": decoding.window,
        "ngram": decoding.ngram,
        "guesses": decoding.guesses,
        "memory": [_memory_json(each, header.weights) for each in card.memory],
    }


def _on_file(card: Card) -> list[tuple[str, str]]:
    header = card.header
    size = f"{size_in_words(header.size)} on disk, {count_in_words(header.parameters)} parameters"
    label = f" (called {header.size_label})" if header.size_label else ""
    return [
        ("model", header.name or card.path.name),
        (FILE, str(card.path)),
        ("kind", card.description if card.description else f"{header.architecture} {header.file_type}"),
        ("size", f"{size}{label}"),
        ("type", f"{header.file_type}, {header.weights * 8 / max(header.parameters, 1):.1f} bits a parameter"),
        ("context", f"trained with {header.context} tokens" if header.context else ""),
        ("shape", _shape(card)),
        ("state", ", ".join(f"{name} {size}" for name, size in header.recurrent.items())),
    ]


def _shape(card: Card) -> str:
    header = card.header
    heads = f", {_range(header.heads)} heads" if any(header.heads) else ""
    shared = f" on {_range(header.kv_heads)}" if any(header.kv_heads) and header.kv_heads != header.heads else ""
    return f"{header.layers} layers, embedding {header.embedding}{heads}{shared}, vocabulary {header.vocabulary}"


def _on_chat(card: Card) -> list[tuple[str, str]]:
    bos = [] if card.problem else [("BOS", "added before the prompt" if card.adds_bos else "not added")]
    source = card.header.template
    if not source:
        return [("template", "none of its own: prompts are continued as they are"), *bos]
    begin = source.strip().split("\n")[0]
    shown = f"{begin[:LONGEST_LINE]}..." if len(begin) > LONGEST_LINE or begin != source.strip() else begin
    return [
        ("template", f"its own, {_on_template(card.chat)}" if card.chat else "its own"),
        ("", f"{shown} ({len(source)} characters, --template prints them)"),
        *bos,
    ]


def _on_template(chat: Chat) -> str:
    if chat.problem:
        return chat.problem
    known = f"writes what {chat.like} writes" if chat.exact else f"like {chat.like}" if chat.like else "of its own kind"
    system = "has a system role" if chat.system else "no system role (it goes before the first question)"
    thinks = f"thinks first ({chat.thinks})" if chat.thinks else ""
    return "; ".join(part for part in (known, system, thinks) if part)


def _on_running(card: Card) -> list[tuple[str, str]]:
    if card.problem:
        return [("modes", f"none: {card.problem}")]
    return [("modes", ", ".join(card.modes)), *(("", note) for note in card.notes)]


def _on_memory(card: Card, loading: ModelSettings, decoding: DecodeSettings, width: int) -> list[str]:
    """A line a context: its cache, its other buffers, and all of it with the weights."""
    weights = card.header.weights / MIB
    ahead = all(each.lookahead is not None for each in card.memory)
    rows = [_memory_row(each, weights, ahead=ahead) for each in card.memory]
    header = MEMORY_HEADER[: len(rows[0])]
    lines = table([header, *rows], right=range(len(rows[0])))
    if 0 < width < len(INDENT) + len(lines[0]):
        lines = [", ".join(f"{name} {cell}" for name, cell in zip(header, row, strict=True)) for row in rows]
    lookahead = f"; LOOKAHEAD: those of -W {decoding.window} -N {decoding.ngram} -G {decoding.guesses}" if ahead else ""
    return [
        f"memory      {memory_in_words(weights)} of weights, and what a context (-c) takes:",
        *(INDENT + line for line in lines),
        f"{INDENT}CACHE: -ctk {loading.cache_type_k} -ctv {loading.cache_type_v}. ALL: with the weights.",
        f"{INDENT}PLAIN: its buffers with -b {loading.batch}{lookahead}.",
    ]


def _memory_row(memory: Memory, weights: float, *, ahead: bool) -> list[str]:
    sizes = [memory.cache, memory.plain, weights + memory.cache + memory.plain]
    if ahead and memory.lookahead is not None:
        sizes += [memory.lookahead, weights + memory.cache + memory.lookahead]
    return [str(memory.tokens), *map(memory_in_words, sizes)]


def _memory_json(memory: Memory, weights: int) -> dict[str, Any]:
    base = weights / MIB + memory.cache
    ahead = memory.lookahead
    return {
        "context": memory.tokens,
        "cache_mib": round(memory.cache, 2),
        "buffers_mib": round(memory.plain, 2),
        "lookahead_buffers_mib": None if ahead is None else round(ahead, 2),
        "plain_mib": round(base + memory.plain, 2),
        "lookahead_mib": None if ahead is None else round(base + ahead, 2),
    }


def _chat_json(chat: Chat | None) -> dict[str, Any] | None:
    if chat is None:
        return None
    return {
        "like": chat.like or None,
        "exact": chat.exact,
        "system": chat.system,
        "thinks": chat.thinks or None,
        "problem": chat.problem or None,
    }


def _one_or_all(numbers: Sequence[int]) -> int | list[int] | None:
    if not numbers:
        return None
    return numbers[0] if len(set(numbers)) == 1 else list(numbers)


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(most) if least == most else f"{least} to {most}"

"""One model's card: what its file says, how it can be run, and the memory that contexts of it take.

The memory is llama.cpp's own count: contexts are made as they would be, but simulated, so that no weights are read and
nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lacli.errors import LacliError, ModelLoadError, PromptError
from lacli.llamacpp.context import LlamaEngine, max_rollback
from lacli.llamacpp.devices import with_threads
from lacli.llamacpp.gguf import Header, read_header
from lacli.llamacpp.library import library
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings, check_rows
from lacli.settings import MODES, DecodeSettings, ModeName
from lacli.terminal.screen import wrapped
from lacli.text.format import columns, count_in_words, printable, size_in_words
from lacli.text.reasoning import begun_reasoning, markers_of
from lacli.text.template import PROBE, ChatTemplate, as_messages, choose_template

CONTEXTS = (4096, 8192)
"""Tokens of the contexts that are shown beside the model's own if none is asked for."""

MAX_CONTEXT = 2**20
"""Tokens of the largest context that is counted unasked: llama.cpp takes some memory a cell even then."""

CACHES = ("KV", "RS")
"""llama.cpp's names for the buffers of cells and of recurrent states."""

MIB = 2**20
FILE = "file"
INDENT = " " * 4
COLUMN = 12
"""Where the facts begin."""

MEMORY_HEADER = ("CONTEXT", "CACHE", "PLAIN", "ALL", "LOOKAHEAD", "ALL")
TEMPLATE_START = 40
"""Characters of a template's first line that are shown."""


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
class Chat:
    """What is known of a chat template.

    `system`: it has a place for a system text. `thinks`: the marks of reasoning that it knows. `problem`: why it is not
    used, or "".
    """

    system: bool = False
    thinks: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Card:
    """Everything that is shown of a model.

    `description`: llama.cpp's words for it. `chat`: None if the file has no template. `notes`: sentences about the
    modes. `problem`: why it cannot be run, or ""; nothing that takes a loaded model is known then.
    """

    path: Path
    header: Header
    description: str = ""
    adds_bos: bool = False
    chat: Chat | None = None
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
        chat = _chat(model) if header.template else None
        modes = _modes(back)
        return Card(path, header, model.description, model.adds_bos, chat, modes, tuple(notes), tuple(memory))


def _contexts(model: LlamaModel, asked: int) -> list[int]:
    if asked:
        return [asked]
    whole = min(model.context, MAX_CONTEXT)
    return sorted({*(tokens for tokens in CONTEXTS if tokens < whole), whole} - {0})


def _memory(model: LlamaModel, model_settings: ModelSettings, decode_settings: DecodeSettings) -> Memory:
    tokens, cache, plain = _buffers(model, model_settings, DecodeSettings(mode="plain"))
    return Memory(
        tokens, cache, plain, None if model.chain_only else _buffers(model, model_settings, decode_settings)[2]
    )


def _buffers(
    model: LlamaModel, model_settings: ModelSettings, decode_settings: DecodeSettings
) -> tuple[int, float, float]:
    """Cells of a context, and MiB of its cache and of its other buffers."""
    with LlamaEngine(model, model_settings, decode_settings) as engine:
        kinds = library().taken
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
        notes.append(
            f"attention slides over {header.sliding_window} tokens; the cache is kept whole all the same, since wrong "
            "guesses must be forgotten"
        )
    if header.experts:
        notes.append(f"{header.experts_used} of {header.experts} experts a token: every further row wakes more of them")
    return notes


def _chat(model: LlamaModel) -> Chat:
    template, notes = choose_template("", model)
    if notes:
        return Chat(problem=notes[0])
    try:
        rendered = template.render(as_messages("a question"))
    except PromptError as error:
        return Chat(problem=error.what)
    marks = markers_of(template.source)
    thinks = marks[0] if marks else "yes" if begun_reasoning(rendered) else ""
    return Chat(_has_system(template), thinks)


def _has_system(template: ChatTemplate) -> bool:
    """True if it prints a system text apart from the question."""
    try:
        rendered: str = template.formatter(as_messages("question", system=PROBE))
    except Exception:  # any exception of a template means that it refuses the role
        return False
    return PROBE in rendered


def card_json(card: Card, model_settings: ModelSettings, decode_settings: DecodeSettings) -> dict[str, Any]:
    """One object. *_mib: MiB. null: not known, or there is none."""
    header = card.header
    facts = {name: value or None for name, value in asdict(header).items()}
    del facts["weights"]
    return {
        "path": str(card.path),
        "description": card.description or None,
        "type": facts.pop("file_type"),
        "chat_template": facts.pop("template"),
        **facts,
        "weights_mib": round(header.weights / MIB, 2),
        "heads": _one_or_all(header.heads),
        "kv_heads": _one_or_all(header.kv_heads),
        "bos": None if card.problem else card.adds_bos,
        "template": card.chat and {name: None if value == "" else value for name, value in asdict(card.chat).items()},
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
        "buffers_mib": round(memory.plain, 2),
        "lookahead_buffers_mib": None if ahead is None else round(ahead, 2),
        "plain_mib": round(weights + memory.cache + memory.plain, 2),
        "lookahead_mib": None if ahead is None else round(weights + memory.cache + ahead, 2),
    }


def _one_or_all(numbers: Sequence[int]) -> int | list[int] | None:
    """One number for all layers if they have the same."""
    return (numbers[0] if len(set(numbers)) == 1 else list(numbers)) if numbers else None


def card_text(card: Card, model_settings: ModelSettings, decode_settings: DecodeSettings, width: int) -> str:
    """A line a fact, then a table of memory. `width`: columns of the terminal, 0 for none."""
    facts = [*_file_facts(card), *_chat_facts(card), *_mode_facts(card)]
    lines = [f"{name:10}  {printable(words)}" for name, words in facts if words]
    if card.memory:
        lines += ["", *_memory_lines(card, model_settings, decode_settings, width)]
    return "\n".join(_fitted(line, width) for line in lines)


def _fitted(line: str, width: int) -> str:
    """A line for a terminal; a path stays one word, below its name if there is hardly any room beside it."""
    narrow = 0 < width < 2 * COLUMN
    if not width or (line.startswith(FILE) and not narrow):
        return line
    if narrow and line.startswith(" " * COLUMN):
        line = INDENT + line.lstrip()
    return wrapped(line, width)


def _file_facts(card: Card) -> list[tuple[str, str]]:
    header = card.header
    size = f"{size_in_words(header.size)} on disk, {count_in_words(header.parameters)} parameters"
    label = f" (called {header.size_label})" if header.size_label else ""
    heads = f", {_range(header.heads)} heads" if any(header.heads) else ""
    shared = f" on {_range(header.kv_heads)}" if any(header.kv_heads) and header.kv_heads != header.heads else ""
    shape = f"{header.layers} layers, embedding {header.embedding:,}{heads}{shared}, vocabulary {header.vocabulary:,}"
    return [
        ("model", header.name or card.path.name),
        (FILE, str(card.path)),
        ("kind", card.description or f"{header.architecture} {header.file_type}"),
        ("size", f"{size}{label}"),
        ("type", f"{header.file_type}, {header.weights * 8 / max(header.parameters, 1):.1f} bits a parameter"),
        ("context", f"trained with {header.context:,} tokens" if header.context else ""),
        ("shape", shape),
        ("state", ", ".join(f"{name} {size}" for name, size in header.recurrent.items())),
    ]


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(most) if least == most else f"{least} to {most}"


def _chat_facts(card: Card) -> list[tuple[str, str]]:
    bos = [] if card.problem else [("BOS", "added before the prompt" if card.adds_bos else "not added")]
    source = card.header.template
    if not source:
        return [("template", "none of its own: prompts are continued as they are"), *bos]
    begin = source.strip().split("\n")[0]
    shown = f"{begin[:TEMPLATE_START]}..." if len(begin) > TEMPLATE_START or begin != source.strip() else begin
    return [
        ("template", f"its own, {_template_words(card.chat)}" if card.chat else "its own"),
        ("", f"{shown} ({len(source)} characters, --template prints them)"),
        *bos,
    ]


def _template_words(chat: Chat) -> str:
    if chat.problem:
        return chat.problem
    system = "has a system role" if chat.system else "no system role (it goes before the first question)"
    thinks = f"thinks first ({chat.thinks})" if chat.thinks else ""
    return "; ".join(part for part in (system, thinks) if part)


def _mode_facts(card: Card) -> list[tuple[str, str]]:
    if card.problem:
        return [("modes", f"none: {card.problem}")]
    return [("modes", ", ".join(card.modes)), *(("", note) for note in card.notes)]


def _memory_lines(card: Card, model_settings: ModelSettings, decode_settings: DecodeSettings, width: int) -> list[str]:
    """A row a context: its cache, its other buffers, and all of it with the weights."""
    weights = card.header.weights / MIB
    rows = [_memory_row(each, weights) for each in card.memory]
    header = MEMORY_HEADER[: len(rows[0])]
    lines = columns(header, rows, right=range(len(header)))
    if 0 < width < len(INDENT) + len(lines[0]):
        lines = [", ".join(f"{name} {cell}" for name, cell in zip(header, row, strict=True)) for row in rows]
    flags = f"-W {decode_settings.window} -N {decode_settings.ngram} -G {decode_settings.guesses}"
    lookahead = "" if card.memory[0].lookahead is None else f"; LOOKAHEAD: those of {flags}"
    return [
        f"memory      {_in_words(weights)} of weights, and what a context (-c) takes:",
        *(INDENT + line for line in lines),
        f"{INDENT}CACHE: -ctk {model_settings.cache_type_k} -ctv {model_settings.cache_type_v}. ALL: with the weights.",
        f"{INDENT}PLAIN: its buffers with -b {model_settings.batch}{lookahead}.",
    ]


def _memory_row(memory: Memory, weights: float) -> list[str]:
    buffers = [memory.plain] if memory.lookahead is None else [memory.plain, memory.lookahead]
    sizes = [memory.cache, *(size for each in buffers for size in (each, weights + memory.cache + each))]
    return [f"{memory.tokens:,}", *map(_in_words, sizes)]


def _in_words(mebibytes: float) -> str:
    """Memory in the units of sizes on a disk."""
    return size_in_words(round(mebibytes * 2**20))

"""One model's card: what its file says, how it can be run, and the memory that contexts of it take.

Gathers facts; `card_report.py` shows them. The memory is llama.cpp's own count: it makes each context as it would be
made, but simulated, so that no weights are read and nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lacli.errors import LacliError, ModelLoadError, PromptError
from lacli.llamacpp.context import LlamaEngine, most_back
from lacli.llamacpp.devices import with_threads
from lacli.llamacpp.gguf import Header, read_header
from lacli.llamacpp.library import library
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings, check_rows
from lacli.settings import MODES, DecodeSettings, ModeName
from lacli.text.reasoning import begun_reasoning, markers_of
from lacli.text.template import (
    CHATML,
    PROBE,
    STOPS,
    ChatTemplate,
    as_messages,
    bundled_template,
    choose_template,
)

CONTEXTS = (4096, 8192)
"""Tokens of the contexts that are shown beside the model's own when none is asked for."""

LARGEST = 2**20
"""Tokens of the largest context that is counted unasked: llama.cpp takes some memory a cell even then."""

CACHES = ("KV", "RS")
"""llama.cpp's names for the buffers of cells and of recurrent states."""


@dataclass(frozen=True)
class Memory:
    """What a context takes beside the weights, in MiB.

    tokens: its cells. cache: of all its tokens. plain: buffers of plain decoding (compute and outputs). lookahead: the
    same with the sequences and rows of lookahead, None where the model cannot.
    """

    tokens: int
    cache: float
    plain: float
    lookahead: float | None


@dataclass(frozen=True)
class Chat:
    """What is known of a chat template.

    like: the bundled template that writes the same prompts, or has the same marks; empty for none. exact: it writes
    the same. system: whether it has a place for a system text. thinks: the marks of thoughts that it knows. problem:
    why it is not used, or empty.
    """

    like: str = ""
    exact: bool = False
    system: bool = False
    thinks: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Card:
    """All that is shown of a model.

    description: llama.cpp's words for it. chat: None where the file has no template. modes: those that it can be run
    in. notes: sentences about them. problem: why it cannot be run at all, or empty; nothing that takes a loaded model
    is known then.
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


def make_card(path: Path, loading: ModelSettings, decoding: DecodeSettings, *, verbose: bool = False) -> Card:
    """The card of a model file; loading.context 0 means a few contexts, decoding what lookahead is counted with.

    Raises ModelLoadError when the file cannot be read, UsageError when the settings contradict each other.
    """
    header = read_header(path)
    check_rows(decoding, loading)
    try:
        model = LlamaModel(path, with_threads(loading), verbose=verbose, simulated=True)
    except ModelLoadError as error:
        return Card(path, header, problem=error.what)
    with model:
        back = most_back(model, with_threads(loading))
        modes, notes = _modes(back), _on_modes(model, header, back)
        memory: list[Memory] = []
        try:
            for tokens in _contexts(model, loading.context):
                memory.append(_memory(model, replace(loading, context=tokens), decoding))
        except LacliError as error:
            if isinstance(error, ModelLoadError) and not memory:
                return Card(path, header, model.description, problem=error.what)
            notes.append(error.what)
        chat = _chat(model) if header.template else None
        return Card(path, header, model.description, model.adds_bos, chat, modes, tuple(notes), tuple(memory))


def _contexts(model: LlamaModel, asked: int) -> list[int]:
    if asked:
        return [asked]
    whole = min(model.context, LARGEST)
    return sorted({*(tokens for tokens in CONTEXTS if tokens < whole), whole} - {0})


def _memory(model: LlamaModel, loading: ModelSettings, decoding: DecodeSettings) -> Memory:
    tokens, cache, plain = _buffers(model, loading, DecodeSettings(mode="plain"))
    ahead = None if model.chain_only else _buffers(model, loading, decoding)[2]
    return Memory(tokens, cache, plain, ahead)


def _buffers(model: LlamaModel, loading: ModelSettings, decoding: DecodeSettings) -> tuple[int, float, float]:
    """Cells of a context, and MiB of its cache and of its other buffers."""
    with LlamaEngine(model, loading, decoding) as engine:
        kinds = library().taken
        cache = sum(kinds.get(kind, 0.0) for kind in CACHES)
        return engine.cells, cache, sum(kinds.values()) - cache


def _modes(back: int) -> tuple[ModeName, ...]:
    """Those of a model that can take so many guesses back: lookahead needs trees."""
    if not back:
        return ("plain",)
    return MODES if back < 0 else tuple(mode for mode in MODES if mode != "lookahead")


def _on_modes(model: LlamaModel, header: Header, back: int) -> list[str]:
    """Why a mode is not there, and what makes guesses dearer."""
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
    if template is None or notes:
        return Chat(problem=notes[0] if notes else "")
    question = as_messages("a question")
    try:
        rendered = template.render(question)
    except PromptError as error:
        return Chat(problem=error.what)
    like, exact = _family(model, template, [question, as_messages("more", history=[("a question", "an answer")])])
    marks = markers_of(template.source)
    thinks = marks[0] if marks else "yes" if begun_reasoning(rendered) else ""
    return Chat(like, exact, _has_system(template), thinks)


def _family(model: LlamaModel, own: ChatTemplate, conversations: Sequence[list[dict[str, str]]]) -> tuple[str, bool]:
    """The bundled template that writes the same, and True; or one whose marks are all in this one, and False."""
    names = [CHATML, *(name for name in STOPS if name != CHATML)]
    with suppress(PromptError):
        written = [own.render(each).strip() for each in conversations]
        for name in names:
            other = bundled_template(name, model)
            if [other.render(each).strip() for each in conversations] == written:
                return name, True
    marked = (name for name in names if all(stop in own.source for stop in STOPS[name]))
    return next(marked, ""), False


def _has_system(template: ChatTemplate) -> bool:
    """Whether it prints a system text apart from the question."""
    try:
        rendered: str = template.formatter(as_messages("question", system=PROBE))
    except Exception:  # whatever a template raises, it refuses the role
        return False
    return PROBE in rendered

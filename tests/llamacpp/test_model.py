"""LlamaModel and LlamaEngine on a tiny random model: tokens and bytes, limits read back, refusals and what they say."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import llama_cpp as lib
import numpy as np
import pytest

from lacli import generate, load
from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.batch import Batch, from_tokens, from_tree
from lacli.cache import Cache
from lacli.errors import LacliError, ModelLoadError, PromptError
from lacli.llamacpp.context import CONTEXT_PAD, LlamaEngine
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.session.session import Session
from lacli.settings import MAX_SEQUENCES, DecodeSettings
from lacli.text.template import (
    ChatTemplate,
    as_messages,
    chatml,
    with_one_bos,
)
from lacli.tree import Origin, Tree
from tests.fakes import tiny_models
from tests.fakes.margins import PLAIN, Logits
from tests.program import Done, run

SETTINGS = ModelSettings(context=256, gpu_layers=0, threads=1)
LOOKAHEAD = DecodeSettings(mode="lookahead", window=4, ngram=3, guesses=4)

LOADED = """
import sys, threading, lacli
settings = lacli.ModelSettings(context=256, gpu_layers=0, threads=1)
session = lacli.load(sys.argv[1], model_settings=settings)
"""
"""The beginning of a program that has opened the model of its argument."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    tiny_models.write_llama(path)
    return path


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(path, SETTINGS) as model:
        yield model


@pytest.fixture
def engine(model: LlamaModel) -> Iterator[LlamaEngine]:
    with LlamaEngine(model, SETTINGS, LOOKAHEAD) as engine:
        yield engine


def input_at(token: int, past: int) -> Batch:
    return from_tree(Tree(token), past)


def last_row(engine: LlamaEngine, tokens: list[int]) -> Logits:
    """The logits after a text in an emptied cache."""
    engine.clear()
    assert engine.decode(from_tokens(tokens[:-1], 0))
    assert engine.decode(input_at(tokens[-1], len(tokens) - 1))
    logits: Logits = engine.logits()[-1].copy()
    return logits


def refuse_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lib, "llama_init_from_model", lambda *_: None)


@pytest.mark.parametrize("text", ["the thing", "def f(x):\n    return x\n", "naïve € 漢字 🦙", "\x00\t tab", " ", ""])
def test_a_text_survives_tokens_and_back(text: str, model: LlamaModel) -> None:
    tokens = model.tokenize(text)
    assert b"".join(map(model.piece, tokens)).decode() == text
    assert all(0 <= token < model.vocabulary for token in tokens)


def test_merges_make_a_text_shorter_than_its_bytes(model: LlamaModel) -> None:
    assert len(model.tokenize(" the and the")) < len(" the and the")


def test_the_bytes_of_a_character_may_lie_in_several_tokens(model: LlamaModel) -> None:
    pieces = [model.piece(token) for token in model.tokenize("€")]
    assert pieces == [bytes([byte]) for byte in "€".encode()]
    with pytest.raises(UnicodeDecodeError):
        pieces[0].decode()


def test_names_of_special_tokens_become_those_tokens(model: LlamaModel) -> None:
    tokens = model.tokenize("<|im_start|>the<|im_end|>")
    assert tokens[0] == tiny_models.TOKENS.index("<|im_start|>")
    assert tokens[-1] == tiny_models.END_OF_TURN
    assert model.tokenize("<|im_start") != tokens[:1]


def test_special_tokens_have_no_bytes_unless_asked_for(model: LlamaModel) -> None:
    for token, name in enumerate(tiny_models.SPECIAL_TOKENS):
        assert model.piece(token) == b""
        assert model.piece(token, special=True) == name.encode()


def test_a_piece_longer_than_the_first_buffer_comes_out_whole(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = b"x" * 300

    def token_to_piece(_: object, token: int, buffer: object, size: int, *rest: object) -> int:
        if size < len(long):
            return -len(long)
        buffer[: len(long)] = long  # type: ignore[index]  # a ctypes array
        return len(long)

    monkeypatch.setattr(lib, "llama_token_to_piece", token_to_piece)
    assert model.piece(5) == long


def test_end_tokens_are_those_of_the_vocabulary(model: LlamaModel) -> None:
    ends = [token for token in range(model.vocabulary) if model.is_end(token)]
    assert ends == sorted({tiny_models.END_OF_TEXT, tiny_models.END_OF_TURN})
    assert model.eos() == model.bos() == tiny_models.SPECIAL_TOKENS[tiny_models.END_OF_TEXT]


def test_a_bos_that_the_template_rendered_is_not_doubled(path: Path, tmp_path: Path, model: LlamaModel) -> None:
    with_bos = tmp_path / "bos.gguf"
    tiny_models.flip_to_true(path, with_bos, "tokenizer.ggml.add_bos_token")
    with LlamaModel(with_bos, SETTINGS) as adding:
        assert adding.adds_bos and not model.adds_bos
        rendered = adding.bos() + "the thing"
        bos = tiny_models.END_OF_TEXT
        assert adding.tokenize(rendered)[:2] == [bos, bos]
        once = adding.tokenize(with_one_bos(rendered, adding.bos(), adds_bos=adding.adds_bos))
        assert once == [bos, *model.tokenize("the thing")]
        assert adding.tokenize("the thing", add_special=False) == model.tokenize("the thing")
        assert adding.tokenize("") == [bos]
    kept = with_one_bos(rendered, model.bos(), adds_bos=model.adds_bos)
    assert model.tokenize(kept) == once


def test_a_session_gives_a_prompt_one_bos_whoever_writes_it(path: Path, tmp_path: Path) -> None:
    adding, rendering = tmp_path / "adding.gguf", tmp_path / "rendering.gguf"
    tiny_models.flip_to_true(path, adding, "tokenizer.ggml.add_bos_token")
    in_template = b"<|im_start|>{{ message['role'] }}"
    raw = adding.read_bytes()
    assert raw.count(in_template) == 1
    rendering.write_bytes(raw.replace(in_template, b"{{ bos_token }}".ljust(len(in_template))))
    for file in (adding, rendering):
        with load(file, model_settings=SETTINGS, decode_settings=PLAIN) as session:
            for tokens in (session.prompt("the thing"), session.prompt("the thing", raw=True)):
                assert tokens.count(tiny_models.END_OF_TEXT) == 1
                assert tokens[0] == tiny_models.END_OF_TEXT


def test_the_template_of_the_file_renders_messages(model: LlamaModel) -> None:
    rendered = model.compile_template(model.chat_template)([{"role": "user", "content": "the thing"}])
    assert rendered == "<|im_start|>user\nthe thing<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(("asked", "cells"), [(1, 256), (256, 256), (257, 512), (0, tiny_models.CONTEXT_LENGTH)])
def test_cells_are_what_llama_cpp_made_of_the_context(asked: int, cells: int, model: LlamaModel) -> None:
    with LlamaEngine(model, replace(SETTINGS, context=asked), PLAIN) as engine:
        assert engine.cells == cells == lib.llama_n_ctx(engine._handle)
        assert engine.cells % CONTEXT_PAD == 0


@pytest.mark.parametrize(
    ("batch", "context", "rows"), [(1, 256, 1), (100, 256, 100), (4096, 256, 256), (4096, 300, 512)]
)
def test_batch_rows_are_the_smaller_of_batch_and_cells(batch: int, context: int, rows: int, model: LlamaModel) -> None:
    with LlamaEngine(model, replace(SETTINGS, batch=batch, context=context), PLAIN) as engine:
        assert engine.batch_rows == rows == lib.llama_n_batch(engine._handle)


def test_a_batch_above_the_limit_never_reaches_llama_cpp(model: LlamaModel) -> None:
    with LlamaEngine(model, replace(SETTINGS, batch=8), PLAIN) as engine:
        with pytest.raises(AssertionError, match="9 rows"):
            engine.decode(from_tokens([5] * 9, 0))
        assert engine.calls == 0


def test_the_limit_of_sequences_is_the_librarys() -> None:
    assert lib.llama_max_parallel_sequences() == MAX_SEQUENCES


def test_all_sequences_of_the_library_can_be_used_at_once(model: LlamaModel) -> None:
    chosen = DecodeSettings(mode="lookahead", window=0, ngram=2, guesses=MAX_SEQUENCES - 1)
    tree = Tree(5)
    for sequence in range(1, 200):
        tree.add([sequence + 10], sequence, Origin.POOL)
    with LlamaEngine(model, SETTINGS, chosen) as engine:
        assert engine.sequences == MAX_SEQUENCES
        assert engine.decode(from_tree(tree, 0))
        assert engine.logits().shape == (200, model.vocabulary)


def test_logits_have_a_row_an_output_and_greedy_chooses_the_largest(engine: LlamaEngine) -> None:
    tree = Tree(20)
    tree.add([21, 22], 1, Origin.POOL)
    tree.add([21, 23], 2, Origin.POOL, verify=False)
    assert engine.decode(from_tree(tree, 0))
    logits = engine.logits()
    assert logits.shape == (3, engine.vocabulary)
    assert engine.greedy().tolist() == logits.argmax(axis=1).tolist()


def test_a_node_of_a_tree_sees_the_path_to_it_and_no_other(engine: LlamaEngine) -> None:
    prefix = [30, 31, 32, 33]
    cache = Cache(engine)
    cache.prefill(prefix)
    tree = Tree(20)
    tree.add([21, 22], 1, Origin.POOL)
    tree.add([21, 23], 2, Origin.POOL)
    tree.add([24, 25], 3, Origin.POOL)
    cache.share(tree)
    assert engine.decode(from_tree(tree, len(prefix)))
    rows = engine.logits().copy()
    for row, path in enumerate([[20], [20, 21], [20, 21, 22], [20, 21, 23], [20, 24], [20, 24, 25]]):
        np.testing.assert_allclose(rows[row], last_row(engine, prefix + path), atol=1e-2)


def test_a_batch_without_free_cells_is_refused_and_changes_nothing(engine: LlamaEngine) -> None:
    text = [3 + position % 250 for position in range(engine.cells)]
    expected = last_row(engine, text)
    engine.clear()
    assert engine.decode(from_tokens(text[:-1], 0))
    two = Tree(text[-1])
    two.add([7], 0, Origin.CHAIN)
    assert not engine.decode(from_tree(two, len(text) - 1))
    assert lib.llama_memory_seq_pos_max(engine._memory, 0) == len(text) - 2
    assert engine.decode(input_at(text[-1], len(text) - 1))
    np.testing.assert_array_equal(engine.logits()[0], expected)
    assert not engine.decode(input_at(7, len(text)))


def test_removed_and_cleared_cells_are_forgotten(engine: LlamaEngine) -> None:
    text = [40, 41, 42, 43]
    expected = last_row(engine, text)
    engine.clear()
    assert engine.decode(from_tokens([*text[:-1], 99, 98], 0))
    assert engine.remove(0, len(text) - 1, -1)
    assert engine.decode(input_at(text[-1], len(text) - 1))
    np.testing.assert_allclose(engine.logits()[0], expected, atol=1e-2)
    engine.clear()
    assert lib.llama_memory_seq_pos_max(engine._memory, 0) == -1


def test_a_decode_that_fails_says_why(engine: LlamaEngine) -> None:
    assert engine.decode(from_tokens([5, 6], 0))
    with pytest.raises(LacliError, match="sequence 0 .*inconsistent sequence positions"):
        engine.decode(from_tokens([7], 9))
    with pytest.raises(LacliError, match="invalid token"):
        engine.decode(input_at(engine.vocabulary, 2))


def test_a_failure_without_a_reason_is_not_given_an_earlier_one(
    model: LlamaModel, engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.decode(input_at(5, 0))
    with pytest.raises(LacliError, match="inconsistent"):
        engine.decode(input_at(5, 9))
    monkeypatch.setattr(lib, "llama_decode", lambda *_: -3)
    with pytest.raises(LacliError, match=r"failed \(-3\): llama.cpp gives no reason"):
        engine.decode(input_at(5, 0))
    monkeypatch.undo()
    with pytest.raises(LacliError, match="inconsistent"):
        engine.decode(input_at(5, 9))
    refuse_contexts(monkeypatch)
    with pytest.raises(ModelLoadError, match="cannot make a context: llama.cpp gives no reason"):
        LlamaEngine(model, SETTINGS, PLAIN)


def test_a_truncated_file_is_refused_with_llama_cpps_reason(path: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelLoadError, match="damaged.gguf: .*not within the file bounds"):
        LlamaModel(damaged, SETTINGS)


def test_a_session_whose_context_fails_frees_its_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[LlamaModel] = []
    freed: list[LlamaModel] = []
    close = LlamaModel.close

    def closing(model: LlamaModel) -> None:
        freed.append(model)
        close(model)

    def refusing(model: LlamaModel, *_: object) -> None:
        loaded.append(model)
        raise ModelLoadError("no context")

    monkeypatch.setattr(LlamaModel, "close", closing)
    monkeypatch.setattr(LlamaEngine, "__init__", lambda _, model, *rest, **more: refusing(model, *rest))
    with pytest.raises(ModelLoadError, match="no context"):
        Session(path, SETTINGS, PLAIN, SamplingSettings())
    assert len(freed) == 1
    assert freed == loaded
    assert freed[0].closed


def test_samplers_of_a_context_that_fails_are_freed(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    freed: list[int] = []
    make, free = lib.llama_sampler_chain_init, lib.llama_sampler_free

    def making(parameters: object) -> Any:
        chain = make(parameters)
        made.append(ctypes.addressof(chain.contents))
        return chain

    def freeing(chain: Any) -> None:
        freed.append(ctypes.addressof(chain.contents))
        free(chain)

    monkeypatch.setattr(lib, "llama_sampler_chain_init", making)
    monkeypatch.setattr(lib, "llama_sampler_free", freeing)
    refuse_contexts(monkeypatch)
    with pytest.raises(ModelLoadError, match="cannot make a context"):
        LlamaEngine(model, SETTINGS, LOOKAHEAD, backend_greedy=True)
    assert len(made) == LOOKAHEAD.sequences
    assert freed == made


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's address space")
def test_a_context_that_does_not_fit_into_memory_is_refused_and_says_how_much_it_wanted(model: LlamaModel) -> None:
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (128 << 20), hard))
    try:
        with pytest.raises(ModelLoadError, match="cannot make a context: .*failed to allocate") as refusal:
            LlamaEngine(model, replace(SETTINGS, context=1 << 21), PLAIN)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert "-c" in refusal.value.hint
    with LlamaEngine(model, SETTINGS, PLAIN) as engine:
        assert engine.decode(input_at(5, 0))


def test_closing_twice_is_harmless(path: Path) -> None:
    with LlamaModel(path, SETTINGS) as model:
        with LlamaEngine(model, SETTINGS, LOOKAHEAD, backend_greedy=True) as engine:
            assert engine.decode(input_at(5, 0))
            engine.close()
            engine.close()
        model.close()
        model.close()
    session = load(path, model_settings=SETTINGS, decode_settings=LOOKAHEAD)
    with session:
        session.close()
    session.close()


ON_A_CLOSED_SESSION: dict[str, Callable[[Session], object]] = {
    "api.generate": lambda session: generate(session, "the"),
    "generate": lambda session: session.generate([5]),
    "iterate": lambda session: list(session.generate([5])),
    "decode": lambda session: list(session.decoder.generate([5])),
    "prompt": lambda session: session.prompt("the"),
    "raw prompt": lambda session: session.prompt("the", raw=True),
    "conversation_prompt": lambda session: session.prompts.conversation(as_messages("the")),
    "text": lambda session: session.text([5]),
    "piece": lambda session: session.prompts.piece(5),
    "use_template": lambda session: session.prompts.use(chatml(session.model)),
    "adapt": lambda session: session.adapt(LOOKAHEAD, SamplingSettings(temp=1)),
    "plain_tokens_per_second": lambda session: session.plain_tokens_per_second(),
    "tokenize": lambda session: session.model.tokenize("the"),
    "ends": lambda session: session.model.ends(),
    "bos": lambda session: session.model.bos(),
    "description": lambda session: session.model.description,
    "chat_template": lambda session: session.model.chat_template,
    "suppressed": lambda session: session.model.suppressed,
    "vocabulary": lambda session: session.model.vocabulary,
    "context": lambda session: LlamaEngine(session.model, SETTINGS, PLAIN),
    "sampler": lambda session: LlamaSampler(session.model, SamplingSettings(seed=1, temp=1)),
}


@pytest.mark.parametrize("name", ON_A_CLOSED_SESSION)
def test_what_is_asked_of_a_closed_session_is_one_error(name: str, path: Path) -> None:
    with load(path, model_settings=SETTINGS, decode_settings=PLAIN) as session:
        generate(session, "the thing", max_tokens=3)
    with pytest.raises(LacliError, match=r"tiny.gguf is closed \(load the model again\)"):
        ON_A_CLOSED_SESSION[name](session)


def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of llama.cpp's functions that give memory back, as they are called from now on."""
    freed: list[str] = []

    def telling(name: str, free: Callable[[object], None], handle: object) -> None:
        freed.append(name)
        free(handle)

    for name in ("llama_sampler_free", "llama_free", "llama_model_free"):
        monkeypatch.setattr(lib, name, partial(telling, name, getattr(lib, name)))
    return freed


@pytest.mark.parametrize("in_a_circle", [False, True])
def test_a_dropped_session_gives_its_samplers_contexts_and_model_back(
    in_a_circle: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = told(monkeypatch)
    sampling = SamplingSettings(temp=1, seed=1)
    session = load(path, model_settings=SETTINGS, decode_settings=LOOKAHEAD, sampling=sampling)
    generate(session, "the thing", max_tokens=3)
    if in_a_circle:
        session.notes.append(session)  # type: ignore[arg-type]  # as a caller's own objects can make one
    assert "llama_model_free" not in freed
    gc.collect()
    gc.disable()
    try:
        freed.clear()
        del session
        # Nothing of a session's own keeps it: without a circle of somebody else's it goes at once.
        assert bool(freed) is not in_a_circle
    finally:
        gc.enable()
    gc.collect()
    assert freed == ["llama_sampler_free"] * 2 + ["llama_free", "llama_model_free"]


@pytest.fixture(scope="module")
def opened(path: Path) -> Iterator[Session]:
    with load(path, model_settings=SETTINGS, decode_settings=LOOKAHEAD, template=None) as session:
        yield session


BESIDE_AN_ANSWER: dict[str, Callable[[Session], object]] = {
    "api.generate": lambda session: generate(session, "another"),
    "generate": lambda session: session.generate([6, 7]),
    "adapt": lambda session: session.adapt(PLAIN, SamplingSettings()),
    "use_cost": lambda session: session.use_cost(Cost((StepCost(64, (Point(1, 1.0, 1.0), Point(64, 1.5, 1.5))),))),
    "plain_tokens_per_second": lambda session: session.plain_tokens_per_second(),
}


@pytest.mark.parametrize("name", BESIDE_AN_ANSWER)
@pytest.mark.parametrize("in_a_thread", [False, True])
def test_what_would_decode_beside_an_answer_is_refused_and_the_answer_whole(
    in_a_thread: bool, name: str, opened: Session
) -> None:
    whole = generate(opened, "the thing", max_tokens=40)
    before = opened.generate([6, 7])
    answer = opened.generate(opened.prompt("the thing"), 40)
    pieces = iter(answer)
    next(pieces)

    def beside() -> None:
        with pytest.raises(LacliError, match=r"generating an answer already \(.*close it first"):
            BESIDE_AN_ANSWER[name](opened)
        with pytest.raises(LacliError, match="already"):
            list(before)

    if in_a_thread:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(beside).result()
    else:
        beside()
    assert opened.text(opened.model.tokenize("and the")) == "and the"
    list(pieces)
    assert (answer.answer().text, answer.answer().tokens) == (whole.text, whole.tokens)
    BESIDE_AN_ANSWER[name](opened)
    assert "".join(piece.text for piece in before), "what was refused can begin later"


def test_an_answer_that_is_left_closed_or_dropped_makes_room(opened: Session) -> None:
    whole = generate(opened, "the thing", max_tokens=20).text
    for _ in opened.generate([6, 7]):
        break
    assert generate(opened, "the thing", max_tokens=20).text == whole
    pieces = iter(opened.generate([6, 7]))
    next(pieces)
    del pieces
    assert generate(opened, "the thing", max_tokens=20).text == whole
    with opened.generate([6, 7]) as left:
        pieces = iter(left)
        next(pieces)
    assert list(pieces) == [] and left.answer().finish_reason == "interrupt"
    assert generate(opened, "the thing", max_tokens=20).text == whole


def test_a_session_closes_with_an_answer_that_is_on_its_way(path: Path) -> None:
    with load(path, model_settings=SETTINGS, decode_settings=LOOKAHEAD) as session:
        pieces = iter(session.generate([6, 7]))
        next(pieces)
    assert list(pieces) == []
    with pytest.raises(LacliError, match="is closed"):
        session.generate([6, 7])


def test_a_session_is_not_closed_under_a_thread_that_decodes(path: Path) -> None:
    with load(path, model_settings=SETTINGS, decode_settings=LOOKAHEAD) as session, ThreadPoolExecutor(1) as threads:
        whole = generate(session, "the thing", max_tokens=20)

        def close(*_: object) -> None:
            with pytest.raises(LacliError, match="an answer is being generated"):
                threads.submit(session.close).result()

        answer = session.generate(session.prompt("the thing"), 20, watch=close)
        list(answer)
        assert answer.answer().text == whole.text


IN_BRACKETS = [f"<0x{byte:02X}>" for byte in range(256)]
ESCAPED = [f"\\x{byte:02x}" for byte in range(256)]
"""The bytes as vocabularies of the kinds `llama` and `rwkv` write them."""


def with_bytes(written: Sequence[str], *words: str) -> list[str]:
    """A vocabulary of these bytes and words, as large as TOKENS."""
    tokens = [*tiny_models.SPECIAL_TOKENS, *written, *words]
    return [*tokens, *(f"<unused{number}>" for number in range(len(tiny_models.TOKENS) - len(tokens)))]


@pytest.mark.parametrize(("kind", "written"), [("llama", IN_BRACKETS), ("rwkv", ESCAPED)])
def test_a_vocabulary_without_its_bytes_is_refused_before_a_text_needs_them(
    kind: str, written: list[str], tmp_path: Path
) -> None:
    whole, foreign, short = (tmp_path / f"{name}.gguf" for name in ("whole", "foreign", "short"))
    tiny_models.write_llama(whole, kind, with_bytes(written))
    with LlamaModel(whole, SETTINGS) as model:
        assert len(model.tokenize("the thing, naïve €\n", add_special=False)) > len("naïve €")
    tiny_models.write_llama(foreign, kind)
    tiny_models.write_llama(short, kind, with_bytes([each for each in written if each not in ("<0xC3>", "\\xc3")], "ï"))
    for path in (foreign, short):
        with pytest.raises(ModelLoadError, match=rf"{path.name}: its tokenizer is of the kind '{kind}', and .* bytes"):
            LlamaModel(path, SETTINGS)


def test_a_file_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    tiny_models.write_llama(tmp_path / "bare.gguf", "none")
    with pytest.raises(ModelLoadError, match="bare.gguf: it has no vocabulary"):
        LlamaModel(tmp_path / "bare.gguf", SETTINGS)


@pytest.mark.parametrize("half", ["\ud800", "the \udcff thing"])
def test_half_of_a_character_is_refused_wherever_it_comes_from(half: str, opened: Session) -> None:
    with pytest.raises(PromptError, match="the prompt is not valid Unicode"):
        generate(opened, half)
    opened.prompts.use(ChatTemplate("", "", opened.model.compile_template("{{ messages[0].content }}{{ '\\ud800' }}")))
    try:
        with pytest.raises(PromptError, match="the prompt is not valid Unicode"):
            opened.prompt("the thing")
        with pytest.raises(PromptError, match="the prompt is not valid Unicode"):
            opened.prompts.conversation(as_messages("the thing", half))
    finally:
        opened.prompts.use(None)


def test_what_aborts_the_library_is_said_without_a_debuggers_words() -> None:
    program = (
        "import lacli.llamacpp.library as llama; llama.lib.llama_cpp._lib.ggml_abort(b'a.c', 1, b'the last words')"
    )
    done = run(program=(sys.executable, "-c", program))
    assert (done.code, done.err) == (-signal.SIGABRT, "a.c:1: the last words\n")


def test_a_model_that_is_left_to_the_end_of_the_program_ends_with_it(path: Path) -> None:
    program = LOADED + "print(lacli.generate(session, 'the thing', max_tokens=3).finish_reason)\n"
    assert run(str(path), program=(sys.executable, "-c", program)) == Done(0, "length\n", "")


def test_a_program_may_end_while_a_thread_of_its_own_is_answering(path: Path) -> None:
    program = LOADED + (
        "begun = threading.Event()\n"
        "def answer():\n"
        "    while True:\n"
        "        for piece in session.generate(session.prompt('the thing', raw=True), 200):\n"
        "            begun.set()\n"
        "threading.Thread(target=answer, daemon=True).start()\n"
        "begun.wait()\n"
    )
    assert run(str(path), program=(sys.executable, "-c", program)) == Done(0, "", "")


def test_an_answer_that_has_not_begun_is_given_by_what_decodes_then(path: Path) -> None:
    settings = DecodeSettings(mode="lookup")
    with load(path, model_settings=SETTINGS, decode_settings=settings) as session:
        prompt = session.prompt("the thing", raw=True)
        expected = "".join(piece.text for piece in session.generate(prompt, 20))
        waiting = session.generate(prompt, 20, reuse=True)
        session.use_cost(Cost((StepCost(64, (Point(1, 1e-3, 1e-3), Point(2, 2e-3, 2e-3))),)))
        list(session.generate(session.prompt("something else", raw=True), 20))
        assert "".join(piece.text for piece in waiting) == expected


def test_the_log_stays_silent_unless_verbose(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    LlamaModel(path, SETTINGS).close()
    assert capfd.readouterr() == ("", "")
    LlamaModel(path, SETTINGS, verbose=True).close()
    out, err = capfd.readouterr()
    assert out == ""
    assert "tiny llama" in err
    LlamaModel(path, SETTINGS).close()
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_ends_a_piece_of_prompt_in_the_middle_and_the_next_one_is_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    kept: list[object] = []
    set_callback = lib.llama_set_abort_callback

    def with_ctrl_c(handle: Any, callback: Any, data: Any) -> None:
        def press_and_ask(data: Any) -> bool:
            if not calls:
                signal.raise_signal(signal.SIGINT)
            calls.append(1)
            return bool(callback(data))

        kept.append(lib.ggml_abort_callback(press_and_ask) if callback else callback)
        set_callback(handle, kept[-1], data)

    monkeypatch.setattr(lib, "llama_set_abort_callback", with_ctrl_c)
    with LlamaModel(path, SETTINGS) as model, LlamaEngine(model, SETTINGS, PLAIN) as engine:
        with pytest.raises(KeyboardInterrupt):
            engine.decode(from_tokens([*range(3, 103)], 0))
        assert len(calls) == 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        engine.clear()
        assert engine.decode(from_tokens([*range(3, 103)], 0))
        operations = len(calls)
        assert operations > 2
        assert engine.decode(from_tree(Tree(5), 100))
        assert len(calls) == operations

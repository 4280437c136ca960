"""A session's life: one answer at a time, closed or dropped it gives all back, and a program ends with it."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import llama_cpp as lib
import pytest

from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.batch import from_tokens
from lacli.engine.load import ModelEngine, open_engine
from lacli.errors import LacliError, ModelLoadError, PromptError
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.template import (
    ChatTemplate,
    as_messages,
    bundled_template,
)
from tests.fakes import tiny_models
from tests.fakes.margins import PLAIN
from tests.loading import generate, load
from tests.program import Done, run

SETTINGS = ModelSettings(context=256, gpu_layers=0, threads=1)
LOOKAHEAD = DecodeSettings(mode="lookahead", window=4, ngram=3, guesses=4)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    tiny_models.write_llama(path)
    return path


LOADED = """
import sys, threading, lacli
settings = lacli.ModelSettings(context=256, gpu_layers=0, threads=1)
model = lacli.load(sys.argv[1], model_settings=settings)
"""
"""The beginning of a program that has opened the model of its argument."""


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
    monkeypatch.setattr(LlamaContext, "__init__", lambda _, model, *rest, **more: refusing(model, *rest))
    with pytest.raises(ModelLoadError, match="no context"):
        open_engine(path, SETTINGS, PLAIN, SamplingSettings())
    assert len(freed) == 1
    assert freed == loaded
    assert freed[0].closed


def test_closing_twice_is_harmless(path: Path) -> None:
    with LlamaModel(path, SETTINGS) as model:
        with LlamaContext(model, SETTINGS, LOOKAHEAD, backend_greedy=True) as engine:
            assert engine.decode(from_tokens([5], 0))
            engine.close()
            engine.close()
        model.close()
        model.close()
    session = load(path, model_settings=SETTINGS, decode_settings=LOOKAHEAD)
    with session:
        session.close()
    session.close()


ON_A_CLOSED_SESSION: dict[str, Callable[[ModelEngine], object]] = {
    "api.generate": lambda session: generate(session, "the"),
    "generate": lambda session: session.generate([5]),
    "iterate": lambda session: list(session.generate([5])),
    "decode": lambda session: list(session.decode([5])),
    "prompt": lambda session: session.prompt("the"),
    "raw prompt": lambda session: session.prompt("the", raw=True),
    "conversation_prompt": lambda session: session.prompts.conversation(as_messages("the")),
    "text": lambda session: session.text([5]),
    "piece": lambda session: session.prompts.piece(5),
    "use_template": lambda session: session.prompts.use(bundled_template("chatml", session.model)),
    "adapt": lambda session: session.adapt(LOOKAHEAD, SamplingSettings(temp=1)),
    "tokenize": lambda session: session.model.tokenize("the"),
    "ends": lambda session: session.model.ends(),
    "bos": lambda session: session.model.bos(),
    "description": lambda session: session.model.description,
    "chat_template": lambda session: session.model.chat_template,
    "suppressed": lambda session: session.model.suppressed,
    "vocabulary": lambda session: session.model.vocabulary,
    "context": lambda session: LlamaContext(session.model, SETTINGS, PLAIN),
    "sampler": lambda session: LlamaSampler(session.model, SamplingSettings(seed=1, temp=1)),
}


def test_what_is_asked_of_a_closed_session_is_one_error(path: Path) -> None:
    with load(path, model_settings=SETTINGS, decode_settings=PLAIN) as session:
        generate(session, "the thing", max_tokens=3)
    for name, ask in ON_A_CLOSED_SESSION.items():
        with pytest.raises(LacliError, match=r"tiny.gguf is closed \(load the model again\)"):
            ask(session)
            raise AssertionError(name)


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
    # Samplers and contexts read the model's vocabulary until their end, and not each other.
    assert sorted(freed[:-1]) == ["llama_free", *["llama_sampler_free"] * 2] and freed[-1] == "llama_model_free"


@pytest.fixture(scope="module")
def opened(path: Path) -> Iterator[ModelEngine]:
    with load(path, model_settings=SETTINGS, decode_settings=LOOKAHEAD, template=None) as session:
        yield session


def test_an_answer_that_is_left_closed_or_dropped_makes_room(opened: ModelEngine) -> None:
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


@pytest.mark.parametrize("half", ["\ud800", "the \udcff thing"])
def test_half_of_a_character_is_refused_wherever_it_comes_from(half: str, opened: ModelEngine) -> None:
    with pytest.raises(PromptError, match="the prompt is not valid Unicode"):
        generate(opened, half)
    own = opened.prompts.template
    opened.prompts.use(ChatTemplate("", "", opened.model.compile_template("{{ messages[0].content }}{{ '\\ud800' }}")))
    try:
        with pytest.raises(PromptError, match="the prompt is not valid Unicode"):
            opened.prompt("the thing")
        with pytest.raises(PromptError, match="the prompt is not valid Unicode"):
            opened.prompts.conversation(as_messages("the thing", half))
    finally:
        opened.prompts.use(own)


def test_an_answer_that_has_not_begun_is_given_by_what_decodes_then(path: Path) -> None:
    settings = DecodeSettings(mode="lookup")
    with load(path, model_settings=SETTINGS, decode_settings=settings) as session:
        prompt = session.prompt("the thing", raw=True)
        expected = "".join(piece.text for piece in session.generate(prompt, 20))
        waiting = session.generate(prompt, 20)
        session.use_cost(Cost((StepCost(64, (Point(1, 1e-3, 1e-3), Point(2, 2e-3, 2e-3))),)))
        list(session.generate(session.prompt("something else", raw=True), 20))
        assert "".join(piece.text for piece in waiting) == expected


def test_what_aborts_the_library_is_said_without_a_debuggers_words() -> None:
    program = (
        "import lacli.llamacpp.library as llama; llama.lib.llama_cpp._lib.ggml_abort(b'a.c', 1, b'the last words')"
    )
    done = run(program=(sys.executable, "-c", program))
    assert (done.code, done.err) == (-signal.SIGABRT, "a.c:1: the last words\n")


def test_a_model_that_is_left_to_the_end_of_the_program_ends_with_it(path: Path) -> None:
    program = LOADED + "print(model.generate('the thing', max_tokens=3).finish_reason)\n"
    assert run(str(path), program=(sys.executable, "-c", program)) == Done(0, "length\n", "")


def test_a_program_may_end_while_a_thread_of_its_own_is_answering(path: Path) -> None:
    program = LOADED + (
        "begun = threading.Event()\n"
        "def answer():\n"
        "    while True:\n"
        "        for piece in model.stream('the thing', raw=True, max_tokens=200):\n"
        "            begun.set()\n"
        "threading.Thread(target=answer, daemon=True).start()\n"
        "begun.wait()\n"
    )
    assert run(str(path), program=(sys.executable, "-c", program)) == Done(0, "", "")

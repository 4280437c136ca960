"""An engine's life: one answer at a time, closed or dropped it gives all back, and a program ends with it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import llama_cpp as lib
import pytest

from lacli.batch import from_tokens
from lacli.engine.load import ModelEngine, open_engine
from lacli.errors import LacliError, ModelLoadError, PromptError
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ContextSize, ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.template import as_messages
from tests.fakes.decoding import PLAIN
from tests.loading import generate, load
from tests.program import Done, run

SETTINGS = ModelSettings(context=256, gpu_layers=0, threads=1)
LOOKAHEAD = DecodeSettings(mode="lookahead", window=4, ngram=3, guesses=4)


LOADED = """
import sys, threading, lacli
settings = lacli.ModelSettings(context=256, gpu_layers=0, threads=1)
model = lacli.load(sys.argv[1], model_settings=settings)
"""
"""The beginning of a program that has opened the model of its argument."""


def test_an_engine_whose_context_fails_frees_its_model(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    freed = told(monkeypatch)
    monkeypatch.setattr(lib, "llama_init_from_model", lambda *_: None)
    with pytest.raises(ModelLoadError):
        open_engine(tiny, SETTINGS, PLAIN, SamplingSettings())
    assert freed == ["llama_model_free"]


@pytest.mark.parametrize(
    ("asked", "notes"), [(100, ["the context has 256 tokens: llama.cpp rounds 100 up"]), (256, [])]
)
def test_a_context_that_is_rounded_up_is_said(asked: int, notes: list[str], tiny: Path) -> None:
    with open_engine(tiny, replace(SETTINGS, context=asked), PLAIN, template="chatml") as engine:
        assert engine.notes == notes


def test_closing_twice_is_harmless(tiny: Path) -> None:
    with LlamaModel(tiny, SETTINGS) as model:
        with LlamaContext(model, SETTINGS, ContextSize.of(LOOKAHEAD), backend_greedy=True) as context:
            assert context.decode(from_tokens([5], 0))
            context.close()
        model.close()
    with load(tiny, model_settings=SETTINGS, decode_settings=LOOKAHEAD) as engine:
        engine.close()


ON_A_CLOSED_ENGINE: dict[str, Callable[[ModelEngine], object]] = {
    "generate": lambda engine: engine.generate([5]),
    "decode": lambda engine: list(engine.decode([5])),
    "raw prompt": lambda engine: engine.prompts.question("the", raw=True),
    "conversation_prompt": lambda engine: engine.prompts.conversation(as_messages("the")),
    "piece": lambda engine: engine.prompts.piece(5),
    "adapt": lambda engine: engine.adapt(LOOKAHEAD, SamplingSettings(temp=1)),
    "context": lambda engine: LlamaContext(engine.model, SETTINGS, ContextSize.of(PLAIN)),
    "sampler": lambda engine: LlamaSampler(engine.model, SamplingSettings(seed=1, temp=1)),
}


def test_a_question_to_a_closed_engine_is_one_error(tiny: Path) -> None:
    with load(tiny, model_settings=SETTINGS, decode_settings=PLAIN) as engine:
        generate(engine, "the thing", max_tokens=3)
    for name, ask in ON_A_CLOSED_ENGINE.items():
        with pytest.raises(LacliError, match=r"tiny.gguf is closed \(load the model again\)"):
            ask(engine)
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
def test_a_dropped_engine_gives_its_samplers_contexts_and_model_back(
    in_a_circle: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = told(monkeypatch)
    sampling = SamplingSettings(temp=1, seed=1)
    engine = load(tiny, model_settings=SETTINGS, decode_settings=LOOKAHEAD, sampling=sampling)
    generate(engine, "the thing", max_tokens=3)
    if in_a_circle:
        engine.notes.append(engine)  # type: ignore[arg-type]  # as a caller's own objects can make one
    assert "llama_model_free" not in freed
    gc.collect()
    gc.disable()
    try:
        freed.clear()
        del engine
        # Nothing of an engine's own keeps it: without a circle of somebody else's it goes at once.
        assert bool(freed) is not in_a_circle
    finally:
        gc.enable()
    gc.collect()
    # Samplers and contexts read the model's vocabulary until their end, and not each other.
    assert sorted(freed[:-1]) == ["llama_free", *["llama_sampler_free"] * 2] and freed[-1] == "llama_model_free"


def test_half_of_a_character_is_refused_wherever_it_comes_from(tiny: Path) -> None:
    with load(tiny, model_settings=SETTINGS, decode_settings=LOOKAHEAD, template=None) as engine:
        with pytest.raises(PromptError, match="the prompt is not valid Unicode"):
            generate(engine, "\ud800")
        with pytest.raises(PromptError, match="the prompt is not valid Unicode"):
            engine.prompts.conversation(as_messages("the thing", "the \udcff thing"))


ANSWERING = """
begun = threading.Event()
def answer():
    while True:
        for piece in model.stream('the thing', raw=True, max_tokens=200):
            begun.set()
threading.Thread(target=answer, daemon=True).start()
begun.wait()
"""
ASKING_LATE = """
import atexit
def ask():
    try:
        model.generate('the thing')
    except Exception as error:
        print(error)
atexit.register(ask)
"""


@pytest.mark.parametrize(
    ("program", "out"),
    [
        (LOADED + "print(model.generate('the thing', max_tokens=3).finish_reason)\n", "length\n"),
        (LOADED + ANSWERING, ""),
        (ASKING_LATE + LOADED, "the model is closed (load it again)\n"),
    ],
    ids=["a model is left open", "a thread is answering", "a question comes after the exit handlers"],
)
def test_a_program_ends_with_0_and_does_not_wait(program: str, out: str, tiny: Path) -> None:
    assert run(str(tiny), program=(sys.executable, "-c", program)) == Done(0, out, "")

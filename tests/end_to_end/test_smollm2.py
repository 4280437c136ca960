"""SmolLM2-135M, a model that people use: its template, modes and streams."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lacli.check.compare import Comparison
from lacli.engine.load import ModelEngine
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.fakes.decoding import PLAIN, bugs, compare
from tests.loading import generate, load, smollm2

LIMIT = 8
SETTINGS = ModelSettings(context=512, gpu_layers=0, threads=1)

QUESTIONS = {
    "writing": "Write the first line of a letter to a neighbour.",
    "roleplay": "You are a sailor. Greet your crew.",
    "reasoning": "Tom is taller than Ann. Who is shorter?",
    "math": "What is 12 plus 30?",
    "coding": "Write a Python function that adds two numbers.",
    "extraction": "Name the city: Ada moved to London in 1835.",
    "translation": "Translate to German: Good morning.",
    "summarization": "Sum up in one sentence: The shop was shut, so we went home and cooked soup.",
}
"""One for each of eight of Spec-Bench's categories."""

MODES = {
    "jacobi": DecodeSettings(mode="jacobi", window=3),
    "lookup": DecodeSettings(mode="lookup"),
    "lookahead": DecodeSettings(mode="lookahead", window=2, ngram=3, guesses=2),
    "auto": DecodeSettings(),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[ModelEngine]:
    with load(smollm2(), model_settings=SETTINGS, decode_settings=PLAIN) as engine:
        yield engine


@pytest.fixture(scope="module")
def comparison(engine: ModelEngine) -> Iterator[Comparison]:
    with compare(engine.model, SETTINGS, LIMIT) as comparison:
        yield comparison


def test_the_template_is_its_own_and_the_first_sentence_answers_the_question(engine: ModelEngine) -> None:
    question = "What is the capital of Japan?"
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = [f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in (("system", system), ("user", question))]
    assert engine.text(engine.prompts.question(question), special=True) == "".join(turns) + "<|im_start|>assistant\n"
    answer = generate(engine, question, max_tokens=24)
    assert (answer.text, answer.finish_reason) == ("The capital of Japan is Tokyo.", "eog")


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_plains_text_but_for_rounding(mode: str, engine: ModelEngine, comparison: Comparison) -> None:
    runs = [*comparison.run(MODES[mode], [engine.prompts.question(each, "Be brief.") for each in QUESTIONS.values()])]
    assert bugs(runs) == []
    assert all(len(run.tokens) == LIMIT or engine.model.is_end(run.tokens[-1]) for run in runs)


def test_text_that_is_not_latin_comes_in_whole_characters(engine: ModelEngine) -> None:
    question = "Repeat: Привет, 世界! 🙂"
    text, found = engine.generate(engine.prompts.question(question), 24, engine.prompts.template.stops)
    pieces = [piece.text for piece in found]
    assert "".join(pieces) == text.answer().text and len(pieces) > 3
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert any(ord(letter) > 0x400 for letter in "".join(pieces))

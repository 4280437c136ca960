"""SmolLM2-135M, a widely used model: its template and its streams."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lacli.engine.load import ModelEngine
from lacli.llamacpp.settings import ModelSettings
from tests.fakes.decoding import PLAIN
from tests.loading import generate, load, smollm2

SETTINGS = ModelSettings(context=512, gpu_layers=0, threads=1)


@pytest.fixture(scope="module")
def engine() -> Iterator[ModelEngine]:
    with load(smollm2(), model_settings=SETTINGS, decode_settings=PLAIN) as engine:
        yield engine


def test_the_template_is_its_own_and_the_first_sentence_answers_the_question(engine: ModelEngine) -> None:
    question = "What is the capital of Japan?"
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = [f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in (("system", system), ("user", question))]
    assert engine.text(engine.prompts.question(question), special=True) == "".join(turns) + "<|im_start|>assistant\n"
    answer = generate(engine, question, max_tokens=24)
    assert (answer.text, answer.finish_reason) == ("The capital of Japan is Tokyo.", "eog")


def test_text_that_is_not_latin_comes_in_whole_characters(engine: ModelEngine) -> None:
    question = "Repeat: Привет, 世界! 🙂"
    text, found = engine.generate(engine.prompts.question(question), 24, engine.prompts.template.stops)
    pieces = [piece.text for piece in found]
    assert "".join(pieces) == text.answer().text and len(pieces) > 3
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert any(ord(letter) > 0x400 for letter in "".join(pieces))

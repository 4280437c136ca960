"""SmolLM2-135M, a model that people use: template, modes, seeds, schemas, streams, stops, files of prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lacli.check.compare import Comparison
from lacli.engine.load import ModelEngine
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.fakes.decoding import PLAIN, bugs, compare
from tests.loading import generate, load, smollm2
from tests.program import call

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


def test_one_seed_is_one_text_in_plain_decoding_and_in_lookup() -> None:
    asked = ("run", "-q", str(smollm2()), "-p", "Name an animal.", "-c", "256", "-n", "6", "--temp", "1", "-s")
    first, again, other, guessed = (
        call(*asked, *more).out
        for more in (
            ("7", "--mode", "plain"),
            ("7", "--mode", "plain"),
            ("8", "--mode", "plain"),
            ("7", "--mode", "lookup"),
        )
    )
    assert first == again == guessed != other


def test_an_answer_under_a_schema_is_json_of_it() -> None:
    schema = '{"type": "object", "properties": {"city": {"enum": ["Tokyo", "Rome"]}}, "required": ["city"]}'
    done = call("run", "-q", str(smollm2()), "-p", "The capital of Japan?", "-c", "256", "-n", "40", "-j", schema)
    assert json.loads(done.out)["city"] in ("Tokyo", "Rome")


def test_text_that_is_not_latin_comes_in_whole_characters(engine: ModelEngine) -> None:
    question = "Repeat: Привет, 世界! 🙂"
    text, found = engine.generate(engine.prompts.question(question), 24, engine.prompts.template.stops)
    pieces = [piece.text for piece in found]
    assert "".join(pieces) == text.answer().text and len(pieces) > 3
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert any(ord(letter) > 0x400 for letter in "".join(pieces))


def test_a_stop_string_across_tokens_ends_an_answer_and_is_no_part_of_it(engine: ModelEngine) -> None:
    answer = generate(engine, "What is the capital of Japan?", max_tokens=24, stops=" of Jap")
    assert (answer.text, answer.finish_reason) == ("The capital", "stop")


def test_a_file_of_prompts_is_answered_together(tmp_path: Path) -> None:
    rows = [{"prompt": "What is the capital of Japan?"}, {"turns": ["What is 2 plus 2?", "And 3 plus 3?"]}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = call("run", "-q", str(smollm2()), "--prompts", str(file), "-c", "512", "-n", "12", "-np", "2")
    first, second = sorted(map(json.loads, done.out.splitlines()), key=lambda row: int(row["index"]))
    assert first["text"] == "The capital of Japan is Tokyo." and len(second["text"]) == 2

"""A model's card: its memory equals real contexts' memory, and its modes can be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lacli.hub.report import card_json, card_text, make_card, running_memory
from lacli.llamacpp.context import MAX_ROLLBACK, LlamaContext
from lacli.llamacpp.library import start
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ContextSize, ModelSettings
from lacli.settings import MODES, DecodeSettings
from tests.fakes import tiny_models
from tests.loading import STDLIB_7M

CPU = ModelSettings(gpu_layers=0, threads=1)
DECODING = DecodeSettings(mode="lookahead")
SMALL = DecodeSettings(mode="lookahead", window=4, ngram=3, guesses=4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.gguf"


@pytest.mark.parametrize("write", [tiny_models.write_gemma_swa, tiny_models.write_mamba, tiny_models.write_lfm2])
def test_the_memory_is_what_contexts_take_when_they_are_made(write: Callable[[Path], None], path: Path) -> None:
    model_settings = replace(CPU, context=300, batch=64, cache_type_k="f32")
    write(path)
    memory = make_card(path, model_settings, SMALL).memory[-1]
    with LlamaModel(path, model_settings) as model:
        with LlamaContext(model, model_settings, ContextSize.of(DecodeSettings(mode="plain"))) as engine:
            assert memory.tokens == engine.cells
            assert memory.plain / 2**20 == pytest.approx(sum(start().buffers.values()), abs=0.02)
        assert (memory.lookahead is None) is bool(model.chain_only)
        if memory.lookahead is not None:
            with LlamaContext(model, model_settings, ContextSize.of(SMALL)):
                assert memory.lookahead / 2**20 == pytest.approx(sum(start().buffers.values()), abs=0.02)


def test_a_model_that_cannot_be_run_has_a_card_that_says_why(path: Path) -> None:
    tiny_models.write_embedding(path)
    card = make_card(path, CPU, DECODING)
    assert "embedding model" in card.problem and not card.modes and not card.memory
    assert f"none: {card.problem}" in card_text(card, DECODING)
    assert card_json(card)["problem"] == card.problem


def test_text_json_and_list_tell_the_same_memory_and_drafts_of_a_hybrid_model_are_short(path: Path) -> None:
    tiny_models.write_lfm2(path)
    card = make_card(path, CPU, DECODING)
    (memory,) = json.loads(json.dumps(card_json(card)))["memory"]
    row = card_text(card, DECODING).split("\n")[-2].split()
    assert row[0] == f"{memory['tokens']:,}"
    counted = card.header.weights + memory["cache"]
    assert running_memory(card.header) == pytest.approx(counted, rel=0.02)
    assert card.modes == ("plain", "jacobi", "lookup", "auto")
    assert f"at most {MAX_ROLLBACK} tokens: a model with a recurrent state" in card.notes[0]
    assert make_card(STDLIB_7M, CPU, DECODING).modes == MODES

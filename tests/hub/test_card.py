"""A model's card: its memory is what contexts really take, and what it says of modes is so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lacli.errors import UsageError
from lacli.hub.card import Card, card_json, card_text, make_card
from lacli.hub.listing import running_memory
from lacli.llamacpp.context import MAX_ROLLBACK, LlamaContext
from lacli.llamacpp.devices import peak_memory
from lacli.llamacpp.gguf import read_header
from lacli.llamacpp.library import library
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import MODES, DecodeSettings
from tests.fakes import tiny_models
from tests.loading import STDLIB_7M

CPU = ModelSettings(gpu_layers=0, threads=1)
DECODING = DecodeSettings(mode="lookahead")

WRITERS: dict[str, Callable[[Path], None]] = {
    "llama": tiny_models.write_llama,
    "sliding window": tiny_models.write_gemma_swa,
    "recurrent": tiny_models.write_mamba,
    "hybrid": tiny_models.write_hybrid,
    "a hybrid that goes back": tiny_models.write_lfm2,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.gguf"


@pytest.fixture(scope="module")
def small() -> Card:
    return make_card(STDLIB_7M, CPU, DECODING)


@pytest.mark.parametrize("kind", ["quick", *WRITERS])
@pytest.mark.parametrize(
    "model_settings",
    [replace(CPU, context=1024), replace(CPU, context=300, batch=64), replace(CPU, context=512, cache_type_k="f32")],
)
def test_the_memory_is_what_contexts_take_when_they_are_made(
    kind: str, model_settings: ModelSettings, path: Path
) -> None:
    if kind == "quick":
        path = STDLIB_7M
    else:
        WRITERS[kind](path)
    small = DecodeSettings(mode="lookahead", window=4, ngram=3, guesses=4)
    (memory,) = make_card(path, model_settings, small).memory
    with LlamaModel(path, model_settings) as model:
        with LlamaContext(model, model_settings, DecodeSettings(mode="plain")) as engine:
            assert memory.tokens == engine.cells
            assert memory.cache + memory.plain == pytest.approx(sum(library().buffers.values()), abs=0.02)
        assert (memory.lookahead is None) is bool(model.chain_only)
        if memory.lookahead is not None:
            with LlamaContext(model, model_settings, small):
                assert memory.cache + memory.lookahead == pytest.approx(sum(library().buffers.values()), abs=0.02)


def test_cells_of_half_the_size_take_half_the_cache() -> None:
    f32, f16 = (
        make_card(STDLIB_7M, replace(CPU, context=2048, cache_type_k=name, cache_type_v=name), DECODING).memory[0]
        for name in ("f32", "f16")
    )
    header = read_header(STDLIB_7M)
    numbers = 2048 * header.layers * header.kv_heads[0] * (header.key_length + header.value_length)
    assert f32.cache == pytest.approx(2 * f16.cache) == pytest.approx(numbers * 4 / 2**20)


def test_a_large_context_is_counted_without_being_made() -> None:
    before = peak_memory()
    (memory,) = make_card(STDLIB_7M, replace(CPU, context=2**20), DECODING).memory
    assert memory.cache == 4096
    assert peak_memory() - before < 1024


def test_without_a_wish_the_contexts_go_up_to_the_trained_one(small: Card, path: Path) -> None:
    tiny_models.write_llama(path)
    assert [each.tokens for each in make_card(path, CPU, DECODING).memory] == [512]
    assert [each.tokens for each in small.memory] == [2048]


def test_a_recurrent_model_has_one_mode_and_says_why(small: Card, path: Path) -> None:
    tiny_models.write_mamba(path)
    card = make_card(path, CPU, DECODING)
    assert card.modes == ("plain",) and "cannot forget a rejected token" in card.notes[0]
    assert small.modes == MODES


@pytest.mark.parametrize(("batch", "back"), [(2048, MAX_ROLLBACK), (5, 3)])
def test_a_model_that_goes_back_along_chains_has_all_modes_but_lookahead(batch: int, back: int, path: Path) -> None:
    tiny_models.write_lfm2(path)
    small = DecodeSettings(mode="lookahead", window=1, ngram=2, guesses=1)
    card = make_card(path, replace(CPU, batch=batch), small)
    assert card.modes == ("plain", "jacobi", "lookup", "auto")
    assert f"one chain of at most {back} only: a hybrid model" in card.notes[0]
    assert all(each.lookahead is None for each in card.memory)
    (none,) = make_card(path, replace(CPU, batch=2, context=256), replace(small, guesses=0)).modes
    assert none == "plain", "a batch without room for a way back has none"


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (tiny_models.write_bert, "embedding model"),
        (tiny_models.write_t5, "encoder"),
        (tiny_models.write_diffusion, "diffusion model"),
        (tiny_models.write_unknown_architecture, "unknown model architecture"),
    ],
)
def test_a_model_that_cannot_be_run_has_a_card_that_says_why(
    write: Callable[[Path], None], words: str, path: Path
) -> None:
    write(path)
    card = make_card(path, CPU, DECODING)
    assert words in card.problem and not card.modes and not card.memory
    assert f"none: {card.problem}" in card_text(card, CPU, DECODING, 0)
    assert card_json(card, CPU, DECODING)["problem"] == card.problem


def test_text_and_json_tell_the_same_memory(small: Card) -> None:
    found = json.loads(json.dumps(card_json(small, CPU, DECODING)))
    (memory,) = found["memory"]
    row = next(line for line in card_text(small, CPU, DECODING, 80).split("\n") if line.split()[:1] == ["2,048"])
    shown = [float(number) for number in re.findall(r"([\d.]+) MB", row)]
    told = [memory[each] * 1.048576 for each in ("cache_mib", "plain_mib", "lookahead_mib")]
    assert shown == pytest.approx(told, 0.01)
    assert (found["type"], found["kv_heads"], found["modes"]) == ("Q8_0", 2, list(MODES))
    assert (found["experts"], found["recurrent"]) == (None, None)


def test_a_step_larger_than_a_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="-b is 8"):
        make_card(STDLIB_7M, replace(CPU, batch=8), DECODING)


@pytest.mark.parametrize("write", [None, tiny_models.write_llama, tiny_models.write_gemma_swa, tiny_models.write_lfm2])
def test_the_memory_to_run_is_the_weights_and_the_cache_that_the_card_counts(
    write: Callable[[Path], None] | None, tmp_path: Path
) -> None:
    path = tmp_path / "a.gguf" if write else STDLIB_7M
    if write:
        write(path)
    card = make_card(path, CPU, DECODING)
    counted = card.header.weights + card.memory[-1].cache * 2**20
    assert running_memory(read_header(path)) == pytest.approx(counted, rel=0.02)

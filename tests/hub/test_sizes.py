"""What a model takes to run, from its header: what its card counts with llama.cpp; sizes of other quants by a rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lacli.hub.card import make_card
from lacli.hub.names import Alias, HubModel, read_aliases
from lacli.hub.sizes import BITS, absent_model, expected_size, running_memory
from lacli.llamacpp.gguf import read_header
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.fakes import tiny_models
from tests.loading import STDLIB_7M

CPU = ModelSettings(gpu_layers=0, threads=1)
MIB = 2**20


@pytest.mark.parametrize("write", [None, tiny_models.write_llama, tiny_models.write_gemma_swa, tiny_models.write_lfm2])
def test_the_memory_to_run_is_the_weights_and_the_cache_that_the_card_counts(
    write: Callable[[Path], None] | None, tmp_path: Path
) -> None:
    path = tmp_path / "a.gguf" if write else STDLIB_7M
    if write:
        write(path)
    card = make_card(path, CPU, DecodeSettings(mode="lookahead"))
    counted = card.header.weights + card.memory[-1].cache * MIB
    assert running_memory(read_header(path)) == pytest.approx(counted, rel=0.02)


def test_the_size_in_another_quant_follows_from_the_bits_of_both() -> None:
    alias = Alias("a", "me/a", "Q8_0", size=8_500_000_000)
    assert expected_size(alias, "q8_0") == alias.size
    assert expected_size(alias, "f16") == 16_000_000_000
    assert expected_size(alias, "Q9_Z") == expected_size(Alias("a", "me/a", "q4", size=5), "Q8_0") == 0
    assert list(BITS.values()) == sorted(BITS.values())


def test_the_alias_that_was_named_says_what_it_is_and_another_of_its_repository_the_sizes() -> None:
    aliases = read_aliases()
    known = aliases["qwen3-4b"]
    own = Alias("mine", known.repository, "Q8_0", own=True)
    found = absent_model("mine", HubModel(known.repository, "Q8_0"), {**aliases, "mine": own})
    assert found and found.size > known.size and found.quants["Q4_K_M"] == known.size
    assert absent_model("me/a", HubModel("me/a"), aliases) is None

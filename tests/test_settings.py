"""Settings: ranges, errors that say what would fit, presets, and flags that override them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, fit_to_batch
from lacli.settings import MAX_SEQUENCES, PRESETS, Constraints, DecodeSettings, ModeName, decode_settings

NO_TUPLES: list[tuple[Callable[..., object], str, list[object]]] = [
    (SamplingSettings, "logit_bias", [{5: 1.0}, "5+1", None]),
    (ModelSettings, "devices", [{"CPU": 1}, "CPU", ["CPU"]]),
    (ModelSettings, "tensor_split", ["3,1", {0: 1}]),
    (ModelSettings, "rpc", ["box:1", {"box:1": 1}, 5]),
]

REFUSED: list[tuple[str, Callable[[], object]]] = [
    (
        r"W \+ G \+ 1 = 301 sequence ids.* 256 .*-W 127 -G 128",
        lambda: DecodeSettings(mode="lookahead", window=200, guesses=100),
    ),
    (r"^there is no preset 'speed' \(one of code, ", lambda: decode_settings("speed")),
    (r"^auto_rows is 257 \(auto_rows must be at most 256", lambda: DecodeSettings(auto_rows=257)),
    (r"^q9_9 is no cache type .*q8_0", lambda: ModelSettings(cache_type_k="q9_9")),
    (
        r"^mode cannot be 'lookahed' \(one of plain, jacobi, lookup, lookahead, auto\)",
        lambda: decode_settings(mode="lookahed"),
    ),
    (r"^flash_attention cannot be True", lambda: replace(ModelSettings(), flash_attention=True)),  # type: ignore[arg-type]
    ("half of a character", lambda: SamplingSettings(grammar="\ud800")),
    ("^window ", lambda: DecodeSettings(window=-1)),
    ("^ngram ", lambda: DecodeSettings(ngram=1)),
    ("^batch ", lambda: ModelSettings(batch=0)),
    *(
        (rf"^{name} is .*\(it must be a tuple", partial(kind, **{name: value}))
        for kind, name, values in NO_TUPLES
        for value in values
    ),
]


@pytest.mark.parametrize(("words", "make"), REFUSED)
def test_settings_that_cannot_be_are_refused_with_what_would_fit(words: str, make: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        make()
    assert caught.value.exit_code == 2


def test_what_just_fits_is_taken() -> None:
    assert DecodeSettings(mode="lookahead", window=127, guesses=128).ids == MAX_SEQUENCES
    assert DecodeSettings(leaves=255).ids == MAX_SEQUENCES
    assert DecodeSettings(mode="auto").constrained(max_rollback=7).ids == 1
    for mode in ("plain", "jacobi", "lookup"):
        assert decode_settings(mode=mode, window=300).ids == 1


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid_and_means_lookahead_if_no_mode_is_chosen(preset: str) -> None:
    settings = decode_settings(preset)
    assert settings.window == PRESETS[preset]["window"] and settings.mode == "lookahead"
    assert settings.max_rows <= ModelSettings().batch
    assert decode_settings(preset, mode="jacobi").mode == "jacobi"
    assert decode_settings(preset, window=3, ngram=None).ngram == PRESETS[preset]["ngram"]


def test_a_size_of_lookahead_means_lookahead_if_no_mode_is_chosen_and_else_the_mode_is_auto() -> None:
    for name in ("window", "ngram", "guesses"):
        sizes: Any = {name: 4}
        assert decode_settings(mode=None, **sizes).mode == "lookahead"
        assert decode_settings(mode="auto", **sizes).mode == "auto"
    assert decode_settings().mode == decode_settings(window=None, lookup_draft=4, strict=True).mode == "auto"


@given(st.integers(4, 140), st.integers(1, 70), st.integers(1, 4), st.booleans())
def test_auto_takes_as_many_rows_as_a_batch_has_and_no_fewer(batch: int, asked: int, least: int, ordered: bool) -> None:
    chosen = DecodeSettings(auto_rows=asked, constraints=Constraints(ordered=ordered, min_outputs=least))
    found = fit_to_batch(chosen, ModelSettings(batch=batch))
    assert replace(found, auto_rows=asked) == chosen
    assert found.max_rows <= batch
    assert found.auto_rows == asked or replace(found, auto_rows=found.auto_rows + 1).max_rows > batch


@pytest.mark.parametrize("mode", ["lookahead", "jacobi", "lookup"])
def test_a_step_larger_than_a_batch_is_refused_with_the_one_that_fits(mode: ModeName) -> None:
    chosen, small = DecodeSettings(mode=mode), ModelSettings(batch=8)
    with pytest.raises(UsageError, match=rf"and -b is 8 \(-b {chosen.max_rows} is enough\)$"):
        fit_to_batch(chosen, small)
    assert fit_to_batch(chosen, ModelSettings(batch=chosen.max_rows)) == chosen


@given(st.integers(1, 128), st.sampled_from(["auto", "plain", "lookup"]))
def test_sequences_of_one_context_share_its_ids(count: int, mode: ModeName) -> None:
    settings = DecodeSettings(mode=mode).for_slots(count)
    assert count * settings.ids <= MAX_SEQUENCES
    assert settings.leaves >= 1 and (settings == DecodeSettings(mode=mode) or mode == "auto")


@pytest.mark.parametrize(("mode", "most", "hint"), [("auto", 128, ""), ("lookahead", 8, ", and so does mode auto")])
def test_more_sequences_than_ids_allow_are_refused(mode: ModeName, most: int, hint: str) -> None:
    DecodeSettings(mode=mode).for_slots(most)
    with pytest.raises(UsageError, match=rf"llama.cpp has 256 \(--parallel {most} fits{hint}\)$"):
        DecodeSettings(mode=mode).for_slots(most + 1)

"""Settings: ranges with what would fit, presets, and flags that win over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import (
    CACHE_TYPES,
    ModelSettings,
    Placement,
    check_rows,
    fitted,
)
from lacli.settings import (
    MAX_SEQUENCES,
    PRESETS,
    DecodeSettings,
    ModeName,
    decode_settings,
)


def test_too_many_sequences_are_refused_with_the_limit_and_what_fits() -> None:
    with pytest.raises(UsageError, match="256") as caught:
        DecodeSettings(mode="lookahead", window=200, guesses=100)
    assert caught.value.exit_code == 2
    assert "-W 127 -G 128" in str(caught.value)
    assert DecodeSettings(mode="lookahead", window=127, guesses=128).sequences == MAX_SEQUENCES
    with pytest.raises(UsageError, match=r"256 \(-W of at most 207 fits"):
        DecodeSettings(window=208, guesses=0)
    assert DecodeSettings(window=207).sequences == MAX_SEQUENCES


def test_a_window_that_leaves_mode_auto_no_branches_is_refused_with_what_fits() -> None:
    with pytest.raises(UsageError, match="256") as caught:
        DecodeSettings(mode="auto", window=250)
    assert "-W of at most 207 fits" in str(caught.value)
    assert DecodeSettings(mode="auto", window=207).sequences == 256
    # Where a model takes chains only the window has no sequences.
    assert DecodeSettings(mode="auto", window=250, max_rollback=7).sequences == 1


def test_an_unknown_source_names_its_flag_and_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"^--sources: there is no source 'magic'.*, or none") as caught:
        decode_settings(sources=("suffix", "magic"))
    assert caught.value.exit_code == 2
    assert DecodeSettings(sources=()).sources == ()


UNKNOWN_WORDS = [
    ("--mode cannot be 'lookahed' (one of plain, jacobi, lookup, lookahead, auto)", DecodeSettings, "mode", "lookahed"),
    ("--window-init cannot be 'zero' (one of prompt, random, pool)", DecodeSettings, "window_init", "zero"),
    ("--window-shift cannot be 'twice' (one of once, refill)", DecodeSettings, "window_shift", "twice"),
    ("-fa cannot be True (one of on, off, auto)", ModelSettings, "flash_attention", True),
    ("-ctk q4 is no cache type (one of " + ", ".join(CACHE_TYPES) + ")", ModelSettings, "cache_type_k", "q4"),
    ("-sm cannot be 'rows' (one of none, layer, row, tensor)", Placement, "split_mode", "rows"),
    ("--verify cannot be '' (one of match, rejection)", SamplingSettings, "verify", ""),
]


@pytest.mark.parametrize(("sentence", "settings", "field", "word"), UNKNOWN_WORDS)
def test_an_unknown_word_is_refused_with_the_known_ones(
    sentence: str, settings: type[Any], field: str, word: object
) -> None:
    with pytest.raises(UsageError) as caught:
        settings(**{field: word})
    assert str(caught.value) == sentence
    with pytest.raises(UsageError):
        replace(settings(), **{field: word})


@pytest.mark.parametrize(
    "texts", [{"grammar": "\ud800"}, {"json_schema": "\udfff"}, {"dry_sequence_breaker": ("\udcff",)}]
)
def test_half_of_a_character_in_a_setting_is_refused(texts: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="half of a character"):
        SamplingSettings(**texts)


OUT_OF_RANGE = [
    ("-W", lambda: DecodeSettings(window=-1)),
    ("-N", lambda: DecodeSettings(ngram=1)),
    ("-G", lambda: DecodeSettings(guesses=-1)),
    ("--pool-keys", lambda: DecodeSettings(pool_keys=0)),
    ("-c", lambda: ModelSettings(context=-1)),
    ("-b", lambda: ModelSettings(batch=0)),
    ("-t", lambda: ModelSettings(threads=-1)),
]


@pytest.mark.parametrize(("flag", "make"), OUT_OF_RANGE)
def test_a_setting_out_of_range_names_its_flag(flag: str, make: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=flag):
        make()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid(preset: str) -> None:
    settings = decode_settings(preset)
    assert settings.window == PRESETS[preset]["window"]
    assert settings.max_rows <= ModelSettings().batch


def test_what_is_given_wins_over_the_preset() -> None:
    settings = decode_settings("13b", window=3, ngram=None)
    assert (settings.window, settings.ngram, settings.guesses) == (3, 5, 10)


@pytest.mark.parametrize("chosen", [{"window": 3}, {"ngram": 4}, {"guesses": 5}], ids=str)
def test_a_size_of_lookahead_means_lookahead_where_no_mode_is_chosen(chosen: dict[str, Any]) -> None:
    assert decode_settings(**chosen).mode == "lookahead"
    assert decode_settings(mode=None, **chosen).mode == "lookahead"
    assert decode_settings(mode="auto", **chosen).mode == "auto"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_means_lookahead_where_no_mode_is_chosen(preset: str) -> None:
    assert decode_settings(preset).mode == "lookahead"
    assert decode_settings(preset, mode="jacobi").mode == "jacobi"


def test_without_a_choice_the_mode_is_auto() -> None:
    assert decode_settings().mode == decode_settings(window=None, lookup_draft=4, strict=True).mode == "auto"


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("least", [1, 2, 4])
@pytest.mark.parametrize("asked", [1, 5, 64])
@pytest.mark.parametrize("batch", range(1, 140, 3))
def test_auto_takes_as_many_rows_as_a_batch_has_and_no_fewer(batch: int, asked: int, least: int, ordered: bool) -> None:
    chosen = DecodeSettings(auto_rows=asked, ordered=ordered, min_outputs=least)
    loading = ModelSettings(batch=batch)
    found = fitted(chosen, loading)
    assert replace(found, auto_rows=asked) == chosen
    assert found.max_rows <= max(batch, least)
    assert found.auto_rows == asked or replace(found, auto_rows=found.auto_rows + 1).max_rows > batch


@pytest.mark.parametrize(
    ("mode", "flags"),
    [("lookahead", "-W, -N or -G"), ("jacobi", "-W"), ("lookup", "--lookup-draft"), ("auto", "--auto-rows")],
)
def test_a_step_larger_than_a_batch_is_refused_with_what_makes_it_smaller(mode: ModeName, flags: str) -> None:
    chosen, small = DecodeSettings(mode=mode), ModelSettings(batch=8)
    with pytest.raises(UsageError, match=rf"and -b is 8 \(-b {chosen.max_rows} or a smaller {flags}\)$"):
        check_rows(chosen, small)
    if mode != "auto":
        assert fitted(chosen, small) == chosen
    check_rows(chosen, ModelSettings(batch=chosen.max_rows))


def test_a_single_row_that_needs_company_is_refused_with_the_batch_that_it_takes() -> None:
    chosen = DecodeSettings(ordered=True, min_outputs=2)
    with pytest.raises(UsageError, match=r"up to 2 rows and -b is 1 \(-b 2"):
        check_rows(fitted(chosen, ModelSettings(batch=1)), ModelSettings(batch=1))


def test_other_modes_need_one_sequence() -> None:
    for mode in ("plain", "jacobi", "lookup"):
        assert decode_settings(mode=mode, window=300).sequences == 1


def test_an_unknown_cache_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="q8_0"):
        ModelSettings(cache_type_k="q9_9")

"""Settings: ranges with what would fit, presets, and flags that win over them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lacli.errors import UsageError
from lacli.settings import PRESETS, DecodeSettings, ModelSettings, decode_settings


def test_too_many_sequences_are_refused_with_the_limit_and_what_fits() -> None:
    with pytest.raises(UsageError, match="256") as caught:
        DecodeSettings(window=200, guesses=100)
    assert caught.value.exit_code == 2
    assert "-W 127 -G 128" in str(caught.value)
    assert DecodeSettings(window=127, guesses=128).sequences == 256


def test_a_window_that_leaves_mode_auto_no_branches_is_refused_with_what_fits() -> None:
    with pytest.raises(UsageError, match="256") as caught:
        DecodeSettings(mode="auto", window=250)
    assert "-W of at most 207 fits" in str(caught.value)
    assert DecodeSettings(mode="auto", window=207).sequences == 256
    # Where a model takes chains only the window has no sequences.
    assert DecodeSettings(mode="auto", window=250, back=7).sequences == 1


def test_an_unknown_source_names_its_flag_and_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"^--sources: there is no source 'magic'.*, or none") as caught:
        decode_settings(sources=("suffix", "magic"))
    assert caught.value.exit_code == 2
    assert DecodeSettings(sources=()).sources == ()


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
    assert settings.most_rows <= ModelSettings().batch


def test_what_is_given_wins_over_the_preset() -> None:
    settings = decode_settings("13b", window=3, ngram=None)
    assert (settings.window, settings.ngram, settings.guesses) == (3, 5, 10)


def test_other_modes_need_one_sequence() -> None:
    for mode in ("plain", "jacobi", "lookup"):
        assert decode_settings(mode=mode, window=300).sequences == 1


def test_an_unknown_cache_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="q8_0"):
        ModelSettings(cache_type_k="q9_9")

"""The sampling settings: llama.cpp's defaults, ranges with one-line errors, and when no sampler is needed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lacli.errors import UsageError
from lacli.llamacpp.sampling import ALTERS_GREEDY, SamplingSettings
from lacli.options import Option, options_of

DRAWING = {"temp": 0.8}


@pytest.mark.parametrize("option", [each for each in options_of(SamplingSettings).values() if each.most is not None])
def test_a_setting_may_reach_both_ends_of_its_range_and_not_leave_it(option: Option) -> None:
    name, least, most = option.name, option.least, option.most
    assert least is not None and most is not None
    given: dict[str, Any] = {**DRAWING, name: least}
    assert getattr(SamplingSettings(**given), name) == least
    assert getattr(SamplingSettings(**{**given, name: most}), name) == most
    step = 1 if isinstance(getattr(SamplingSettings(), name), int) else 0.5
    for outside in (least - step, most * 2 + step, math.nan):
        with pytest.raises(UsageError) as raised:
            SamplingSettings(**{**given, name: outside})
        assert str(raised.value).startswith(f"{option.label} is ")
        assert "must be" in raised.value.hint and "\n" not in str(raised.value)
        assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"grammar": "root ::= [a]", "json_schema": "{}"}, "--grammar and --json-schema"),
        ({"logit_bias": ((3, math.inf),)}, "--logit-bias of token 3"),
        ({"logit_bias": ((3, math.nan),)}, "--logit-bias of token 3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_in_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        SamplingSettings(**given)
    assert words in str(raised.value) and raised.value.hint and "\n" not in str(raised.value)


CHANGED: dict[str, Any] = {
    "typical": 0.5,
    "xtc_probability": 0.5,
    "repeat_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "dry_multiplier": 0.8,
    "logit_bias": ((1, 1.0),),
    "ignore_eos": True,
    "grammar": "root ::= [a]",
    "json_schema": "{}",
}


def test_a_sampler_is_needed_exactly_where_the_most_probable_token_may_not_win() -> None:
    assert SamplingSettings().greedy
    assert not SamplingSettings(temp=0.1).greedy
    assert SamplingSettings(top_k=3, top_p=0.5, min_p=0.5, seed=1, dry_base=2.0, repeat_last_n=3).greedy
    for name in ALTERS_GREEDY:
        assert not replace(SamplingSettings(), **{name: CHANGED[name]}).greedy

"""/set: every setting can be changed by all its names, and the reply says what changed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.chat.settings import (
    SETTINGS,
    ChatSettings,
    adjust,
    all_settings,
    changes_in_words,
    key_of,
    read,
    settings_from_json,
    show,
)
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings

DEFAULT = ChatSettings()
WARM = ChatSettings(sampling=SamplingSettings(temp=0.7))

TYPED: dict[str, tuple[str, Any]] = {
    "mode": ("lookup", "lookup"),
    "verify": ("rejection", "rejection"),
    "logit_bias": ("15043-inf 7+1.5", ((15043, -math.inf), (7, 1.5))),
    "grammar": ('root ::= "yes" | "no"', 'root ::= "yes" | "no"'),
    "json_schema": ('{"type": "object"}', '{"type": "object"}'),
    **dict.fromkeys(("top_p", "min_p", "typical", "xtc_probability", "xtc_threshold"), ("0.25", 0.25)),
}
"""A typed text and its value, for fields that need other values than 3, 3.5, on or off."""


def typed_for(name: str, default: object) -> tuple[str, Any]:
    if name in TYPED:
        return TYPED[name]
    if isinstance(default, bool):
        return ("off", False) if default else ("on", True)
    return ("3", 3) if isinstance(default, int) else ("3.5", 3.5)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in ("max_tokens", "stops")])
def test_every_setting_can_be_changed_by_its_names_and_put_back(name: str) -> None:
    text, value = typed_for(name, SETTINGS[name].default)
    for key in (name, "--" + name.replace("_", "-"), name.upper()):
        after = adjust(WARM, key, text)
        sentence = changes_in_words(WARM, after)
        assert after == WARM.with_values({name: value}) != WARM
        assert type(after.values[name]) is type(value)
        assert " -> " in sentence and "\n" not in sentence
    assert settings_from_json(json.loads(json.dumps(after.json, allow_nan=False))) == after
    assert adjust(after, name, "default").values[name] == SETTINGS[name].default


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("User:", ("User:",)),
        ('"a b" c', ("a b", "c")),
        (r'"\n\n" \t "\"" \\', ("\n\n", "\t", '"', "\\")),
        ('"', ('"',)),
        (r"\d+", (r"\d+",)),
        *((text, ()) for text in ("none", '""', "default")),
    ],
)
def test_stop_texts_may_be_quoted_and_an_empty_one_clears_them(text: str, stops: tuple[str, ...]) -> None:
    after = adjust(ChatSettings(stops=("x", "y")), "stop", text)
    assert after.stops == stops and settings_from_json(json.loads(json.dumps(after.json))) == after


WRONG = [
    ("tmep", "1", "did you mean temp"),
    ("ctx", "4096", "start again with --load"),
    ("temp", "warm", "temp is a number"),
    ("top-k", "1.5", "whole number"),
    ("top-k", "9" * 5000, "whole number"),
    ("N", "1", "N is 1 (N must be at least 2)"),
    ("mode", "plan", "not 'plan' (did you mean plain?"),
    ("ignore-eos", "maybe", "on or off"),
    ("logit-bias", "x", "15043-1"),
    ("stop", "\ud800", "not UTF-8"),
    *((key, "1", "no setting") for key in ("strict", "ordered", "min-outputs", "c", "rpc")),
    ("", "", "no setting"),
]


@pytest.mark.parametrize(("key", "value", "words"), WRONG)
def test_what_cannot_be_set_is_said_in_one_line(key: str, value: str, words: str) -> None:
    with pytest.raises(LacliError) as caught:
        adjust(DEFAULT, key, value)
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], 'the field "settings" is not a JSON object'),
        ({"temp": "1"}, '"temp" cannot be "1" (give a number)'),
        ({"temp": 10**400}, "temp must be at most"),
        ({"top_p": 7}, "must be at most 1"),
        ({"stops": "x"}, '"stops" cannot be "x"'),
        ({"logit_bias": ["x"]}, '"logit_bias" cannot be ["x"]'),
    ],
)
def test_json_that_is_no_settings_is_said_in_one_line(found: object, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings_from_json(found)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_list_of_settings_has_changed_ones_first_then_all_others_under_headings() -> None:
    shown = all_settings(adjust(ChatSettings(stops=("a text",)), "temp", "0.5")).splitlines()
    assert shown[:2] == ["Changed:", '  stop "a text", temp 0.5'] and shown[2:-1:2] == [
        "Answer:",
        "Drafting:",
        "Sampling:",
    ]
    found = [each.split()[0] for line in shown[1:-1:2] for each in line.split(", ")]
    assert sorted(found) == sorted(map(key_of, SETTINGS.values()))
    assert all_settings(DEFAULT).startswith("Answer:")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_shown_texts_can_be_typed_again(stops: list[str]) -> None:
    assert read(SETTINGS["stops"], show(SETTINGS["stops"], tuple(stops))) == tuple(stops)

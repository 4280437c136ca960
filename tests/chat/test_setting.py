"""A setting of a chat: all its names find it, and what is shown of its value can be typed again."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.chat.setting import SETTINGS, find_setting
from lacli.cli.main import commands


def test_a_setting_is_known_by_every_flag_that_the_command_line_has_for_it() -> None:
    options = {option.name: option for option in commands()["run"].params}
    for field in SETTINGS:
        option = options[{"max_tokens": "predict", "stops": "stop"}.get(field, field)]
        for flag in (*option.opts, *option.secondary_opts):
            assert find_setting(flag).field == field, flag


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ("W w -W window", "window"),
        ("-N ngram", "ngram"),
        ("n -n predict max-tokens", "max_tokens"),
        ("s seed", "seed"),
        ("temperature TEMP", "temp"),
        ("top_k --top-k topk TOPK", "top_k"),
        ("l", "logit_bias"),
        ("j", "json_schema"),
        ("top-n-sigma", "top_nsigma"),
        ("min_p minp", "min_p"),
    ],
)
def test_keys_are_taken_as_users_know_them(keys: str, field: str) -> None:
    for key in keys.split():
        assert find_setting(key).field == field


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_what_is_shown_of_texts_can_be_typed_again(stops: list[str]) -> None:
    shown = SETTINGS["stops"].show(tuple(stops))
    assert SETTINGS["stops"].read(shown) == tuple(stops)


def test_what_is_shown_of_biases_can_be_typed_again() -> None:
    biases = ((3, -math.inf), (4, 0.125))
    assert SETTINGS["logit_bias"].read(SETTINGS["logit_bias"].show(biases)) == biases

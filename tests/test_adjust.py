"""/set: every setting is reached, by all its names, and the sentence says what changed."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from lacli.chat.adjust import (
    Adjusted,
    adjust,
    choices,
    key_and_value,
    settings_by_name,
)
from lacli.chat.keys import (
    ALL,
    KEYS,
    OF_THE_MODEL,
    WITH_THE_MODEL,
    find_key,
)
from lacli.cli.main import app
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.settings import (
    LOADING,
    MODES,
    PLACEMENT,
    PRESETS,
    REPLICAS,
    SOURCES,
    DecodeSettings,
    SourceName,
    decode_settings,
)

WARM = Adjusted(sampling=SamplingSettings(temp=0.7))
"""Mirostat needs a temperature."""

TYPED: dict[str, tuple[str, Any]] = {
    "mode": ("lookup", "lookup"),
    "window_init": ("random", "random"),
    "window_shift": ("refill", "refill"),
    "sources": ("suffix,pool", ("suffix", "pool")),
    "verify": ("rejection", "rejection"),
    "dry_sequence_breaker": (r'"\n" ;', ("\n", ";")),
    "logit_bias": ("15043-inf 7+1.5", ((15043, -math.inf), (7, 1.5))),
    "grammar": ('root ::= "yes" | "no"', 'root ::= "yes" | "no"'),
    "json_schema": ('{"type": "object"}', '{"type": "object"}'),
    "top_p": ("0.25", 0.25),
    "min_p": ("0.25", 0.25),
    "typical": ("0.25", 0.25),
    "xtc_probability": ("0.25", 0.25),
    "xtc_threshold": ("0.25", 0.25),
    "mirostat": ("2", 2),
}
"""What is typed for a field and what it then is, where a number, or off for what is on, will not do."""


def typed_for(name: str, default: object) -> tuple[str, Any]:
    if name in TYPED:
        return TYPED[name]
    if isinstance(default, bool):
        return ("off", False) if default else ("on", True)
    return ("3", 3) if isinstance(default, int) else ("3.5", 3.5)


@pytest.mark.parametrize("field", fields(SamplingSettings), ids=lambda field: field.name)
def test_every_sampling_setting_can_be_changed_and_put_back(field: Any) -> None:
    text, value = typed_for(field.name, field.default)
    for key in (field.name, "--" + field.name.replace("_", "-"), field.name.upper()):
        after, sentence = adjust(WARM, key, text)
        assert getattr(after.sampling, field.name) == value
        assert type(getattr(after.sampling, field.name)) is type(value)
        assert replace(after, sampling=replace(after.sampling, **{field.name: getattr(WARM.sampling, field.name)})) == (
            WARM
        ), "nothing else changed"
        assert " -> " in sentence and "\n" not in sentence
    # Back to its default, which a temperature of 0 is too.
    assert getattr(adjust(after, field.name, "default")[0].sampling, field.name) == field.default


@pytest.mark.parametrize(
    "field",
    [field for field in fields(DecodeSettings) if field.name not in (*WITH_THE_MODEL, *OF_THE_MODEL)],
    ids=lambda field: field.name,
)
def test_every_setting_of_the_modes_can_be_changed_and_put_back(field: Any) -> None:
    text, value = typed_for(field.name, field.default)
    after, sentence = adjust(Adjusted(), field.name, text)
    assert after == replace(Adjusted(), decoding=replace(DecodeSettings(), **{field.name: value}))
    assert " -> " in sentence
    assert adjust(after, field.name, "default")[0] == Adjusted()


def test_a_setting_is_known_by_every_flag_that_the_command_line_has_for_it() -> None:
    options = {option.name: option for option in get_command(app).commands["run"].params}  # type: ignore[attr-defined]
    renamed = {"limit": "predict", "stops": "stop"}
    for field in ALL:
        option = options[renamed.get(field, field)]
        for flag in (*option.opts, *option.secondary_opts):
            assert find_key(flag).field == field, flag


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("W", "window"),
        ("w", "window"),
        ("-N", "ngram"),
        ("n", "limit"),
        ("-n", "limit"),
        ("predict", "limit"),
        ("max-tokens", "limit"),
        ("s", "seed"),
        ("temperature", "temp"),
        ("TEMP", "temp"),
        ("top_k", "top_k"),
        ("--top-k", "top_k"),
        ("l", "logit_bias"),
        ("j", "json_schema"),
        ("top-n-sigma", "top_nsigma"),
    ],
)
def test_keys_are_taken_as_users_know_them(key: str, field: str) -> None:
    assert find_key(key).field == field


def test_the_sentence_says_what_changed_from_what_to_what() -> None:
    assert adjust(Adjusted(), "temp", "0.8")[1] == "temp: 0 -> 0.8"
    assert adjust(Adjusted(), "-W", "8")[1] == "W: 15 -> 8"
    assert adjust(Adjusted(), "temp", "0")[1] == "temp is 0 already"
    after, sentence = adjust(Adjusted(), "preset", "code")
    assert sentence == "W: 15 -> 8, N: 5 -> 6, jacobi-iterations: 16 -> 12"
    assert after.decoding == decode_settings("code", mode="auto"), "the mode is as it was"


def test_a_setting_that_does_nothing_here_is_called_so() -> None:
    assert "top-k has no effect at temperature 0" in adjust(Adjusted(), "top-k", "3")[1]
    assert "no effect" not in adjust(WARM, "top-k", "3")[1]
    warm = adjust(adjust(WARM, "top-k", "3")[0], "min-p", "0.5")[0]
    assert "top-k and min-p have no effect" in adjust(warm, "temp", "0")[1]
    lookup = adjust(Adjusted(), "mode", "lookup")[0]
    assert "W has no effect in mode lookup, but in jacobi or lookahead or auto" in adjust(lookup, "W", "3")[1]
    assert "no effect" not in adjust(lookup, "lookup-draft", "3")[1]


def test_what_only_mode_auto_looks_at_has_no_effect_elsewhere() -> None:
    auto, ahead = Adjusted(), adjust(Adjusted(), "mode", "lookahead")[0]
    for key, value in (("sources", "pool"), ("auto-rows", "9")):
        assert f"{key} has no effect in mode lookahead, but in auto" in adjust(ahead, key, value)[1]
        assert "no effect" not in adjust(auto, key, value)[1]
    for key, value in (("lookup-draft", "3"), ("pool-text", "off")):
        assert "no effect in mode auto" in adjust(auto, key, value)[1]


@pytest.mark.parametrize(
    ("text", "sources"),
    [("suffix, pool", ("suffix", "pool")), ("POOL pool", ("pool",)), ("none", ()), ("default", SOURCES)],
)
def test_sources_are_a_list_that_is_shown_as_it_can_be_typed(text: str, sources: tuple[SourceName, ...]) -> None:
    few = Adjusted(DecodeSettings(sources=("window",)))
    after, sentence = adjust(few, "sources", text)
    assert after.decoding.sources == sources
    assert sentence.startswith(f"sources: window -> {' '.join(sources) or 'none'}")


SWITCHED = {True: ("on", "TRUE", "yes", "1", ""), False: ("off", "false", "No", "0")}


@pytest.mark.parametrize(("text", "value"), [(text, value) for value, texts in SWITCHED.items() for text in texts])
def test_switches_are_taken_in_many_words(text: str, value: bool) -> None:
    assert adjust(Adjusted(), "ignore-eos", text)[0].sampling.ignore_eos is value
    assert adjust(Adjusted(), "no-pool-prompt", text)[0].decoding.pool_prompt is not value


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("temp 0.5", ("temp", "0.5")),
        ("temp=0.5", ("temp", "0.5")),
        ("temp = 0.5", ("temp", "0.5")),
        ("temp= 0.5", ("temp", "0.5")),
        ("temp", ("temp", "")),
        ("temp=", ("temp", "")),
        ("stop =", ("stop", "=")),
        ("stop ===", ("stop", "===")),
        ("stop a=b", ("stop", "a=b")),
        ('stop="a b"\n"c"', ("stop", '"a b"\n"c"')),
        ("grammar root ::= x", ("grammar", "root ::= x")),
        ("=5", ("=5", "")),
    ],
)
def test_a_key_and_its_value_have_a_space_or_an_equals_sign_between_them(argument: str, parts: tuple[str, str]) -> None:
    assert key_and_value(argument) == parts


def test_a_name_is_known_without_its_dashes() -> None:
    for key in ALL.values():
        squeezed = key.name.replace("-", "")
        if len(squeezed) > 1:
            assert find_key(squeezed) == find_key(squeezed.upper()) == find_key(key.name) == key
    assert find_key("min_p") == find_key("minp") == ALL["min_p"]
    with pytest.raises(UsageError, match="did you mean no-pool-prompt"):
        adjust(Adjusted(), "nopoolprompt", "")


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("User:", ("User:",)),
        ('"a b" c', ("a b", "c")),
        (r'"\n\n" \t "\"" \\', ("\n\n", "\t", '"', "\\")),
        (r"'a\n' 'b \"'", ("a\\n", 'b \\"')),
        ('"', ('"',)),
        ("none", ()),
        ('""', ()),
        ("''", ()),
        ("default", ()),
    ],
)
def test_stop_texts_may_be_quoted_and_an_empty_one_clears_them(text: str, stops: tuple[str, ...]) -> None:
    assert adjust(Adjusted(stops=("x", "y")), "stop", text)[0].stops == stops


def test_what_is_shown_of_texts_and_biases_can_be_typed_again() -> None:
    now = Adjusted(stops=("\n", 'say "hi"', "a\\b"))
    now = replace(now, sampling=SamplingSettings(logit_bias=((3, -math.inf), (4, 0.125))))
    shown = {name: value for _, name, value, _ in settings_by_name(now)}
    assert adjust(Adjusted(), "stop", shown["stop"])[0].stops == now.stops
    assert adjust(Adjusted(), "logit-bias", shown["logit-bias"])[0].sampling.logit_bias == now.sampling.logit_bias


def test_a_grammar_and_a_schema_take_each_others_place(tmp_path: Path) -> None:
    (tmp_path / "g.gbnf").write_text("root ::= [a]\n")
    after, _ = adjust(Adjusted(), "json-schema", "'{}'")
    assert after.sampling.json_schema == "{}"
    after, sentence = adjust(after, "grammar-file", str(tmp_path / "g.gbnf"))
    assert (after.sampling.grammar, after.sampling.json_schema) == ("root ::= [a]", "")
    assert "json-schema: {} -> none" in sentence
    after, _ = adjust(after, "jf", str(tmp_path / "g.gbnf"))
    assert (after.sampling.grammar, after.sampling.json_schema) == ("", "root ::= [a]")
    assert adjust(after, "json-schema", "none")[0] == Adjusted()


def test_default_resets_all_but_what_was_loaded_with_the_model() -> None:
    strict = DecodeSettings(mode="plain", window=3, strict=True, ordered=True, least_outputs=2)
    now = Adjusted(strict, SamplingSettings(temp=1.0, seed=3), 7, ("x",))
    after, sentence = adjust(now, "default", "")
    assert after == Adjusted(DecodeSettings(strict=True, ordered=True, least_outputs=2))
    for name in ("mode", "W", "temp", "seed", "predict", "stop"):
        assert f"{name}: " in sentence
    assert adjust(after, "default", "") == (after, "everything is at its default already")


WRONG = [
    ("tmep", "1", "did you mean temp"),
    ("moed", "plain", "did you mean mode"),
    ("zzz", "1", "/set lists them"),
    ("temp", "warm", "temp is a number"),
    ("temp", "", "needs a value"),
    ("temp", "nan", "must be from 0"),
    ("temp", "-1", "must be from 0"),
    ("top-k", "1.5", "whole number"),
    ("top-k", "9" * 5000, "whole number"),
    ("W", "300", "256"),
    ("N", "1", "at least 2"),
    ("n", "-2", "-n must be at least -1"),
    ("seed", str(2**32), "--seed"),
    ("mode", "plan", "did you mean plain"),
    ("preset", "9b", "no preset"),
    ("preset", "", "preset needs a name"),
    ("pool-text", "maybe", "on or off"),
    ("sources", "sufix", "did you mean suffix"),
    ("sources", "suffix,magic", "there is no source 'magic'"),
    ("sources", "magic", "some of suffix, recycling, pool, window, store, or none"),
    ("auto-rows", "0", "--auto-rows must be at least 1"),
    ("back", "3", "no setting"),
    ("logit-bias", "x", "15043-1"),
    ("logit-bias", "3+inf", "-inf to forbid"),
    ("stop", '"open', "not closed"),
    ("stop", 'a ""', "empty text"),
    ("stop", "", "stop needs a value"),
    ("stop", "\ud800", "not UTF-8"),
    ("grammar-file", "/nowhere/at/all", "cannot read"),
    ("grammar-file", "", "needs a file"),
    ("mirostat", "1", "--temp 0"),
    ("system", "hello", "/system TEXT"),
    ("strict", "on", "--strict"),
    ("ordered", "on", "--strict"),
    ("least-outputs", "2", "--strict"),
    ("", "", "no setting"),
]


@pytest.mark.parametrize(("key", "value", "words"), WRONG)
def test_what_cannot_be_set_is_said_in_one_line(key: str, value: str, words: str) -> None:
    with pytest.raises(LacliError) as caught:
        adjust(Adjusted(), key, value)
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize("flags", [*LOADING.values(), *PLACEMENT.values(), *REPLICAS.values()])
def test_what_belongs_to_the_loading_names_the_flag_to_start_again_with(flags: tuple[str, ...]) -> None:
    for flag in flags:
        with pytest.raises(UsageError, match=f"start again with {flags[0]}"):
            adjust(Adjusted(), flag, "1")


def test_all_settings_are_listed_with_what_is_changed() -> None:
    listed = settings_by_name(adjust(Adjusted(), "temp", "0.5")[0])
    assert {name for _, name, _, _ in listed} == {key.name for key in ALL.values()}
    assert [(group, name, value) for group, name, value, default in listed if not default] == [
        ("sampling", "temp", "0.5")
    ]


def test_every_key_that_is_offered_is_taken_and_choices_are_known() -> None:
    assert {"default", "preset", "W", "temp", "stop", "predict", "grammar-file"} <= set(KEYS)
    assert len(KEYS) == len(set(KEYS))
    assert choices("mode") == MODES == choices("--mode")
    assert choices("sources") == SOURCES
    assert choices("preset") == tuple(PRESETS)
    assert choices("pool-text") == ("on", "off")
    assert choices("temp") == choices("zzz") == ()
    for key in ALL.values():
        for choice in choices(key.name):
            adjust(WARM, key.name, choice)

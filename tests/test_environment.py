"""The environment's defaults of options: every variable does what its flag does, ours win, flags win over all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main

from lacli.cli.environment import (
    LLAMA_CPP,
    known_variables,
    setting,
    variables,
)
from lacli.cli.main import app
from lacli.cli.run import Question
from lacli.settings import DecodeSettings
from tests.program import Done, call

COMMANDS: dict[str, Any] = getattr(typer.main.get_command(app), "commands")  # noqa: B009  # Typer's own class has it
EVERY = [
    (name, parameter)
    for name, command in COMMANDS.items()
    for parameter in command.params
    if isinstance(parameter.envvar, list)
]
PAIRS = list({(str(each.opts), each.metavar, str(each.default)): (name, each) for name, each in EVERY}.values())
"""One command for every option: those that commands share are one declaration."""

IDS = [f"{name} {parameter.opts[0]}" for name, parameter in PAIRS]
SHARED = [(name, parameter) for name, parameter in PAIRS if parameter.envvar[-1].startswith("LLAMA_ARG_")]

SAMPLES = {
    "--chat-template-kwargs": ('{"a": 1}', '{"a": 2}'),
    "--flash-attn": ("on", "off"),
    "--cache-type-k": ("q8_0", "q4_0"),
    "--cache-type-v": ("bf16", "f32"),
    "--preset": ("code", "13b"),
    "--mode": ("lookup", "jacobi"),
    "--sources": ("pool", "suffix,window"),
    "--window-init": ("random", "prompt"),
    "--window-shift": ("refill", "once"),
    "--verify": ("rejection", "match"),
    "--color": ("on", "off"),
    "--dry-base": ("1.25", "1.5"),
    "--mirostat": ("2", "1"),
    "--gpu-layers": ("3", "all"),
    "--device": ("none", "CPU"),
    "--split-mode": ("row", "none"),
    "--replicas": ("3", "CUDA0,CUDA1"),
    "--rpc": ("127.0.0.1:50052", "10.0.0.1:50052,10.0.0.2:50052"),
}
"""Values of options that are neither numbers of any size nor switches: two that differ."""

ONE_RUN = {"--prompt", "--file", "--system-prompt-file", "--raw", "--stop", "--json"}
"""What belongs to one question only."""


def long_name(parameter: Any) -> str:
    return next(str(name) for name in parameter.opts if name.startswith("--"))


def samples(parameter: Any) -> tuple[str, str]:
    """Two values of an option, the first one not its default."""
    if parameter.is_flag:
        return ("0", "1") if parameter.default else ("1", "0")
    by_type = ("0.25", "0.5") if isinstance(parameter.default, float) else ("11", "12")
    return SAMPLES.get(long_name(parameter), by_type)


def as_flag(parameter: Any, value: str) -> list[str]:
    if not parameter.is_flag:
        return [f"{long_name(parameter)}={value}"]
    return [long_name(parameter) if value == "1" else parameter.secondary_opts[0]]


def parsed(command: str, parameter: Any, arguments: list[str], env: Mapping[str, str] = {}) -> Any:  # noqa: B006
    """What an option is after parsing; every other option is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        for name in known_variables(COMMANDS):
            patch.delenv(name, raising=False)
        for name, value in env.items():
            patch.setenv(name, value)
        needed = ["x" for each in COMMANDS[command].params if each.required]
        return COMMANDS[command].make_context(command, [*needed, *arguments]).params[parameter.name]


@pytest.mark.parametrize(("command", "parameter"), PAIRS, ids=IDS)
def test_a_variable_sets_what_its_flag_sets(command: str, parameter: Any) -> None:
    value, other = samples(parameter)
    by_flag = parsed(command, parameter, as_flag(parameter, value))
    assert by_flag != parsed(command, parameter, [])
    for variable in parameter.envvar:
        assert parsed(command, parameter, [], {variable: value}) == by_flag
    if not parameter.is_flag or parameter.secondary_opts:
        both = {variable: value for variable in parameter.envvar}
        by_other = parsed(command, parameter, as_flag(parameter, other))
        assert parsed(command, parameter, as_flag(parameter, other), both) == by_other != by_flag


@pytest.mark.parametrize(("command", "parameter"), SHARED, ids=[f"{name} {each.opts[0]}" for name, each in SHARED])
def test_our_variable_wins_over_llama_cpps_unless_it_is_empty(command: str, parameter: Any) -> None:
    *_, ours, theirs = parameter.envvar
    first, second = samples(parameter)
    expected = {value: parsed(command, parameter, [], {ours: value}) for value in (first, second)}
    assert parsed(command, parameter, [], {ours: first, theirs: second}) == expected[first] != expected[second]
    assert parsed(command, parameter, [], {ours: "", theirs: second}) == expected[second]


THEIR_WORDS = [
    ("LLAMA_ARG_THREADS", "-1", "0"),
    *(("LLAMA_ARG_FLASH_ATTN", word, "on") for word in ("on", "enabled", "true", "1")),
    *(("LLAMA_ARG_FLASH_ATTN", word, "off") for word in ("off", "disabled", "false", "0")),
    *(("LLAMA_ARG_FLASH_ATTN", word, "auto") for word in ("auto", "-1")),
    *(("LLAMA_ARG_OFFLINE", word, "1") for word in ("on", "enabled", "true")),
    *(("LLAMA_ARG_OFFLINE", word, "0") for word in ("off", "disabled", "false")),
    ("LLAMA_ARG_CONTEXT_SHIFT", "enabled", "1"),
    ("LLAMA_ARG_CONTEXT_SHIFT", "disabled", "0"),
]
"""What llama.cpp's variables may say, and what our options call it. Source: common/arg.cpp."""


@pytest.mark.parametrize(("variable", "word", "ours"), THEIR_WORDS)
def test_a_variable_of_llama_cpps_is_read_in_its_words(variable: str, word: str, ours: str) -> None:
    found = [each for each in COMMANDS["chat"].params if variable in (each.envvar or ())]
    expected = parsed("chat", found[0], [], {variable.replace("LLAMA_ARG", "LACLI"): ours})
    assert parsed("chat", found[0], [], {variable: word}) == expected


@pytest.mark.parametrize("command", ["run", "bench", "check", "cost"])
def test_every_option_of_the_model_and_of_sampling_has_a_variable_and_no_question_has_one(command: str) -> None:
    for parameter in COMMANDS[command].params:
        panel = getattr(parameter, "rich_help_panel", None)
        texts = {"--grammar", "--grammar-file", "--json-schema", "--json-schema-file", "--logit-bias"}
        if panel in ("Model", "Sampling") and not texts.union({"--dry-sequence-breaker"}).intersection(parameter.opts):
            assert parameter.envvar, parameter.opts
        if ONE_RUN.union(texts).intersection(parameter.opts):
            assert not parameter.envvar, parameter.opts


def test_a_variable_means_the_same_option_in_every_command() -> None:
    found: dict[str, str] = {}
    for _, parameter in EVERY:
        for variable in parameter.envvar:
            assert found.setdefault(variable, long_name(parameter)) == long_name(parameter)


def test_names_are_made_from_the_long_name_or_taken_from_llama_cpp() -> None:
    assert variables("-W", "--window") == ["LACLI_WINDOW"]
    assert variables("--pool-text/--no-pool-text") == ["LACLI_POOL_TEXT"]
    assert variables("--temp", "--temperature") == ["LACLI_TEMP", "LACLI_TEMPERATURE", "LLAMA_ARG_TEMPERATURE"]
    layers = ["LACLI_GPU_LAYERS", "LACLI_N_GPU_LAYERS", "LLAMA_ARG_N_GPU_LAYERS"]
    assert variables("-ngl", "--gpu-layers", "--n-gpu-layers") == layers
    assert variables("-b", "--batch-size") == ["LACLI_BATCH_SIZE", "LACLI_BATCH", "LLAMA_ARG_BATCH"]
    assert all(flag.startswith("--") for flag in LLAMA_CPP)


@pytest.mark.parametrize(("command", "parameter"), EVERY, ids=[f"{name} {each.opts[0]}" for name, each in EVERY])
def test_every_long_spelling_makes_a_variable(command: str, parameter: Any) -> None:
    longs = [name for name in parameter.opts if name.startswith("--")]
    assert {"LACLI_" + name[2:].replace("-", "_").upper() for name in longs} <= set(parameter.envvar)


def test_a_system_prompt_of_the_environment_makes_room_for_the_flags_that_go_without_one(
    asked: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    (tmp_path / "system").write_text("from the file")
    given: list[tuple[str, ...]] = [(), ("-sys", "from the flag"), ("-sysf", str(tmp_path / "system")), ("--raw",)]
    for flags in given:
        assert call("run", "-p", "hi", *flags, env={"LACLI_SYSTEM_PROMPT": "from outside"}).code == 0
    systems = [next(each for each in one if isinstance(each, Question)).system for one in asked]
    assert systems == ["from outside", "from the flag", "from the file", ""]


def test_help_shows_llama_cpps_names_and_the_rule_for_ours() -> None:
    assert "LLAMA_ARG" not in setting("--window", help="Columns.").help
    assert setting("--top-k", help="Keep k.").help == "Keep k. (LLAMA_ARG_TOP_K)"
    out = call("run", "--help", env={"COLUMNS": "200"}).out
    assert "(LLAMA_ARG_TOP_K)" in out and "env var" not in out
    assert re.search(r"LACLI_WINDOW=10 for --window", " ".join(out.split()))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What `lacli run` would have been called with, instead of an answer."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("lacli.cli.run.ask", lambda *arguments: calls.append(arguments))
    return calls


UNSEEN = {"--offline", "--quiet", "--color", "--show-accepted", "--history"}
"""What a run has used up before it asks, or what is for the chat that it becomes without a prompt."""

RUN = [parameter for name, parameter in EVERY if name == "run" and long_name(parameter) not in UNSEEN]


@pytest.mark.parametrize("parameter", RUN, ids=[parameter.opts[0] for parameter in RUN])
def test_the_settings_of_a_run_are_those_of_the_flag(parameter: Any, asked: list[tuple[Any, ...]]) -> None:
    value, _ = samples(parameter)
    # Mirostat draws nothing at temperature 0, and one device of several is chosen where the model is not split.
    base = ["run", "-p", "hi", *([] if "--temp" in parameter.opts else ["--temp", "0.7"])]
    base += ["-sm", "none"] if "--main-gpu" in parameter.opts else []
    with_repack = {"LACLI_NO_REPACK": "0"}  # tests of a build that fails with it go without
    for arguments, env in (([], with_repack), (as_flag(parameter, value), {}), ([], {parameter.envvar[0]: value})):
        assert call(*base, *arguments, env=env).code == 0
    plain, flagged, from_environment = ([each for each in one if _is_settings(each)] for one in asked)
    assert flagged == from_environment != plain


def _is_settings(argument: object) -> bool:
    names = ("Question", "ModelSettings", "DecodeSettings", "SamplingSettings", "Output", "ReplicaSettings")
    return isinstance(argument, Path) or type(argument).__name__ in names


def test_a_window_of_the_environment_counts_as_chosen_beside_a_preset(asked: list[tuple[Any, ...]]) -> None:
    assert call("run", "-p", "hi", "--preset", "code", env={"LACLI_WINDOW": "3"}).code == 0
    decoding = next(each for each in asked[0] if isinstance(each, DecodeSettings))
    assert (decoding.window, decoding.ngram) == (3, 6)


def refused(*arguments: str, **env: str) -> str:
    done: Done = call(*arguments, env=env)
    assert (done.code, len(done.err.splitlines())) == (2, 1), done.err
    return done.err


@pytest.mark.parametrize(
    ("variable", "value", "flag"),
    [
        ("LACLI_THREADS", "many", "-t"),
        ("LLAMA_ARG_THREADS", "many", "-t"),
        ("LACLI_WINDOW", "-3", "-W"),
        ("LACLI_WINDOW", "300", "-W"),
        ("LACLI_TOP_K", "-9", "--top-k"),
        ("LACLI_STRICT", "perhaps", "--strict"),
        ("LACLI_MODE", "jacoby", "--mode"),
        ("LACLI_N_GPU_LAYERS", "most", "-ngl"),
        ("LACLI_CACHE_TYPE_K", "q9", "-ctk"),
        ("LACLI_COLOR", "blue", "--color"),
        ("LLAMA_ARG_FLASH_ATTN", "2", "-fa"),
        ("LLAMA_ARG_OFFLINE", "perhaps", "--offline"),
        ("LLAMA_ARG_CHAT_TEMPLATE", "nonesuch", "--chat-template"),
    ],
)
def test_an_error_names_the_variable_that_the_value_comes_from(variable: str, value: str, flag: str) -> None:
    line = refused("run", "-q", "-p", "hi", **{"LACLI_THREADS": "", variable: value})
    assert f"{variable} sets" in line and flag in line


def test_a_value_of_the_environment_that_is_none_is_shown_with_what_is_wanted() -> None:
    assert "-W is 'foo', which is no whole number (LACLI_WINDOW sets" in refused("run", LACLI_WINDOW="foo")
    assert "--temp is 'hot', which is no number (LACLI_TEMP sets" in refused("run", LACLI_TEMP="hot")
    assert "--strict is 'maybe', which is neither yes nor no (LACLI_STRICT sets" in refused("run", LACLI_STRICT="maybe")


def test_raw_wins_over_a_template_of_the_environment_and_not_over_one_of_the_command_line() -> None:
    for name in ("LACLI_CHAT_TEMPLATE", "LLAMA_ARG_CHAT_TEMPLATE"):
        assert call("run", "-q", "-n", "1", "-p", "hi", "--raw", env={name: "nonesuch"}).code == 0
    flags = ("--raw", "--chat-template", "chatml")
    assert "drop one" in refused("run", "-p", "hi", *flags, LACLI_CHAT_TEMPLATE="nonesuch")


def test_every_command_names_the_variable() -> None:
    assert "LACLI_WINDOW sets -W" in refused("mask", LACLI_WINDOW="-3")
    assert "LACLI_WINDOW sets -W" in refused("bench", "--ablation", LACLI_WINDOW="3")
    assert "LACLI_BATCH sets -b" in refused("cost", LACLI_BATCH="-3")
    assert "LACLI_NGRAM sets -N" in refused("check", LACLI_NGRAM="1")


def test_a_flags_own_error_names_no_variable() -> None:
    assert "LACLI" not in refused("run", "-p", "hi", "-W", "-3", LACLI_WINDOW="-4")
    assert "LACLI" not in refused("run", "-p", "hi", "-N", "1", LACLI_WINDOW="5")


def test_what_is_known_has_a_flag_and_the_switch_for_tracebacks() -> None:
    known = known_variables(COMMANDS)
    assert known["LACLI_WINDOW"] == "-W" and known["LACLI_DEBUG"] == ""

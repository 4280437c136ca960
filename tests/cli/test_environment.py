"""The environment's defaults of options: every variable does what its flag does, ours win, flags win over all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest

from lacli.cli.main import commands
from lacli.cli.prompt_options import PromptOptions
from tests.program import call

T = TypeVar("T")

COMMANDS = commands()
EVERY = [
    (name, parameter)
    for name, command in COMMANDS.items()
    for parameter in command.params
    if isinstance(parameter.envvar, list)
]
PAIRS = list({(str(each.opts), each.metavar, str(each.default)): (name, each) for name, each in EVERY}.values())
"""One command for every option: those that commands share are one declaration."""

SAMPLES = {
    "--chat-template-kwargs": ('{"a": 1}', '{"a": 2}'),
    "--engine": ("ik", "llama"),
    "--flash-attn": ("on", "off"),
    "--stats": ("full", "short"),
    "--cache-type-k": ("q8_0", "q4_0"),
    "--cache-type-v": ("bf16", "f32"),
    "--preset": ("code", "13b"),
    "--mode": ("lookup", "jacobi"),
    "--sources": ("suffix", "suffix,recycling"),
    "--verify": ("rejection", "match"),
    "--color": ("on", "off"),
    "--dry-base": ("1.25", "1.5"),
    "--gpu-layers": ("3", "all"),
    "--device": ("none", "RPC0"),
    "--split-mode": ("row", "none"),
    "--replicas": ("3", "2"),
    "--rpc": ("127.0.0.1:50052", "10.0.0.1:50052,10.0.0.2:50052"),
}
"""Values of options that are neither numbers of any size nor switches: two that differ."""

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("LACLI_", "LLAMA_"))}
"""The environment without defaults of options."""


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
    with patch.dict(os.environ, {**CLEAN, **env}, clear=True):
        needed = ["x" for each in COMMANDS[command].params if each.required]
        return COMMANDS[command].make_context(command, [*needed, *arguments]).params[parameter.name]


@cache
def settings_of_run(*arguments: str, **env: str) -> tuple[Any, ...]:
    """The settings that `lacli run` hands on, instead of an answer."""
    with patch("lacli.cli.run.ask") as ask:
        assert call("run", "-p", "hi", *arguments, env=env).code == 0
    question, loading, output, _ = ask.call_args.args
    return question, output, *vars(loading).values()


def found(kind: type[T], settings: tuple[Any, ...]) -> T:
    return next(each for each in settings if isinstance(each, kind))


@pytest.mark.parametrize(("command", "parameter"), PAIRS, ids=[f"{name} {each.opts[0]}" for name, each in PAIRS])
def test_every_variable_sets_what_its_flag_sets_and_the_first_that_is_not_empty_wins(
    command: str, parameter: Any
) -> None:
    value, other = samples(parameter)
    by_flag, by_other = (parsed(command, parameter, [], {parameter.envvar[0]: each}) for each in (value, other))
    assert by_flag == parsed(command, parameter, as_flag(parameter, value)) != parsed(command, parameter, [])
    for variable in parameter.envvar:
        assert parsed(command, parameter, [], {variable: value}) == by_flag
    if not parameter.is_flag or parameter.secondary_opts:
        both = dict.fromkeys(parameter.envvar, value)
        assert parsed(command, parameter, as_flag(parameter, other), both) == by_other != by_flag
    ours, theirs = ["", *parameter.envvar][-2:]
    if theirs.startswith("LLAMA_ARG_"):
        assert parsed(command, parameter, [], {ours: value, theirs: other}) == by_flag != by_other
        assert parsed(command, parameter, [], {ours: "", theirs: other}) == by_other


LEFT_OUT = [
    ([], "stats", ""),
    (["--stats"], "stats", "short"),
    (["--stats", "m.gguf"], "stats", "short"),
    (["--stats", "full"], "stats", "full"),
    (["--stats=full", "m.gguf"], "stats", "full"),
    (["-fa", "off", "m.gguf"], "flash_attention", "off"),
    (["-fa", "-1"], "flash_attention", "auto"),
]
"""Arguments of `lacli run`, a parameter and its value."""


@pytest.mark.parametrize(("arguments", "name", "value"), LEFT_OUT, ids=str)
def test_a_value_that_may_be_left_out_is_the_next_word_only_where_that_can_be_one(
    arguments: list[str], name: str, value: str
) -> None:
    with patch.dict(os.environ, CLEAN, clear=True):
        found = COMMANDS["run"].make_context("run", [*arguments]).params
    assert found[name] == value
    assert ("m.gguf" in found.values()) == ("m.gguf" in arguments)


THEIR_WORDS = {
    "FLASH_ATTN": {
        **dict.fromkeys(("on", "enabled", "true", "1"), "on"),
        **dict.fromkeys(("off", "disabled", "false", "0"), "off"),
        **dict.fromkeys(("auto", "-1"), "auto"),
    },
    "OFFLINE": {**dict.fromkeys(("on", "enabled", "true"), "1"), **dict.fromkeys(("off", "disabled", "false"), "0")},
}
"""What llama.cpp's variables may say, and what our options call it. Source: common/arg.cpp."""


@pytest.mark.parametrize("name", THEIR_WORDS)
def test_a_variable_of_llama_cpps_is_read_in_its_words(name: str) -> None:
    theirs = f"LLAMA_ARG_{name}"
    command, parameter = next(each for each in EVERY if theirs in each[1].envvar)
    for word, ours in THEIR_WORDS[name].items():
        expected = parsed(command, parameter, [], {f"LACLI_{name}": ours})
        assert parsed(command, parameter, [], {theirs: word}) == expected, word


def test_a_system_prompt_of_the_environment_makes_room_for_the_flags_that_go_without_one(tmp_path: Path) -> None:
    (tmp_path / "system").write_text("from the file")
    given = [(), ("-sys", "from the flag"), ("-sysf", str(tmp_path / "system")), ("--raw",)]
    runs = [settings_of_run(*flags, LACLI_SYSTEM_PROMPT="from outside") for flags in given]
    assert [found(PromptOptions, each).system for each in runs] == [
        "from outside",
        "from the flag",
        "from the file",
        "",
    ]

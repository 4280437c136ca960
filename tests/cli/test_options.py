"""The shared options: typed lists, a variable for every setting, and flags that override variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import pytest
import typer.main

from lacli.cli.main import program
from lacli.cli.options import asked, engine_group, with_groups
from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings
from tests.program import call

COMMANDS: dict[str, Any] = vars(typer.main.get_command(program()))["commands"]
EVERY = [
    (name, parameter)
    for name, command in COMMANDS.items()
    for parameter in command.params
    if isinstance(parameter.envvar, list)
]
PAIRS = list({(str(each.opts), each.metavar, str(each.default)): (name, each) for name, each in EVERY}.values())
"""Every option, with one of its commands; commands share the declaration of an option."""

SAMPLES = {
    **dict.fromkeys(("--top-p", "--min-p", "--typical", "--xtc-probability", "--xtc-threshold"), ("0.5", "0.25")),
    "--chat-template-kwargs": ('{"a": 1}', '{"a": 2}'),
    "--engine": ("ik", "llama"),
    "--flash-attn": ("on", "off"),
    "--stats": ("full", "short"),
    "--cache-type-k": ("q8_0", "q4_0"),
    "--cache-type-v": ("bf16", "f32"),
    "--preset": ("code", "13b"),
    "--mode": ("lookup", "jacobi"),
    "--verify": ("rejection", "match"),
    "--color": ("on", "off"),
    "--gpu-layers": ("3", "all"),
    "--device": ("none", "RPC0"),
    "--split-mode": ("row", "none"),
    "--tensor-split": ("3,1", "1,3"),
    "--replicas": ("3", "2"),
    "--rpc": ("127.0.0.1:50052", "10.0.0.1:50052,10.0.0.2:50052"),
}
"""Two different values of each option that is neither a switch nor a number of any size."""

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("LACLI_", "LLAMA_"))}
"""The environment without variables that set options."""

Own = Annotated[int, typer.Option("-x")]


def parsed(command: str, parameter: Any, arguments: list[str], env: Mapping[str, str] = {}) -> Any:  # noqa: B006
    """Return the value of one option after a command line and an environment are parsed."""
    with patch.dict(os.environ, {**CLEAN, **env}, clear=True):
        return COMMANDS[command].make_context(command, [*arguments]).params[parameter.name]


@pytest.mark.parametrize(("command", "parameter"), PAIRS, ids=[f"{name} {each.opts[0]}" for name, each in PAIRS])
def test_every_variable_sets_what_its_flag_sets_and_the_flag_wins(command: str, parameter: Any) -> None:
    flag = next(name for name in parameter.opts if name.startswith("--"))
    if parameter.is_flag:
        off = parameter.secondary_opts[:1]
        (value, by_flag), (other, by_other) = [("1", [flag]), ("0", off)]
        if parameter.default:
            (value, by_flag), (other, by_other) = (other, by_other), (value, by_flag)
    else:
        value, other = SAMPLES.get(flag, ("11", "12"))
        by_flag, by_other = [f"{flag}={value}"], [f"{flag}={other}"]
    wanted = parsed(command, parameter, by_flag)
    for variable in parameter.envvar:
        assert parsed(command, parameter, [], {variable: value}) == wanted
        if by_other:
            assert parsed(command, parameter, by_other, {variable: value}) == parsed(command, parameter, by_other)
    assert parsed(command, parameter, [], {parameter.envvar[0]: "", parameter.envvar[-1]: value}) == wanted


@pytest.mark.parametrize(
    ("arguments", "stats"),
    [([], ""), (["--stats"], "short"), (["--stats", "m.gguf"], "short"), (["--stats", "full", "m.gguf"], "full")],
    ids=str,
)
def test_the_value_of_stats_may_be_left_out(arguments: list[str], stats: str) -> None:
    with patch.dict(os.environ, CLEAN, clear=True):
        found = COMMANDS["run"].make_context("run", [*arguments]).params
    assert found["stats"] == stats and ("m.gguf" in found.values()) == ("m.gguf" in arguments)


def typed(*arguments: str) -> tuple[ModelSettings, int]:
    """Parse arguments of a command with the engine's group; return the group's settings and the command's option."""
    got: list[tuple[ModelSettings, int]] = []

    @with_groups(model_settings=engine_group)
    def command(*, model_settings: ModelSettings, own: Own = 1) -> None:
        got.append((model_settings, own))

    app = typer.Typer()
    app.command()(command)
    program: Any = typer.main.get_command(app)
    program(list(arguments), standalone_mode=False)
    return got[0]


SPLIT = {"devices": ("CUDA1", "CUDA0"), "split_mode": "row", "tensor_split": (3.0, 1.0)}


@pytest.mark.parametrize(
    ("flags", "placed"),
    [
        ("-x 2 -c 3", {"context": 3}),
        ("-dev CUDA1,CUDA0 -sm row -ts 3,1", SPLIT),
        ("-sm none -mg 1", {"split_mode": "none", "main_gpu": 1}),
        ("--rpc Box,lan:1 --replicas 3", {"rpc": ("box:50052", "lan:1"), "replicas": 3}),
        *((f"--device {word}", {"devices": ("CPU",)}) for word in ("none", "CPU", "off")),
    ],
)
def test_the_flags_of_devices_are_llama_cpps(flags: str, placed: dict[str, Any]) -> None:
    assert typed(*flags.split()) == (ModelSettings(**placed), 2 if "-x" in flags else 1)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--device CUDA0,", "'CUDA0,' has an empty name"),
        ("-ts 3,,1", "no list of numbers"),
        *((f"--replicas={number}", "at ") for number in ("0", "65")),
    ],
)
def test_a_value_that_is_no_list_is_refused(flags: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        typed(*flags.split())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (["--max-tokens", "-5"], {}, "--max-tokens is -5 (--max-tokens must be at least -1)"),
        (["-n", "-5"], {"LACLI_PREDICT": "7"}, "-n is -5 ("),
        ([], {"LLAMA_ARG_N_PREDICT": "-5"}, "LLAMA_ARG_N_PREDICT is -5 (LLAMA_ARG_N_PREDICT must be at least -1)"),
        ([], {"LACLI_N_GPU_LAYERS": "most"}, "LACLI_N_GPU_LAYERS: 'most' is no number of layers (give"),
        ([], {"LLAMA_ARG_CTX_SIZE": "big"}, "invalid value for 'LLAMA_ARG_CTX_SIZE': Input should be a valid integer"),
        (["--ctx-size", "big"], {}, "invalid value for '--ctx-size': Input should be a valid integer"),
    ],
)
def test_a_message_names_an_option_as_it_was_given(arguments: list[str], env: dict[str, str], words: str) -> None:
    assert call("run", "-p", "hi", *arguments, env=env).err.startswith(f"lacli: {words}")


NAMED: dict[str, Any] = {"model_file": "m.gguf"}
WHY, WORD, ALIAS, FILE = "Why is it?", "Why?", "smollm2-135m", "a model"


@pytest.mark.parametrize(
    ("given", "variable", "model", "prompt"),
    [
        ({"argument": WHY}, "", None, WHY),
        ({"argument": "one\nword"}, "", None, "one\nword"),
        ({"argument": WORD}, "", WORD, None),
        ({"argument": WHY, **NAMED}, "", "m.gguf", WHY),
        ({"argument": WORD, **NAMED}, "", "m.gguf", WORD),
        ({"argument": "-", **NAMED}, "", "m.gguf", "-"),
        ({"argument": WORD, "hf_repo": "a/b"}, "", "hf:a/b", WORD),
        ({"argument": WHY}, "m.gguf", "m.gguf", WHY),
        ({"argument": WORD}, "m.gguf", "m.gguf", WORD),
        # An argument that names a model is MODEL.
        *(({"argument": name}, "m.gguf", name, None) for name in (ALIAS, "a/b", "hf:a/b", "./m", "gone.gguf", FILE)),
        *(({"argument": name}, "", name, None) for name in ("my models/gone.gguf", FILE)),
        ({"argument": WORD, "words": WHY}, "m.gguf", WORD, WHY),
        ({"argument": WHY, "prompt": "hi"}, "m.gguf", WHY, "hi"),
        ({"prompt": "hi", **NAMED}, "", "m.gguf", "hi"),
    ],
    ids=str,
)
def test_an_only_argument_is_the_prompt_if_it_cannot_be_the_model(
    given: dict[str, Any], variable: str, model: str | None, prompt: str | None, tmp_path: Path
) -> None:
    (tmp_path / FILE).touch()
    with patch.dict(os.environ, {**CLEAN, "LACLI_MODEL": variable}, clear=True), chdir(tmp_path):
        every = dict.fromkeys(("argument", "model_file", "hf_repo", "draft", "words", "prompt"))
        assert asked(**{**every, **given}) == (model, prompt)

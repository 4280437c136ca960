"""The groups of shared options: lists as they are typed, and a command's own option in the place of the group's."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer.main

from lacli.cli.groups import with_groups
from lacli.cli.options import engine_group
from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings

Batch = Annotated[int, typer.Option("-b")]


def typed(*arguments: str) -> tuple[ModelSettings, int]:
    """What a command with the group gets, and its own -b."""
    got: list[tuple[ModelSettings, int]] = []

    @with_groups(model_settings=engine_group)
    def command(*, model_settings: ModelSettings, batch: Batch = 1) -> None:
        got.append((model_settings, batch))

    app = typer.Typer()
    app.command()(command)
    program: Any = typer.main.get_command(app)
    program(list(arguments), standalone_mode=False)
    return got[0]


SPLIT = {"devices": ("CUDA1", "CUDA0"), "split_mode": "row", "tensor_split": (3.0, 1.0)}


def test_an_option_of_the_command_leaves_the_groups_at_its_default() -> None:
    model_settings, batch = typed("-b", "2", "-c", "3")
    assert (model_settings.context, model_settings.batch, batch) == (3, ModelSettings().batch, 2)
    assert model_settings == ModelSettings(context=3, engine="auto")


@pytest.mark.parametrize(
    ("flags", "placed"),
    [
        ("-dev CUDA1,CUDA0 -sm row -ts 3,1", SPLIT),
        ("--device CUDA1,CUDA0 --split-mode row --tensor-split 3/1", SPLIT),
        ("-sm none -mg 1", {"split_mode": "none", "main_gpu": 1}),
        ("--rpc Box,lan:1 --replicas 3", {"rpc": ("box:50052", "lan:1"), "replicas": 3}),
        ("--device rpc1,cuda0", {"devices": ("rpc1", "cuda0")}),
        *((f"--device {word}", {"devices": ("CPU",)}) for word in ("none", "NONE", "CPU", "off")),
    ],
)
def test_the_flags_of_devices_are_llama_cpps(flags: str, placed: dict[str, Any]) -> None:
    assert typed(*flags.split())[0] == ModelSettings(engine="auto", **placed)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--device CUDA0,", "'CUDA0,' lacks a name"),
        *((f"-ts {shares}", "no list of numbers") for shares in ("3,x", "3,,1", "/")),
        *((f"--replicas={number}", "at ") for number in ("0", "-2", "65")),
    ],
)
def test_what_is_no_list_is_refused(flags: str, words: str) -> None:
    with pytest.raises((UsageError, typer.BadParameter)) as caught:
        typed(*flags.split())
    assert words in str(caught.value)

"""The groups of shared options: lists as they are typed, and a command's own option in the place of the group's."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer.main

from lacli.cli.groups import with_groups
from lacli.cli.options import copies, model_group, replica_group
from lacli.errors import UsageError
from lacli.llamacpp.devices import Device
from lacli.llamacpp.settings import ModelSettings, Placement, ReplicaSettings

MACHINE = [Device("CUDA0", "A card", True), Device("CUDA1", "A card", True), Device("CPU", "A processor", False)]

Batch = Annotated[int, typer.Option("-b")]


def typed(*arguments: str) -> tuple[ModelSettings, ReplicaSettings, int]:
    """What a command with both groups gets, and its own -b."""
    got: list[tuple[ModelSettings, ReplicaSettings, int]] = []

    @with_groups(model_settings=model_group, wanted=replica_group)
    def command(*, model_settings: ModelSettings, wanted: ReplicaSettings, batch: Batch = 1) -> None:
        got.append((model_settings, wanted, batch))

    app = typer.Typer()
    app.command()(command)
    program: Any = typer.main.get_command(app)
    program(list(arguments), standalone_mode=False)
    return got[0]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.llamacpp.library.devices", lambda memory: MACHINE)


def test_an_option_of_the_command_leaves_the_groups_at_its_default() -> None:
    model_settings, wanted, batch = typed("-b", "2", "-c", "3")
    assert (model_settings.context, model_settings.batch, batch) == (3, ModelSettings().batch, 2)
    assert (model_settings.placement, wanted) == (Placement(), ReplicaSettings())


@pytest.mark.parametrize(
    ("flags", "placement"),
    [
        ("-dev cuda1,CUDA0 -sm row -ts 3,1", Placement(("CUDA1", "CUDA0"), "row", (3.0, 1.0))),
        ("--device CUDA1,cuda0 --split-mode row --tensor-split 3/1", Placement(("CUDA1", "CUDA0"), "row", (3.0, 1.0))),
        ("-sm none -mg 1", Placement(split_mode="none", main_gpu=1)),
        ("--device rpc1,cuda0", Placement(("RPC1", "CUDA0"))),
        *((f"--device {word}", Placement(("CPU",))) for word in ("none", "NONE", "cpu", "off")),
    ],
)
def test_the_flags_of_one_copy_are_llama_cpps(flags: str, placement: Placement) -> None:
    assert typed(*flags.split())[0].placement == placement


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--device CUDA0,CUDA2", "there is no device 'CUDA2' (there is CUDA0, CUDA1, CPU"),
        ("--device CUDA0,", "'CUDA0,' lacks a name"),
        *((f"-ts {shares}", "no list of numbers") for shares in ("3,x", "3,,1", "/")),
        *((f"--replicas {groups}", "lacks a name") for groups in (",", "CUDA0,", "CUDA0,,CUDA1", "+", "CUDA0++CUDA1")),
        *((f"--replicas={number}", "at ") for number in ("0", "-2", "65")),
    ],
)
def test_what_is_no_list_is_refused(flags: str, words: str) -> None:
    with pytest.raises((UsageError, typer.BadParameter)) as caught:
        typed(*flags.split())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "count", "groups"),
    [
        ("", 0, ()),
        ("8", 8, ()),
        ("CPU,CPU", 0, (("CPU",), ("CPU",))),
        ("CUDA0+CUDA1, CUDA2+CUDA3", 0, (("CUDA0", "CUDA1"), ("CUDA2", "CUDA3"))),
    ],
)
def test_replicas_are_a_number_or_groups(text: str, count: int, groups: tuple[tuple[str, ...], ...]) -> None:
    assert copies(text) == (count, groups)
    assert typed("--replicas", text)[1] == ReplicaSettings(groups, count)

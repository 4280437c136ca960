"""The flags of where models compute, as they are typed: lists, groups, numbers, and what is no list."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main

from lacli.cli.groups import with_groups
from lacli.cli.options import copies, model_group, replica_group
from lacli.errors import UsageError
from lacli.llamacpp.devices import Device
from lacli.llamacpp.settings import ModelSettings, Placement, ReplicaSettings
from tests.program import call

MACHINE = [Device("CUDA0", "A card", True), Device("CUDA1", "A card", True), Device("CPU", "A processor", False)]


def typed(*arguments: str) -> tuple[ModelSettings, ReplicaSettings]:
    """What a command with both groups gets."""
    got: list[tuple[ModelSettings, ReplicaSettings]] = []

    @with_groups(model_settings=model_group, wanted=replica_group)
    def command(*, model_settings: ModelSettings, wanted: ReplicaSettings) -> None:
        got.append((model_settings, wanted))

    app = typer.Typer()
    app.command()(command)
    program: Any = typer.main.get_command(app)
    program(list(arguments), standalone_mode=False)
    return got[0]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.llamacpp.library.devices", lambda memory: MACHINE)


def test_without_flags_nothing_is_decided() -> None:
    model_settings, wanted = typed()
    assert (model_settings.placement, wanted) == (Placement(), ReplicaSettings())


@pytest.mark.usefixtures("machine")
def test_the_flags_of_one_copy_are_llama_cpps() -> None:
    expected = Placement(("CUDA1", "CUDA0"), "row", (3.0, 1.0))
    for flags in (
        ("-dev", "cuda1,CUDA0", "-sm", "row", "-ts", "3,1"),
        ("--device", "CUDA1, cuda0", "--split-mode", "row", "--tensor-split", "3/1"),
    ):
        assert typed(*flags)[0].placement == expected
    for flag in ("-mg", "--main-gpu"):
        assert typed("-sm", "none", flag, "1")[0].placement == Placement(split_mode="none", main_gpu=1)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("word", ["none", "NONE", "cpu", "off"])
def test_the_processor_alone_has_two_names(word: str) -> None:
    assert typed("--device", word)[0].placement == Placement(("CPU",))


@pytest.mark.usefixtures("machine")
def test_a_name_that_there_is_not_is_refused_at_once_but_servers_are_asked_later() -> None:
    with pytest.raises(UsageError, match="there is no device 'CUDA2' .*CUDA0, CUDA1, CPU"):
        typed("--device", "CUDA0,CUDA2")
    with pytest.raises(UsageError, match="'CUDA0,' lacks a name"):
        typed("--device", "CUDA0,")
    assert typed("--device", "rpc1,cuda0")[0].placement.devices == ("RPC1", "CUDA0")


@pytest.mark.parametrize("shares", ["3,x", "3,,1", "3 1", "/"])
def test_what_is_no_list_of_numbers_is_refused(shares: str) -> None:
    with pytest.raises(UsageError, match="no list of numbers"):
        typed("-ts", shares)


@pytest.mark.parametrize(
    ("text", "count", "groups"),
    [
        ("", 0, ()),
        ("1", 1, ()),
        ("8", 8, ()),
        ("CPU", 0, (("CPU",),)),
        ("CPU,CPU", 0, (("CPU",), ("CPU",))),
        ("CUDA0+CUDA1, CUDA2+CUDA3", 0, (("CUDA0", "CUDA1"), ("CUDA2", "CUDA3"))),
    ],
)
def test_replicas_are_a_number_or_groups(text: str, count: int, groups: tuple[tuple[str, ...], ...]) -> None:
    assert copies(text) == (count, groups)
    assert typed("--replicas", text)[1] == ReplicaSettings(groups, count)


@pytest.mark.parametrize("text", [",", "CUDA0,", "CUDA0,,CUDA1", "+", "CUDA0+", "CUDA0++CUDA1"])
def test_a_group_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="lacks a name"):
        copies(text)


@pytest.mark.parametrize("number", ["0", "-2", "65"])
def test_a_number_of_copies_has_bounds(number: str) -> None:
    with pytest.raises(UsageError, match="at (least|most)"):
        typed(f"--replicas={number}")


def test_servers_are_handed_on() -> None:
    wanted = typed("--rpc", "127.0.0.1:50052,127.0.0.1:50053")[1]
    assert wanted == ReplicaSettings(rpc=("127.0.0.1:50052", "127.0.0.1:50053"))


def test_a_run_on_the_processor_alone_says_what_a_run_says() -> None:
    flags = ("run", "-q", "-p", "hi", "-n", "8", "-t", "1")
    plain, alone = call(*flags), call(*flags, "--device", "none", "-ngl", "99")
    assert plain.code == alone.code == 0
    assert alone.out == plain.out != ""

"""The settings of where models compute: what contradicts itself, and how it is spelled for llama.cpp's programs."""

from __future__ import annotations

import math

import pytest

from lacli.errors import UsageError
from lacli.llamacpp.settings import MOST_REPLICAS, Placement, ReplicaSettings


def test_nothing_said_needs_no_flag() -> None:
    assert Placement().flags == []


def test_what_was_said_is_spelled_as_llama_cpp_takes_it() -> None:
    placement = Placement(("CUDA0", "CUDA1"), "row", (3, 0.5))
    assert placement.flags == ["--device", "CUDA0,CUDA1", "-sm", "row", "-ts", "3,0.5"]
    assert Placement(("CPU",)).flags == ["--device", "none"]
    assert Placement(split_mode="none", main_gpu=1).flags == ["-sm", "none", "-mg", "1"]


def test_a_program_is_told_all_four() -> None:
    assert Placement(("CUDA0", "CUDA1"), tensor_split=(3, 1)).by_name == {
        "device": "CUDA0,CUDA1",
        "split_mode": "layer",
        "tensor_split": "3,1",
        "main_gpu": 0,
    }


@pytest.mark.parametrize("shares", [(0.0, 0.0), (3.0, -1.0), (math.nan, 1.0), (math.inf, 1.0)])
def test_shares_of_nothing_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="-ts .* are no proportions"):
        Placement(tensor_split=shares)


def test_a_device_may_have_no_share_while_another_has_one() -> None:
    assert Placement(tensor_split=(0, 1)).tensor_split == (0, 1)


def test_a_model_that_is_not_split_takes_no_shares() -> None:
    with pytest.raises(UsageError, match="-ts splits the model and -sm none does not"):
        Placement(split_mode="none", tensor_split=(3, 1))


def test_a_main_gpu_is_for_a_model_that_is_not_split() -> None:
    with pytest.raises(UsageError, match="-sm is row.*add -sm none"):
        Placement(split_mode="row", main_gpu=1)
    with pytest.raises(UsageError, match="-mg is -1"):
        Placement(split_mode="none", main_gpu=-1)


def test_there_is_a_bound_of_copies_however_they_are_asked_for() -> None:
    assert ReplicaSettings(count=MOST_REPLICAS).count == MOST_REPLICAS
    with pytest.raises(UsageError, match="at most"):
        ReplicaSettings(count=MOST_REPLICAS + 1)
    with pytest.raises(UsageError, match="at most"):
        ReplicaSettings(groups=(("CPU",),) * (MOST_REPLICAS + 1))


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_time_limit_is_a_time(seconds: float) -> None:
    with pytest.raises(UsageError, match="--replica-timeout.*a number above 0"):
        ReplicaSettings(limit_s=seconds)

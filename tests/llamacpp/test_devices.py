"""Devices: chosen by name on simulated machines, and passed in llama_model_params."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp as lib
import pytest

from lacli import __version__
from lacli.errors import UsageError
from lacli.llamacpp.devices import Device, apply_placement, chosen, deal_devices, offloads
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import CPU, ModelSettings
from tests.program import run

GIB = 2**30
PROCESSOR = Device("CPU", "A processor", False, 64 * GIB, 64 * GIB)
BLAS = Device("BLAS", "OpenBLAS", False)


def card(number: int, model: str = "H200", memory: int = 139, backend: str = "CUDA") -> Device:
    return Device(f"{backend}{number}", model, True, memory * GIB, memory * GIB)


def remote(number: int, memory: int = 24) -> Device:
    return Device(f"RPC{number}", f"10.0.0.{number}:50052", True, memory * GIB, memory * GIB)


FOUR = [*map(card, range(4)), PROCESSOR]
BESIDE_SERVERS = [card(0), PROCESSOR, remote(0), remote(1)]
SERVED = ModelSettings(rpc=("10.0.0.0:50052",))

DEALT: dict[str, tuple[ModelSettings, list[Device], str]] = {
    "llama.cpp's own choice": (ModelSettings(), FOUR, ""),
    "all GPUs": (ModelSettings(replicas=2), FOUR, "CUDA0+CUDA1,CUDA2+CUDA3"),
    "named ones": (ModelSettings(replicas=2, devices=("CUDA2", "cuda3")), FOUR, "CUDA2,CUDA3"),
    "the processor without a GPU": (ModelSettings(replicas=2), [BLAS, PROCESSOR], "CPU,CPU"),
    "here and there": (replace(SERVED, replicas=2, devices=("CPU", "RPC0")), BESIDE_SERVERS, "CPU,RPC0"),
    "one replica over all": (SERVED, BESIDE_SERVERS, "RPC0+RPC1+CUDA0"),
    "one replica over named ones": (replace(SERVED, devices=("rpc1",)), BESIDE_SERVERS, "RPC1"),
}


@pytest.mark.parametrize(("settings", "found", "groups"), DEALT.values(), ids=DEALT)
def test_replicas_get_the_devices_that_are_asked_for(settings: ModelSettings, found: list[Device], groups: str) -> None:
    assert ",".join("+".join(group) for group in deal_devices(settings, found)) == groups


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ModelSettings(replicas=3), "--replicas 3 cannot share CUDA0, CUDA1, CUDA2, CUDA3 evenly"),
        (ModelSettings(devices=("CUDA7",)), "there is no device 'CUDA7' .there is CUDA0.*--rpc adds RPC0"),
        (ModelSettings(devices=("CUDA0", "cuda0")), "cannot have CUDA0.CUDA0"),
        (ModelSettings(devices=("CUDA0", "cpu")), "cannot have CUDA0.CPU .*with -ngl N the other"),
    ],
)
def test_devices_that_cannot_be_had_are_said(settings: ModelSettings, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        deal_devices(settings, FOUR)


def test_llama_cpp_takes_integrated_gpus_only_if_there_is_no_other() -> None:
    shared = card(0, "Iris", backend="Vulkan")._replace(is_integrated=True)
    of_another = card(0, "Iris", backend="SYCL")._replace(is_integrated=True)
    assert chosen([card(0), shared, PROCESSOR]) == ("CUDA0",)
    assert chosen([BLAS, shared, of_another, remote(0), PROCESSOR]) == ("RPC0", "Vulkan0")
    assert chosen([PROCESSOR]) == ()


POINTERS = {"CUDA0": 0x1000, "CUDA1": 0x2000, "RPC0": 0x3000}
GGML: Any = SimpleNamespace(
    ggml_backend_dev_by_name=lambda name: POINTERS[name.decode()], llama_max_devices=lib.llama_max_devices
)
"""A fake ggml whose devices are only addresses."""


@pytest.mark.parametrize(
    ("names", "layers"), [(("RPC0", "CUDA1", "CUDA0"), 7), ((CPU,), 0)], ids=["GPUs", "the processor"]
)
def test_devices_are_addresses_in_their_order_with_null_at_the_end(
    names: tuple[str, ...], layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lib.llama_model_default_params()
    monkeypatch.setattr("lacli.llamacpp.devices.ggml", GGML)
    kept = apply_placement(made, ModelSettings(gpu_layers=7, devices=names, split_mode="row", tensor_split=(3, 1)))
    # The processor is an empty list of devices. NULL instead of a list would mean llama.cpp's choice with every GPU.
    assert made.devices
    array = ctypes.cast(made.devices, ctypes.POINTER(ctypes.c_void_p))
    assert [array[place] for place in range(len(names))] == [POINTERS.get(name) for name in names]
    assert names == (CPU,) or array[len(names)] is None
    assert made.n_gpu_layers == layers
    assert made.split_mode == lib.LLAMA_SPLIT_MODE_ROW
    most = lib.llama_max_devices()
    assert made.tensor_split[:most] == [3.0, 1.0] + [0.0] * (most - 2), "one entry for each possible device"
    del kept


def test_a_model_on_the_processor_says_so_whatever_ngl_says(tiny: Path) -> None:
    settings = ModelSettings(gpu_layers=99, threads=1, devices=("cpu",))
    with LlamaModel(tiny, settings) as model:
        assert (model.devices, model.offloaded, model.chooses) == (CPU, False, False)
        assert model.settings.devices == (CPU,)


def played(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let this machine have these GPUs; models are still loaded without them."""
    cards = [Device(name, "A card", True) for name in names]
    for place in ("devices", "model"):
        found = [*cards, Device(CPU, "A processor", False)]
        monkeypatch.setattr(f"lacli.llamacpp.{place}.devices", lambda *, memory, found=found: found)
    monkeypatch.setattr("lacli.llamacpp.model.apply_placement", lambda parameters, settings: [])


@pytest.mark.parametrize(
    ("settings", "words", "chooses"),
    [
        (ModelSettings(), "GPU offload", True),
        (ModelSettings(devices=("cuda1", "CUDA0")), "CUDA1 + CUDA0", True),
        (ModelSettings(devices=("CUDA0", "CUDA1"), split_mode="none", main_gpu=1), "CUDA1", True),
        (ModelSettings(devices=("CUDA0", "CUDA1"), split_mode="tensor"), "CUDA0 + CUDA1", False),
    ],
)
def test_a_model_on_gpus_says_which(
    settings: ModelSettings, words: str, chooses: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(monkeypatch, "CUDA0", "CUDA1")
    with LlamaModel(tiny, settings) as model:
        assert (model.devices, model.offloaded, model.chooses) == (words, True, chooses)
    with LlamaModel(tiny, replace(settings, gpu_layers=0)) as model:
        assert (model.devices, model.offloaded) == (CPU, False)


def test_a_build_with_rpc_computes_on_the_processor_while_there_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    # llama.cpp returns True in every build with RPC.
    monkeypatch.setattr(lib, "llama_supports_gpu_offload", lambda: True)
    played(monkeypatch)
    assert not offloads(ModelSettings())
    played(monkeypatch, "RPC0")
    assert offloads(ModelSettings()) and not offloads(ModelSettings(gpu_layers=0))
    assert [offloads(ModelSettings(devices=(name,))) for name in (CPU, "cpu", "RPC0")] == [False, False, True]


def test_version_begins_with_laclis_own_and_goes_on_with_llama_cpps() -> None:
    done = run("--version")
    first, second, features, *others = done.out.splitlines()
    assert (done.code, first, done.err) == (0, f"lacli {__version__}", "")
    assert second.startswith("llama-cpp-python ") and features.startswith("CPU : ")
    assert any(line.startswith("device CPU") for line in others)

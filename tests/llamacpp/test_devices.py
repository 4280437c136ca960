"""Devices: by name on machines that are made up, as llama_model_params has them, and threads for their copies."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp as lib
import pytest

from lacli.errors import UsageError
from lacli.llamacpp.devices import (
    CPU,
    Device,
    chosen,
    offloading,
    placements,
    shared_threads,
)
from lacli.llamacpp.library import apply_placement
from lacli.llamacpp.model import LlamaModel, offloads
from lacli.llamacpp.settings import ModelSettings, Placement, ReplicaSettings, SplitMode
from lacli.settings import Switch

GIB = 2**30
PROCESSOR = Device("CPU", "A processor", False, 64 * GIB, 64 * GIB)
BLAS = Device("BLAS", "OpenBLAS", False)


def card(number: int, model: str = "H200", memory: int = 139, backend: str = "CUDA") -> Device:
    return Device(f"{backend}{number}", model, True, memory * GIB, memory * GIB)


def remote(number: int, memory: int = 24) -> Device:
    return Device(f"RPC{number}", f"10.0.0.{number}:50052", True, memory * GIB, memory * GIB)


FOUR = [*map(card, range(4)), PROCESSOR]
LOADING = ModelSettings()


def model_settings(
    *devices: str, sm: SplitMode = "layer", ts: tuple[float, ...] = (), mg: int = 0, fa: Switch = "auto"
) -> ModelSettings:
    return ModelSettings(flash_attention=fa, placement=Placement(devices, sm, ts, mg))


def asked(text: str) -> ReplicaSettings:
    return ReplicaSettings(groups=tuple(tuple(group.split("+")) for group in text.split(",")))


def test_nothing_asked_is_one_copy_where_llama_cpp_puts_it() -> None:
    for found in ([PROCESSOR], FOUR):
        assert placements(ReplicaSettings(), LOADING, found) == (Placement(),)
        assert placements(ReplicaSettings(count=1), LOADING, found) == (Placement(),)


MIXED = [card(0, "A100"), card(1), card(2, "A100", 40), card(3), PROCESSOR]
TWO = ReplicaSettings(count=2)
SERVED = ReplicaSettings(count=2, rpc=("10.0.0.0:50052",))
BESIDE_SERVERS = [card(0), PROCESSOR, remote(0), remote(1)]

GROUPS: dict[str, tuple[ReplicaSettings, ModelSettings, list[Device], str]] = {
    "names in ggml's spelling": (asked("cuda0+CUDA1,Cuda3+cuda2"), LOADING, FOUR, "CUDA0+CUDA1,CUDA3+CUDA2"),
    "one device several times": (asked("CPU,CPU,CPU"), LOADING, [PROCESSOR], "CPU,CPU,CPU"),
    "GPUs of one model and memory": (TWO, LOADING, MIXED, "CUDA1,CUDA3"),
    "the processor without a GPU": (TWO, LOADING, [BLAS, PROCESSOR], "CPU,CPU"),
    "a number among named ones": (TWO, model_settings("CUDA2", "cuda3"), FOUR, "CUDA2,CUDA3"),
    "servers by their memory": (SERVED, LOADING, [PROCESSOR, remote(0, 8), remote(1), remote(2)], "RPC1,RPC2"),
    "one copy over all": (replace(SERVED, count=0), LOADING, BESIDE_SERVERS, "RPC0+RPC1+CUDA0"),
    "one copy over named ones": (replace(SERVED, count=0), model_settings("rpc1"), BESIDE_SERVERS, "RPC1"),
}


@pytest.mark.parametrize(("wanted", "settings", "found", "copies"), GROUPS.values(), ids=GROUPS)
def test_copies_are_put_where_they_are_asked_for(
    wanted: ReplicaSettings, settings: ModelSettings, found: list[Device], copies: str
) -> None:
    assert ",".join("+".join(placement.devices) for placement in placements(wanted, settings, found)) == copies


REFUSED: list[tuple[ReplicaSettings, ModelSettings, list[Device], str]] = [
    (asked("CUDA0+CUDA1,CUDA2"), model_settings(ts=(3, 1)), FOUR, "-ts are about several devices, .* has CUDA2"),
    (TWO, LOADING, [card(0), card(0, backend="Vulkan"), PROCESSOR], "not 2 devices alike, there is CUDA0"),
    (asked("CUDA0,CUDA1"), model_settings("CUDA2"), FOUR, "--device and --replicas both name devices"),
    (ReplicaSettings(), model_settings("CUDA0", "cuda0"), FOUR, "cannot have CUDA0.CUDA0"),
    (ReplicaSettings(), model_settings("CUDA0", "cpu"), FOUR, "cannot have CUDA0.CPU .*-ngl N leaves"),
    (ReplicaSettings(), model_settings("CUDA0", "CUDA1", ts=(1, 1, 1)), FOUR, "has CUDA0.CUDA1"),
    (ReplicaSettings(), model_settings(sm="none", mg=4), FOUR, "-mg 4"),
    (ReplicaSettings(), model_settings(sm="tensor"), [BLAS, PROCESSOR], "-sm tensor needs GPUs"),
    (ReplicaSettings(), model_settings(sm="tensor", fa="off"), FOUR, "-sm tensor needs GPUs and flash attention"),
]


@pytest.mark.parametrize(("wanted", "settings", "found", "message"), REFUSED, ids=[row[3] for row in REFUSED])
def test_what_llama_cpp_would_refuse_or_overlook_is_said(
    wanted: ReplicaSettings, settings: ModelSettings, found: list[Device], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        placements(wanted, settings, found)


def test_llama_cpp_takes_integrated_gpus_only_where_there_is_no_other() -> None:
    shared = card(0, "Iris", backend="Vulkan")._replace(is_integrated=True)
    of_another = card(0, "Iris", backend="SYCL")._replace(is_integrated=True)
    assert chosen([card(0), shared, PROCESSOR]) == ("CUDA0",)
    assert chosen([BLAS, shared, of_another, remote(0), PROCESSOR]) == ("RPC0", "Vulkan0")
    assert chosen([PROCESSOR]) == ()


def test_layers_go_to_the_devices_named_or_chosen_and_never_to_the_processor() -> None:
    assert offloading(Placement(), FOUR) == ("CUDA0", "CUDA1", "CUDA2", "CUDA3")
    assert offloading(Placement(("CUDA1",)), FOUR) == ("CUDA1",)
    assert offloading(Placement(("CPU",)), FOUR) == offloading(Placement(("cpu",)), FOUR) == ()
    assert offloading(Placement(), [PROCESSOR]) == ()


POINTERS = {"CUDA0": 0x1000, "CUDA1": 0x2000, "RPC0": 0x3000}


class Library:
    """ggml with devices that are only addresses."""

    @staticmethod
    def ggml_backend_dev_by_name(name: bytes) -> int:
        return POINTERS[name.decode()]

    @staticmethod
    def llama_max_devices() -> int:
        return int(lib.llama_max_devices())


def parameters(settings: ModelSettings) -> tuple[Any, list[object]]:
    made = lib.llama_model_default_params()
    return made, apply_placement(made, settings, Library())  # type: ignore[arg-type]  # the part of it that is called


def pointers(made: Any) -> list[int]:
    """The addresses up to the NULL that ends them."""
    array = ctypes.cast(made.devices, ctypes.POINTER(ctypes.c_void_p))
    found: list[int] = []
    while address := array[len(found)]:
        found.append(address)
    return found


def test_devices_are_addresses_in_their_order_with_null_at_the_end() -> None:
    settings = ModelSettings(gpu_layers=7, placement=Placement(("RPC0", "CUDA1", "CUDA0")))
    made, kept = parameters(settings)
    assert pointers(made) == [POINTERS["RPC0"], POINTERS["CUDA1"], POINTERS["CUDA0"]]
    assert made.n_gpu_layers == 7
    del kept


def test_the_processor_is_an_empty_list_and_no_layer_elsewhere() -> None:
    made, kept = parameters(ModelSettings(gpu_layers=99, placement=Placement((CPU,))))
    # An address of NULL would be llama.cpp's own choice, with every GPU in it.
    assert made.devices and pointers(made) == []
    assert made.n_gpu_layers == 0
    del kept


def test_shares_fill_an_array_of_all_devices_that_there_can_be() -> None:
    made, kept = parameters(ModelSettings(placement=Placement(("CUDA0", "CUDA1"), "row", (3, 1))))
    shares = made.tensor_split[: lib.llama_max_devices()]
    assert shares == [3.0, 1.0] + [0.0] * (lib.llama_max_devices() - 2)
    assert made.split_mode == lib.LLAMA_SPLIT_MODE_ROW
    del kept


def test_a_model_on_the_processor_says_so_whatever_ngl_says(tiny_path: Path) -> None:
    settings = ModelSettings(gpu_layers=99, threads=1, placement=Placement(("cpu",)))
    with LlamaModel(tiny_path, settings) as model:
        assert (model.devices, model.offloaded, model.chooses) == (CPU, False, False)
        assert model.placement == Placement((CPU,))


def played(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A machine with these GPUs, whose models are loaded without them."""
    cards = [Device(name, "A card", True) for name in names]
    monkeypatch.setattr("lacli.llamacpp.model.devices", lambda *, memory: [*cards, Device(CPU, "A processor", False)])
    monkeypatch.setattr("lacli.llamacpp.model.apply_placement", lambda parameters, settings, ggml: [])


@pytest.mark.parametrize(
    ("placement", "words", "chooses"),
    [
        (Placement(), "GPU offload", True),
        (Placement(("cuda1", "CUDA0")), "CUDA1 + CUDA0", True),
        (Placement(("CUDA0", "CUDA1"), "none", (), 1), "CUDA1", True),
        (Placement(("CUDA0", "CUDA1"), "tensor"), "CUDA0 + CUDA1", False),
    ],
)
def test_a_model_on_gpus_says_which(
    placement: Placement, words: str, chooses: bool, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(monkeypatch, "CUDA0", "CUDA1")
    with LlamaModel(tiny_path, ModelSettings(placement=placement)) as model:
        assert (model.devices, model.offloaded, model.chooses) == (words, True, chooses)
    with LlamaModel(tiny_path, ModelSettings(gpu_layers=0, placement=placement)) as model:
        assert (model.devices, model.offloaded) == (CPU, False)


def test_a_build_with_rpc_computes_on_the_processor_while_there_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    # llama.cpp says yes as soon as RPC is built in.
    monkeypatch.setattr(lib, "llama_supports_gpu_offload", lambda: True)
    played(monkeypatch)
    assert not offloads(ModelSettings())
    played(monkeypatch, "RPC0")
    assert offloads(ModelSettings()) and not offloads(ModelSettings(gpu_layers=0))
    assert not offloads(ModelSettings(placement=Placement((CPU,))))


@pytest.mark.parametrize(
    ("threads", "copies", "each"), [(8, 2, 4), (8, 3, 2), (2, 3, 1), (1, 2, 1), (8, 1, 8), (8, 0, 8)]
)
def test_the_threads_are_the_machines_and_every_copy_has_one(threads: int, copies: int, each: int) -> None:
    shared = shared_threads(ModelSettings(threads=threads), copies)
    assert (shared.threads, shared.threads_batch) == (each, each)

"""Devices: by name on machines that are made up, as llama_model_params has them, and threads for their copies."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp as lib
import pytest

from lacli.errors import ModelLoadError, UsageError
from lacli.llamacpp.devices import (
    CPU,
    FUNCTIONS,
    MOST_DEVICES,
    SPLIT_MODES,
    Device,
    apply_placement,
    chosen,
    found_devices,
    named,
    offloading,
    physical_cores,
    placements,
    settled,
    shared_threads,
    with_threads,
)
from lacli.llamacpp.library import declared, devices
from lacli.llamacpp.model import LlamaModel, offloads
from lacli.llamacpp.settings import ModelSettings, Placement, ReplicaSettings, SplitMode
from lacli.settings import Switch
from tests.fakes import tiny_models

GIB = 2**30
PROCESSOR = Device("CPU", "A processor", False, 64 * GIB, 64 * GIB)
BLAS = Device("BLAS", "OpenBLAS", False)


def card(number: int, model: str = "H200", memory: int = 139, backend: str = "CUDA") -> Device:
    return Device(f"{backend}{number}", model, True, memory * GIB, memory * GIB)


def remote(number: int, memory: int = 24) -> Device:
    return Device(f"RPC{number}", f"10.0.0.{number}:50052", True, memory * GIB, memory * GIB)


FOUR = [*map(card, range(4)), PROCESSOR]
LOADING = ModelSettings()


def loading(
    *devices: str,
    sm: SplitMode = "layer",
    ts: tuple[float, ...] = (),
    mg: int = 0,
    fa: Switch = "auto",
) -> ModelSettings:
    return ModelSettings(flash_attention=fa, placement=Placement(devices, sm, ts, mg))


def groups(wanted: ReplicaSettings, found: Sequence[Device], settings: ModelSettings = LOADING) -> list[str]:
    """The devices of each copy in the flag's own spelling."""
    return ["+".join(placement.devices) for placement in placements(wanted, settings, found)]


def asked(text: str) -> ReplicaSettings:
    return ReplicaSettings(groups=tuple(tuple(group.split("+")) for group in text.split(",")))


def test_nothing_asked_is_one_copy_where_llama_cpp_puts_it() -> None:
    for found in ([PROCESSOR], FOUR):
        assert placements(ReplicaSettings(), LOADING, found) == (Placement(),)
        assert placements(ReplicaSettings(count=1), LOADING, found) == (Placement(),)


def test_named_groups_are_copies_in_ggmls_spelling() -> None:
    assert groups(asked("cuda0+CUDA1,Cuda3+cuda2"), FOUR) == ["CUDA0+CUDA1", "CUDA3+CUDA2"]


def test_one_device_can_have_several_copies_and_unlike_ones_go_together() -> None:
    assert groups(asked("CPU,CPU,CPU"), [PROCESSOR]) == ["CPU"] * 3
    assert groups(asked("cuda0,cuda0,cpu"), FOUR) == ["CUDA0", "CUDA0", "CPU"]


def test_the_other_flags_hold_for_every_group() -> None:
    found = placements(asked("CUDA0+CUDA1,CUDA2+CUDA3"), loading(sm="row", ts=(3, 1)), FOUR)
    assert found == (
        Placement(("CUDA0", "CUDA1"), "row", (3, 1)),
        Placement(("CUDA2", "CUDA3"), "row", (3, 1)),
    )
    with pytest.raises(UsageError, match="-ts has 2 proportions, and the copy on CUDA2 has 1 device"):
        placements(asked("CUDA0+CUDA1,CUDA2"), loading(ts=(3, 1)), FOUR)


def test_a_number_takes_the_first_gpus_of_one_model_and_memory() -> None:
    assert groups(ReplicaSettings(count=3), FOUR) == ["CUDA0", "CUDA1", "CUDA2"]
    mixed = [card(0, "A100"), card(1), card(2, "A100", 40), card(3), PROCESSOR]
    assert groups(ReplicaSettings(count=2), mixed) == ["CUDA1", "CUDA3"]


def test_one_card_behind_two_backends_is_not_two_alike() -> None:
    with pytest.raises(UsageError, match="not 2 devices alike"):
        placements(ReplicaSettings(count=2), LOADING, [card(0), card(0, backend="Vulkan"), PROCESSOR])


def test_a_number_without_a_gpu_is_so_many_times_the_processor() -> None:
    assert groups(ReplicaSettings(count=2), [BLAS, PROCESSOR]) == ["CPU", "CPU"]


def test_a_number_chooses_among_the_devices_that_are_named() -> None:
    assert groups(ReplicaSettings(count=2), FOUR, loading("CUDA2", "cuda3")) == ["CUDA2", "CUDA3"]
    assert groups(ReplicaSettings(count=2), FOUR, loading("CPU")) == ["CPU", "CPU"]
    with pytest.raises(UsageError, match="not 2 devices alike, there is CUDA2"):
        groups(ReplicaSettings(count=2), FOUR, loading("CUDA2"))


def test_too_few_alike_are_named_with_what_can_be_typed() -> None:
    with pytest.raises(UsageError) as refusal:
        placements(ReplicaSettings(count=3), LOADING, [card(0), card(1, "A100"), PROCESSOR])
    assert str(refusal.value) == (
        "--replicas 3: there are not 3 devices alike, there is CUDA0 (H200), CUDA1 (A100) "
        "(names take any: --replicas CUDA0,CUDA1,CUDA0)"
    )


def test_an_rpc_device_is_never_offered_for_two_copies() -> None:
    wanted = ReplicaSettings(count=2, rpc=("10.0.0.0:50052",))
    with pytest.raises(UsageError, match="--replicas CPU,RPC0; or start another server: lacli rpc-server"):
        placements(wanted, LOADING, [PROCESSOR, remote(0)])
    with pytest.raises(UsageError, match="--replicas CUDA0,RPC0;"):
        placements(wanted, LOADING, [card(0), PROCESSOR, remote(0)])
    with pytest.raises(UsageError, match="--replicas CPU,RPC0,CPU;"):
        placements(replace(wanted, count=3), LOADING, [PROCESSOR, remote(0)])
    with pytest.raises(UsageError, match="--replicas CUDA2,CUDA2 without --device"):
        placements(ReplicaSettings(count=2), loading("CUDA2"), FOUR)


def test_two_devices_of_one_server_are_not_two_alike() -> None:
    same = remote(1)._replace(description=remote(0).description)
    wanted = ReplicaSettings(count=2, rpc=("10.0.0.0:50052", "10.0.0.2:50052"))
    assert groups(wanted, [PROCESSOR, remote(0), same, remote(2)]) == ["RPC0", "RPC2"]
    with pytest.raises(UsageError, match="there is RPC0 .*, RPC1 .*--replicas CPU,RPC0;"):
        placements(wanted, LOADING, [PROCESSOR, remote(0), same])


def test_servers_alike_are_told_by_their_memory() -> None:
    wanted = ReplicaSettings(count=2, rpc=("10.0.0.0:50052", "10.0.0.1:50052"))
    assert groups(wanted, [PROCESSOR, remote(0), remote(1)]) == ["RPC0", "RPC1"]
    assert groups(wanted, [PROCESSOR, remote(0, 8), remote(1), remote(2)]) == ["RPC1", "RPC2"]


def test_servers_without_replicas_make_one_copy_over_them_and_the_local_gpus() -> None:
    wanted = ReplicaSettings(rpc=("10.0.0.0:50052",))
    found = [card(0), PROCESSOR, remote(0), remote(1)]
    assert groups(wanted, found) == ["RPC0+RPC1+CUDA0"]
    assert groups(wanted, found, loading("cuda0", "rpc1")) == ["CUDA0+RPC1"]
    assert groups(asked("RPC0,RPC1+CUDA0"), found) == ["RPC0", "RPC1+CUDA0"]


def test_llama_cpp_takes_integrated_gpus_only_where_there_is_no_other() -> None:
    shared = card(0, "Iris", backend="Vulkan")._replace(is_integrated=True)
    of_another = card(0, "Iris", backend="SYCL")._replace(is_integrated=True)
    assert chosen([card(0), shared, PROCESSOR]) == ("CUDA0",)
    assert chosen([BLAS, shared, of_another, remote(0), PROCESSOR]) == ("RPC0", "Vulkan0")
    assert chosen([PROCESSOR]) == ()


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"--device: there is no device 'CUDA9' \(there is CUDA0, CUDA1, .*CPU\)"):
        settled(loading("CUDA9"), FOUR)
    with pytest.raises(UsageError, match=r"--replicas: there is no device 'BLAS' \(there is CPU\)"):
        placements(asked("CPU,BLAS"), LOADING, [BLAS, PROCESSOR])


def test_a_servers_device_without_a_server_is_answered_with_the_flag_that_it_needs() -> None:
    with pytest.raises(UsageError, match="'rpc0'.*--rpc HOST:PORT"):
        named(["rpc0"], FOUR)
    with pytest.raises(UsageError, match="there is CPU, RPC0"):
        named(["RPC1"], [PROCESSOR, remote(0)])


def test_one_copy_has_a_device_once_and_the_processor_alone() -> None:
    with pytest.raises(UsageError, match="has CUDA1 twice"):
        named(["CUDA0", "CUDA1", "cuda1"], FOUR)
    with pytest.raises(UsageError, match="CPU stands alone, and not with CUDA0.*-ngl N leaves the rest of the layers"):
        named(["cuda0", "cpu"], FOUR)


def test_device_and_replicas_cannot_both_name_devices() -> None:
    with pytest.raises(UsageError, match="--device and --replicas both name devices"):
        placements(asked("CUDA0,CUDA1"), loading("CUDA2"), FOUR)


@pytest.mark.parametrize(
    ("settings", "found", "message"),
    [
        (
            loading("CUDA0", "CUDA1", ts=(1, 1, 1)),
            FOUR,
            "3 proportions, and the model has 2 devices .*0 CUDA0, 1 CUDA1",
        ),
        (loading(ts=(1, 1)), [PROCESSOR], "2 proportions, and the model has no GPU"),
        (loading(sm="none", mg=4), FOUR, "-mg is 4, and the model has 4 devices .*3 CUDA3"),
        (loading("CPU", sm="none", mg=1), FOUR, "-mg is 1, and the model has no GPU"),
        (loading(sm="tensor"), [BLAS, PROCESSOR], "-sm tensor splits a model between GPUs"),
        (loading("CPU", sm="tensor"), FOUR, "-sm tensor splits a model between GPUs"),
        (loading(sm="tensor", fa="off"), FOUR, "-sm tensor needs flash attention"),
        (loading(sm="tensor"), list(map(card, range(MOST_DEVICES + 1))), "-sm tensor is for at most 16 devices"),
        (loading(ts=(1,)), list(map(card, range(MOST_DEVICES + 1))), "-ts is for at most 16 devices"),
    ],
)
def test_what_llama_cpp_would_refuse_or_overlook_is_said(
    settings: ModelSettings, found: list[Device], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        settled(settings, found)


def test_what_it_takes_is_left_as_it_is() -> None:
    for settings in (
        loading(sm="none", mg=3),
        loading("CUDA1", "CUDA3", sm="none", mg=1),
        loading(ts=(0, 0, 0, 1)),
        loading(sm="tensor", fa="on", ts=(3, 1)),
        replace(loading("CUDA0", "CUDA1"), gpu_layers=10),
    ):
        assert settled(settings, FOUR) == settings


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


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("offload") / "tiny.gguf"
    tiny_models.write_llama(path)
    return path


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


def test_llama_cpps_own_choice_is_left_to_it() -> None:
    made, kept = parameters(ModelSettings())
    assert not made.devices and not made.tensor_split and not kept
    assert (made.n_gpu_layers, made.split_mode, made.main_gpu) == (-1, lib.LLAMA_SPLIT_MODE_LAYER, 0)


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


def test_split_modes_have_llama_cpps_numbers_and_the_main_gpu_goes_along() -> None:
    assert {
        "none": lib.LLAMA_SPLIT_MODE_NONE,
        "layer": lib.LLAMA_SPLIT_MODE_LAYER,
        "row": lib.LLAMA_SPLIT_MODE_ROW,
        "tensor": lib.LLAMA_SPLIT_MODE_TENSOR,
    } == SPLIT_MODES
    made, _ = parameters(ModelSettings(placement=Placement(split_mode="none", main_gpu=3)))
    assert (made.split_mode, made.main_gpu) == (lib.LLAMA_SPLIT_MODE_NONE, 3)


def test_the_library_lists_the_processor_and_finds_it_by_name_in_any_case() -> None:
    ggml = declared(*FUNCTIONS)
    quick = found_devices(ggml, memory=False)
    assert [device.name for device in quick] == [device.name for device in devices()]
    assert all(device.total == 0 for device in quick) and devices()[-1].total > 0
    assert ggml.ggml_backend_dev_by_name(b"cpu")


def test_a_model_on_the_processor_says_so_whatever_ngl_says(path: Path) -> None:
    settings = ModelSettings(gpu_layers=99, threads=1, placement=Placement(("cpu",)))
    with LlamaModel(path, settings) as model:
        assert (model.devices, model.offloaded, model.chooses) == (CPU, False, False)
        assert model.placement == Placement((CPU,))


def played(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A machine with these GPUs, whose models are loaded without them."""
    cards = [Device(name, "A card", True) for name in names]
    monkeypatch.setattr(
        "lacli.llamacpp.library.found_devices", lambda ggml, memory: [*cards, Device(CPU, "A processor", False)]
    )
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
    placement: Placement, words: str, chooses: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(monkeypatch, "CUDA0", "CUDA1")
    with LlamaModel(path, ModelSettings(placement=placement)) as model:
        assert (model.devices, model.offloaded, model.chooses) == (words, True, chooses)
    with LlamaModel(path, ModelSettings(gpu_layers=0, placement=placement)) as model:
        assert (model.devices, model.offloaded) == (CPU, False)


def test_a_device_that_is_not_there_is_refused_before_the_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, "CUDA0")
    with pytest.raises(UsageError, match="there is CUDA0, CPU"):
        LlamaModel(Path("nowhere.gguf"), ModelSettings(placement=Placement(("CUDA1",))))


def test_a_build_with_rpc_computes_on_the_processor_while_there_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    # llama.cpp says yes as soon as RPC is built in.
    monkeypatch.setattr(lib, "llama_supports_gpu_offload", lambda: True)
    played(monkeypatch)
    assert not offloads(ModelSettings())
    played(monkeypatch, "RPC0")
    assert offloads(ModelSettings()) and not offloads(ModelSettings(gpu_layers=0))
    assert not offloads(ModelSettings(placement=Placement((CPU,))))


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("error loading model: LLAMA_SPLIT_MODE_TENSOR not implemented for architecture 'mamba'", "-sm layer"),
        ("error loading model: device Vulkan0 does not support split buffers", "-sm layer"),
        ("error loading model: unable to allocate CUDA0 buffer", "-ngl"),
        ("error loading model: tensor data is not within the file bounds", "damaged"),
    ],
)
def test_the_hint_fits_what_llama_cpp_says(reason: str, hint: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: bytes, parameters: object) -> None:
        library_log.receive(4, f"llama_model_load: {reason}\n".encode())

    with LlamaModel(path, ModelSettings(gpu_layers=0)) as model:
        library_log = model._log
    monkeypatch.setattr(lib, "llama_model_load_from_file", refuse)
    with pytest.raises(ModelLoadError) as refusal:
        LlamaModel(path, ModelSettings(gpu_layers=0))
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    ("threads", "copies", "each"), [(8, 2, 4), (8, 3, 2), (2, 3, 1), (1, 2, 1), (8, 1, 8), (8, 0, 8)]
)
def test_the_threads_are_the_machines_and_every_copy_has_one(threads: int, copies: int, each: int) -> None:
    shared = shared_threads(ModelSettings(threads=threads), copies)
    assert (shared.threads, shared.threads_batch) == (each, each)


def test_the_threads_of_batches_are_shared_by_themselves() -> None:
    shared = shared_threads(ModelSettings(threads=4, threads_batch=12), 2)
    assert (shared.threads, shared.threads_batch) == (2, 6)


def test_what_is_not_said_is_the_cores_of_the_machine() -> None:
    assert shared_threads(ModelSettings(), 1) == with_threads(ModelSettings())
    assert shared_threads(ModelSettings(), physical_cores()).threads == 1

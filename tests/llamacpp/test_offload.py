"""What a placement becomes in llama_model_params, seen as the C side would see it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp as lib
import pytest

from lacli.errors import ModelLoadError, UsageError
from lacli.llamacpp.devices import (
    CPU,
    FUNCTIONS,
    SPLIT_MODES,
    Device,
    apply_placement,
    found_devices,
)
from lacli.llamacpp.library import declared, devices
from lacli.llamacpp.model import LlamaModel, offloads
from lacli.llamacpp.settings import ModelSettings, Placement
from tests.fakes import tiny_models

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

"""What llama.cpp puts layers on: ggml's devices, and a placement as `llama_model_params` takes it.

Structs and pointers only; the C library comes in from `llama.py`. Names and rules are in `devices.py`.
"""

from __future__ import annotations

import ctypes
from typing import Any

from lacli.devices import CPU, Device
from lacli.placement import SplitMode
from lacli.settings import ModelSettings

GPU, INTEGRATED = 1, 2
"""Of ggml's ggml_backend_dev_type: a GPU, and one that shares the processor's memory."""

SPLIT_MODES: dict[SplitMode, int] = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
"""llama.cpp's llama_split_mode."""

FUNCTIONS: tuple[tuple[str, list[Any], Any], ...] = (
    ("ggml_backend_dev_name", [ctypes.c_void_p], ctypes.c_char_p),
    ("ggml_backend_dev_description", [ctypes.c_void_p], ctypes.c_char_p),
    ("ggml_backend_dev_type", [ctypes.c_void_p], ctypes.c_int),
    ("ggml_backend_dev_memory", [ctypes.c_void_p] * 3, None),
    ("ggml_backend_dev_count", [], ctypes.c_size_t),
    ("ggml_backend_dev_get", [ctypes.c_size_t], ctypes.c_void_p),
    ("ggml_backend_dev_by_name", [ctypes.c_char_p], ctypes.c_void_p),
    ("llama_max_devices", [], ctypes.c_size_t),
)
"""The library's functions about devices, for `llama.declared`."""


def found_devices(ggml: ctypes.CDLL, *, memory: bool = True) -> list[Device]:
    """The devices of the library, in its order. memory: ask for it too, which starts a GPU's driver."""
    return [
        _device(ggml, ggml.ggml_backend_dev_get(number), memory=memory)
        for number in range(ggml.ggml_backend_dev_count())
    ]


def place(parameters: Any, settings: ModelSettings, ggml: ctypes.CDLL) -> list[object]:
    """Write layers and placement into llama_model_params; the result has to live while the model loads.

    The settings are settled (`devices.settled`). The processor is none of llama.cpp's devices: it has what no other
    has. Without layers elsewhere a GPU would still compute large batches, so the list is empty then.
    """
    placement = settings.placement
    parameters.n_gpu_layers = settings.gpu_layers
    parameters.split_mode = SPLIT_MODES[placement.split_mode]
    parameters.main_gpu = placement.main_gpu
    kept: list[object] = []
    if placement.tensor_split:
        shares = (ctypes.c_float * ggml.llama_max_devices())(*placement.tensor_split)
        parameters.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
        kept.append(shares)
    if placement.devices:
        names = [name for name in placement.devices if name != CPU]
        devices = (ctypes.c_void_p * (len(names) + 1))(
            *(ggml.ggml_backend_dev_by_name(name.encode()) for name in names)
        )
        parameters.devices = ctypes.addressof(devices)
        kept.append(devices)
        if not names:
            parameters.n_gpu_layers = 0
    return kept


def _device(ggml: ctypes.CDLL, device: int, *, memory: bool) -> Device:
    kind = ggml.ggml_backend_dev_type(device)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if memory:
        ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return Device(
        ggml.ggml_backend_dev_name(device).decode(),
        ggml.ggml_backend_dev_description(device).decode(),
        kind in (GPU, INTEGRATED),
        free.value,
        total.value,
        kind == INTEGRATED,
    )

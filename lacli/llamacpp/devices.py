"""The devices that this build of llama.cpp can use: their list, llama.cpp's choice, and the shares of replicas."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from lacli.errors import UsageError
from lacli.llamacpp.library import ggml, lib, start, version
from lacli.llamacpp.settings import CPU, RPC, ModelSettings

GIB = 2**30

GPU, INTEGRATED = 1, 2
"""ggml_backend_dev_type of a GPU, and of a GPU that shares the processor's memory."""


class Device(NamedTuple):
    """A device of llama.cpp. `name`: ggml's ("CPU", "CUDA0"). `description`: the product ("NVIDIA H200").

    `free`, `total`: bytes of memory, 0 if unknown. `is_integrated`: a GPU that shares the processor's memory.
    """

    name: str
    description: str
    is_gpu: bool
    free: int = 0
    total: int = 0
    is_integrated: bool = False

    @property
    def words(self) -> str:
        """The device in words, such as "CUDA0: NVIDIA H200, 138.2 of 139.8 GiB free"."""
        # ggml calls all of the processor's memory free.
        free = f"{self.free / GIB:.1f} of " if self.is_gpu else ""
        memory = f", {free}{self.total / GIB:.1f} GiB{' free' if free else ''}" if self.total else ""
        return f"{self.name}: {self.description.strip()}{memory}"


def deal_devices(settings: ModelSettings, available: Sequence[Device]) -> list[tuple[str, ...]]:
    """Return the device names of each replica: equal shares, in order, of `settings.devices` or of llama.cpp's choice.

    A single replica without --device and --rpc has (), for llama.cpp to choose. Without a GPU each replica has the CPU.
    Raises UsageError for unavailable names, and if the devices cannot be shared equally.
    """
    if settings.replicas == 1:
        # llama.cpp would choose the servers' devices too, but without telling their names.
        return [named(settings.devices or (chosen(available) if settings.rpc else ()), available)]
    names = [named((name,), available)[0] for name in settings.devices] or list(chosen(available)) or [CPU]
    if names == [CPU]:
        return [(CPU,)] * settings.replicas
    each, left = divmod(len(names), settings.replicas)
    if left or not each:
        what = f"--replicas {settings.replicas} cannot share {', '.join(names)} evenly"
        raise UsageError(what, "name the same number of devices for each replica: --device CUDA0,CUDA1")
    return [named(names[start : start + each], available) for start in range(0, len(names), each)]


def named(names: Sequence[str], available: Sequence[Device]) -> tuple[str, ...]:
    """Return `names` in ggml's spelling. Raises UsageError if one is unknown or repeated, or CPU is one of several."""
    known = {device.name.lower(): device.name for device in available if device.is_gpu or device.name == CPU}
    if unknown := [name for name in names if name.lower() not in known]:
        there = ", ".join(known.values())
        raise UsageError(f"there is no device {unknown[0]!r}", f"there is {there}; --rpc adds RPC0 ..")
    spelled = tuple(known[name.lower()] for name in names)
    if len(set(spelled)) < len(spelled) or (CPU in spelled and len(spelled) > 1):
        what = f"one copy of the model cannot have {'+'.join(spelled)}"
        raise UsageError(what, f"name each device once, or only {CPU}; with -ngl N the other layers are on the {CPU}")
    return spelled


def chosen(available: Sequence[Device]) -> tuple[str, ...]:
    """Return the names of the devices that llama.cpp uses without --device, () for the CPU alone.

    They are all RPC devices, then this machine's GPUs; if its GPUs are all integrated, only the first. Source:
    `llama_prepare_model_devices` in the llama.cpp of llama-cpp-python 0.3.36.
    """
    cards = [device for device in available if device.is_gpu]
    remote = [device.name for device in cards if device.name.startswith(RPC)]
    local = [device for device in cards if not device.name.startswith(RPC)]
    own = [device.name for device in local if not device.is_integrated]
    return tuple(remote + (own or [device.name for device in local[:1]]))


def devices(*, memory: bool = True) -> list[Device]:
    """Return all devices in llama.cpp's order. `memory`: fill in `free` and `total`, which starts GPU drivers."""
    start()
    found = []
    for handle in map(ggml.ggml_backend_dev_get, range(ggml.ggml_backend_dev_count())):
        kind = ggml.ggml_backend_dev_type(handle)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if memory:
            ggml.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
        name, description = ggml.ggml_backend_dev_name(handle), ggml.ggml_backend_dev_description(handle)
        is_gpu, is_integrated = kind in (GPU, INTEGRATED), kind == INTEGRATED
        found.append(Device(name.decode(), description.decode(), is_gpu, free.value, total.value, is_integrated))
    return found


def offloads(settings: ModelSettings) -> bool:
    """Return whether a model with these settings computes on a GPU, here or on an RPC server."""
    names = [name.upper() for name in settings.devices or chosen(devices(memory=False))]
    return settings.gpu_layers != 0 and names not in ([], [CPU])


def apply_placement(parameters: Any, settings: ModelSettings) -> list[object]:
    """Write layers and devices into llama_model_params; return the arrays to keep alive until the model is loaded.

    llama.cpp's list of devices never contains the CPU, which computes all other layers. For the CPU alone the list is
    empty, because with -ngl 0 a GPU in the list would still compute large batches.
    """
    parameters.n_gpu_layers = settings.gpu_layers
    parameters.split_mode = getattr(lib, f"LLAMA_SPLIT_MODE_{settings.split_mode.upper()}")
    parameters.main_gpu = settings.main_gpu
    arrays: list[object] = []
    if settings.tensor_split:
        shares = (ctypes.c_float * ggml.llama_max_devices())(*settings.tensor_split)
        parameters.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
        arrays.append(shares)
    if settings.devices:
        names = [name for name in settings.devices if name != CPU]
        handles = [ggml.ggml_backend_dev_by_name(name.encode()) for name in names]
        devices = (ctypes.c_void_p * (len(names) + 1))(*handles)
        parameters.devices = ctypes.addressof(devices)
        arrays.append(devices)
        if not names:
            parameters.n_gpu_layers = 0
    return arrays


def version_lines() -> list[str]:
    """Return lines of text for a user about llama.cpp's version, its build and each device."""
    start()
    features = lib.llama_print_system_info().decode("utf-8", "replace").strip()
    return [f"llama-cpp-python {version()}", features, *(f"device {device.words}" for device in devices())]

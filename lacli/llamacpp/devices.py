"""The devices of this machine: names, memory, how a model is placed on them, and the processor's cores."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings, Placement, ReplicaSettings, SplitMode
from lacli.text.format import counted

CPU = "CPU"
"""ggml's name of the processor, as a backend and as a device."""

RPC = "RPC"
"""What the names of other machines' devices begin with."""

MOST_DEVICES = 16
"""Devices that llama.cpp 0.3.36 splits a model between: `llama_max_devices`, and its limit of -sm tensor."""


class Device(NamedTuple):
    """What llama.cpp can compute on: ggml's name of it ("CPU", "CUDA0"), what it is, whether it is a GPU.

    free, total: bytes of its memory; 0 where ggml does not say. is_integrated: it shares the processor's memory.
    """

    name: str
    description: str
    is_gpu: bool
    free: int = 0
    total: int = 0
    is_integrated: bool = False


def placements(wanted: ReplicaSettings, loading: ModelSettings, found: Sequence[Device]) -> tuple[Placement, ...]:
    """Where each copy of the model computes, at least one; -sm, -ts and -mg hold for every copy.

    Raises UsageError for unknown names, for more identical devices than there are, and for contradictions.
    """
    own = loading.placement.devices
    if wanted.groups and own:
        raise UsageError("--device and --replicas both name devices", "--replicas A+B,C+D names those of every copy")
    groups: tuple[tuple[str, ...], ...] = (own,)
    if wanted.groups:
        groups = tuple(named(group, found, "--replicas") for group in wanted.groups)
    elif wanted.count > 1:
        groups = _alike(wanted.count, named(own, found), found)
    elif wanted.rpc and not own:
        groups = (chosen(found),)
    copies = [replace(loading, placement=replace(loading.placement, devices=group)) for group in groups]
    whose = [f"the copy on {'+'.join(group)}" if len(groups) > 1 else "the model" for group in groups]
    return tuple(settled(copy, found, name).placement for copy, name in zip(copies, whose, strict=True))


def settled(loading: ModelSettings, found: Sequence[Device], whose: str = "the model") -> ModelSettings:
    """The settings with devices as ggml spells them. Raises UsageError for what the devices found cannot do.

    whose: what the error calls the copy of these settings.
    """
    devices = named(loading.placement.devices, found)
    loading = replace(loading, placement=replace(loading.placement, devices=devices))
    _check_split(loading, offloading(loading.placement, found), whose)
    return loading


def named(names: Sequence[str], found: Sequence[Device], flag: str = "--device") -> tuple[str, ...]:
    """The devices of one copy as ggml spells their names. Raises UsageError for a name that there is not."""
    known = {device.name.lower(): device.name for device in found if device.is_gpu or device.name == CPU}
    for name in names:
        if name.lower() not in known:
            raise UsageError(f"{flag}: there is no device {name!r}", _there_is(name, known.values()))
    spelled = tuple(known[name.lower()] for name in names)
    if len(set(spelled)) < len(spelled):
        twice = next(name for name in spelled if spelled.count(name) > 1)
        raise UsageError(f"{flag}: one copy of the model has {twice} twice", "name it once")
    if CPU in spelled and len(spelled) > 1:
        raise UsageError(
            f"{flag}: {CPU} stands alone, and not with {next(name for name in spelled if name != CPU)}",
            "-ngl N leaves the rest of the layers to the processor",
        )
    return spelled


def chosen(found: Sequence[Device]) -> tuple[str, ...]:
    """The devices that llama.cpp takes when none are named: RPC's first, then GPUs, integrated ones for want of others.

    Source: llama.cpp 0.3.36, `llama_prepare_model_devices`.
    """
    cards = [device for device in found if device.is_gpu]
    remote = [device.name for device in cards if device.name.startswith(RPC)]
    local = [device for device in cards if not device.name.startswith(RPC)]
    own = [device.name for device in local if not device.is_integrated]
    shared = [device.name for device in local if device.is_integrated and _backend(device) == _backend(local[0])]
    return tuple(remote + (own or shared))


def offloading(placement: Placement, found: Sequence[Device]) -> tuple[str, ...]:
    """The devices that layers can go to; none where only the processor computes."""
    devices = placement.devices or chosen(found)
    return () if [name.upper() for name in devices] == [CPU] else devices


def _check_split(loading: ModelSettings, devices: tuple[str, ...], whose: str) -> None:
    """Raise UsageError where llama.cpp would refuse that number of devices, or take no account of a flag."""
    placement = loading.placement
    there = counted(len(devices), "device") if devices else "no GPU"
    if (several := len(placement.tensor_split)) > len(devices):
        raise UsageError(f"-ts has {counted(several, 'proportion')}, and {whose} has {there}", _numbered(devices))
    if placement.main_gpu >= max(len(devices), 1):
        raise UsageError(f"-mg is {placement.main_gpu}, and {whose} has {there}", _numbered(devices))
    tensors = placement.split_mode == "tensor"
    if len(devices) > MOST_DEVICES and (tensors or several):
        flag = "-sm tensor" if tensors else "-ts"
        raise UsageError(f"{flag} is for at most {MOST_DEVICES} devices, and there are {len(devices)}", "--device A,B")
    if tensors and not devices:
        raise UsageError("-sm tensor splits a model between GPUs", _numbered(devices))
    if tensors and loading.flash_attention == "off":
        raise UsageError("-sm tensor needs flash attention", "leave -fa off out")


def _alike(count: int, own: tuple[str, ...], found: Sequence[Device]) -> tuple[tuple[str, ...], ...]:
    """The first `count` identical devices, of those in `own` or of all; the CPU when there is no GPU."""
    cards = [device for device in found if (device.name in own if own else device.is_gpu)]
    if not cards or own == (CPU,):
        return ((CPU,),) * count
    kinds: dict[tuple[str, str, int], list[str]] = {}
    usable = _one_of_each_server(cards)
    for card in usable:
        kinds.setdefault(_kind(card), []).append(card.name)
    for names in kinds.values():
        if len(names) >= count:
            return tuple((name,) for name in names[:count])
    there = ", ".join(f"{card.name} ({card.description.strip()})" for card in cards)
    raise UsageError(
        f"--replicas {count}: there are not {count} devices alike, there is {there}",
        _names_instead(count, usable, named_by_user=bool(own)),
    )


def _one_of_each_server(cards: Sequence[Device]) -> list[Device]:
    """Devices that copies of their own can have at the same time: an RPC server serves one client at a time."""
    first = {card.description: card.name for card in reversed(cards) if _backend(card) == RPC}
    return [card for card in cards if _backend(card) != RPC or first[card.description] == card.name]


def _names_instead(count: int, usable: Sequence[Device], *, named_by_user: bool) -> str:
    """What can be typed for `count` copies on unlike devices; only local devices can have several copies."""
    remote = [card.name for card in usable if _backend(card) == RPC]
    local = [card.name for card in usable if _backend(card) != RPC] or [CPU]
    names = ",".join((local + remote + local * count)[:count])
    without = " without --device" if named_by_user else ""
    another = "; or start another server: lacli rpc-server" if remote else ""
    return f"names take any: --replicas {names}{without}{another}"


def _kind(device: Device) -> tuple[str, str, int]:
    """What devices alike have in common; of another machine's only the memory is known."""
    backend = _backend(device)
    return backend, "" if backend == RPC else device.description, device.total


def _backend(device: Device) -> str:
    return device.name.rstrip("0123456789")


def _numbered(devices: Sequence[str]) -> str:
    """The devices as -mg and -ts count them."""
    if not devices:
        return "the processor alone computes"
    return "in this order: " + ", ".join(f"{number} {name}" for number, name in enumerate(devices))


def _there_is(name: str, known: Iterable[str]) -> str:
    names = list(known)
    if name.upper().startswith(RPC) and not any(each.startswith(RPC) for each in names):
        return "RPC0, RPC1, .. are devices of --rpc HOST:PORT, which lacli run and chat have"
    return f"there is {', '.join(names)}"


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


def apply_placement(parameters: Any, settings: ModelSettings, ggml: ctypes.CDLL) -> list[object]:
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


SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def physical_cores() -> int:
    """Physical cores open to this process; logical ones where the system does not tell them apart."""
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):
            return len({Path(SIBLINGS.format(core)).read_text() for core in os.sched_getaffinity(0)})
    return logical_cores()


def logical_cores() -> int:
    """Threads that cores open to this process can run at once; all of the machine's where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def with_threads(settings: ModelSettings) -> ModelSettings:
    """The settings with both numbers of threads decided."""
    threads = settings.threads or physical_cores()
    return replace(settings, threads=threads, threads_batch=settings.threads_batch or threads)


def shared_threads(settings: ModelSettings, replicas_on_cpu: int) -> ModelSettings:
    """The settings of one copy on the processor: -t is for all copies there, at least one thread each.

    replicas_on_cpu: 0 and 1 leave all threads to it; copies on GPUs do not count.
    """
    settings = with_threads(settings)
    copies = max(replicas_on_cpu, 1)
    each = max(settings.threads // copies, 1)
    return replace(settings, threads=each, threads_batch=max(settings.threads_batch // copies, 1))


KIB = 1024

CGROUP = Path("/sys/fs/cgroup")


@contextmanager
def bounded_by_free_memory() -> Iterator[None]:
    """Refuse what is asked for beyond the free memory, on Linux; the limit before comes back afterwards."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + free_memory()
    except (ImportError, OSError, LookupError, ValueError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (min([most, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def peak_memory() -> float:
    """MiB that this process has had in memory at most; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0.0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (KIB * KIB if sys.platform == "darwin" else KIB)


def free_memory() -> int:
    """Bytes that Linux could hand out without killing a process, swap included."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {name: int(count) for name, count, *_ in lines}
    free = (kib["MemAvailable:"] + kib["SwapFree:"]) * KIB
    with suppress(OSError, ValueError):  # a container's own limit, where there is one
        used = int((CGROUP / "memory.current").read_text())
        free = min(free, int((CGROUP / "memory.max").read_text()) - used)
    return free

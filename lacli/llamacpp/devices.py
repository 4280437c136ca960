"""Devices: their names and memory, the placement of models on them, and the processor's cores and memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings, Placement, ReplicaSettings
from lacli.text.format import counted

CPU = "CPU"
"""ggml's name of the processor, as a backend and as a device."""

RPC = "RPC"
"""The beginning of the names of other machines' devices."""

MOST_DEVICES = 16
"""Devices for one model, at most, in llama.cpp 0.3.36: `llama_max_devices`, and its limit of -sm tensor."""


class Device(NamedTuple):
    """A device of llama.cpp's: ggml's name ("CPU", "CUDA0"), its make, and its kind.

    `free`, `total`: bytes of its memory; 0 where ggml does not say. `is_integrated`: it shares the processor's memory.
    """

    name: str
    description: str
    is_gpu: bool
    free: int = 0
    total: int = 0
    is_integrated: bool = False


def placements(
    wanted: ReplicaSettings, model_settings: ModelSettings, found: Sequence[Device]
) -> tuple[Placement, ...]:
    """The placement of each copy of the model, at least one; -sm, -ts and -mg hold for every copy.

    Raises UsageError for unknown names, for more identical devices than there are, and for contradictions.
    """
    own = model_settings.placement.devices
    if wanted.groups and own:
        raise UsageError("--device and --replicas both name devices", "--replicas A+B,C+D names those of every copy")
    groups: tuple[tuple[str, ...], ...] = (own,)
    if wanted.groups:
        groups = tuple(named(group, found, "--replicas") for group in wanted.groups)
    elif wanted.count > 1:
        groups = _identical(wanted.count, named(own, found), found)
    elif wanted.rpc and not own:
        groups = (chosen(found),)
    placed = []
    for group in groups:
        copy = replace(model_settings, placement=replace(model_settings.placement, devices=group))
        whose = f"the copy on {'+'.join(group)}" if len(groups) > 1 else "the model"
        placed.append(settled(copy, found, whose).placement)
    return tuple(placed)


def settled(model_settings: ModelSettings, found: Sequence[Device], whose: str = "the model") -> ModelSettings:
    """The settings with devices as ggml spells them. Raises UsageError if the devices found cannot follow them.

    `whose`: the copy's name in errors.
    """
    devices = named(model_settings.placement.devices, found)
    model_settings = replace(model_settings, placement=replace(model_settings.placement, devices=devices))
    _check_split(model_settings, offloading(model_settings.placement, found), whose)
    return model_settings


def named(names: Sequence[str], found: Sequence[Device], flag: str = "--device") -> tuple[str, ...]:
    """The devices of one copy as ggml spells them. Raises UsageError for unknown, repeated and mixed names."""
    known = {device.name.lower(): device.name for device in found if device.is_gpu or device.name == CPU}
    for name in names:
        if name.lower() not in known:
            hint = f"there is {', '.join(known.values())}"
            if name.upper().startswith(RPC) and not any(each.startswith(RPC) for each in known.values()):
                hint = "RPC0, RPC1, .. are devices of --rpc HOST:PORT, which lacli run and chat have"
            raise UsageError(f"{flag}: there is no device {name!r}", hint)
    spelled = tuple(known[name.lower()] for name in names)
    if len(set(spelled)) < len(spelled):
        twice = next(name for name in spelled if spelled.count(name) > 1)
        raise UsageError(f"{flag}: one copy of the model has {twice} twice", "name it once")
    if CPU in spelled and len(spelled) > 1:
        other = next(name for name in spelled if name != CPU)
        hint = "-ngl N leaves the rest of the layers to the processor"
        raise UsageError(f"{flag}: {CPU} stands alone, and not with {other}", hint)
    return spelled


def chosen(found: Sequence[Device]) -> tuple[str, ...]:
    """llama.cpp's choice without --device: RPC's devices, then GPUs, or integrated ones if there are no others.

    Source: `llama_prepare_model_devices` of llama.cpp 0.3.36.
    """
    cards = [device for device in found if device.is_gpu]
    remote = [device.name for device in cards if device.name.startswith(RPC)]
    local = [device for device in cards if not device.name.startswith(RPC)]
    own = [device.name for device in local if not device.is_integrated]
    shared = [device.name for device in local if device.is_integrated and _backend(device) == _backend(local[0])]
    return tuple(remote + (own or shared))


def offloading(placement: Placement, found: Sequence[Device]) -> tuple[str, ...]:
    """The devices that layers can go to; () if only the processor computes."""
    devices = placement.devices or chosen(found)
    return () if [name.upper() for name in devices] == [CPU] else devices


def _check_split(model_settings: ModelSettings, devices: tuple[str, ...], whose: str) -> None:
    """Raise UsageError if llama.cpp would refuse that number of devices, or ignore a flag."""
    placement = model_settings.placement
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
    if tensors and model_settings.flash_attention == "off":
        raise UsageError("-sm tensor needs flash attention", "leave -fa off out")


def _identical(count: int, own: tuple[str, ...], found: Sequence[Device]) -> tuple[tuple[str, ...], ...]:
    """The first `count` identical devices, of those in `own` or of all; the CPU when there is no GPU."""
    cards = [device for device in found if (device.name in own if own else device.is_gpu)]
    if not cards or own == (CPU,):
        return ((CPU,),) * count
    # An RPC server serves one client at a time, so only its first device can have a copy.
    first = {card.description: card.name for card in reversed(cards) if _backend(card) == RPC}
    usable = [card for card in cards if _backend(card) != RPC or first[card.description] == card.name]
    kinds: dict[tuple[str, str, int], list[str]] = {}
    for card in usable:
        # The description of another machine's device is its address; only its memory is known.
        described = "" if _backend(card) == RPC else card.description
        kinds.setdefault((_backend(card), described, card.total), []).append(card.name)
    for names in kinds.values():
        if len(names) >= count:
            return tuple((name,) for name in names[:count])
    there = ", ".join(f"{card.name} ({card.description.strip()})" for card in cards)
    raise UsageError(
        f"--replicas {count}: there are not {count} devices alike, there is {there}",
        "names take any, one device of a server: --replicas A,B without --device",
    )


def _backend(device: Device) -> str:
    return device.name.rstrip("0123456789")


def _numbered(devices: Sequence[str]) -> str:
    """The devices in the order of -mg and -ts."""
    if not devices:
        return "the processor alone computes"
    return "in this order: " + ", ".join(f"{number} {name}" for number, name in enumerate(devices))


SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def physical_cores() -> int:
    """Physical cores open to this process; logical ones on systems that do not tell them apart."""
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):
            return len({Path(SIBLINGS.format(core)).read_text() for core in os.sched_getaffinity(0)})
    return logical_cores()


def logical_cores() -> int:
    """Logical cores open to this process; all of the machine's on systems that do not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def beyond_cores(threads: int) -> str:
    """Say that `threads` are more than the cores open to this process; "" where they are not."""
    cores = logical_cores()
    return f"-t {threads} is more than the {counted(cores, 'core')} here" if threads > cores else ""


def with_threads(settings: ModelSettings) -> ModelSettings:
    """The settings with both numbers of threads decided."""
    threads = settings.threads or physical_cores()
    return replace(settings, threads=threads, threads_batch=settings.threads_batch or threads)


def shared_threads(settings: ModelSettings, replicas_on_cpu: int) -> ModelSettings:
    """Share both numbers of threads between `replicas_on_cpu` copies, at least one each; 0 and 1 share nothing."""
    settings = with_threads(settings)
    copies = max(replicas_on_cpu, 1)
    shares = {name: max(getattr(settings, name) // copies, 1) for name in ("threads", "threads_batch")}
    # The processor seconds of one copy are not known beside another.
    return replace(settings, **shares, gives_way=settings.gives_way and copies == 1)


KIB = 1024

CGROUP = Path("/sys/fs/cgroup")


@contextmanager
def bounded_by_free_memory() -> Iterator[None]:
    """Refuse allocations beyond the free memory in this block, on Linux."""
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
    """The most MiB that this process has had in memory; 0 on systems that do not say."""
    try:
        import resource
    except ImportError:
        return 0.0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (KIB * KIB if sys.platform == "darwin" else KIB)


def total_memory() -> int:
    """Bytes of the processor's memory, or of a container's share of it; 0 on systems that do not say."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
    with suppress(OSError, ValueError):
        total = min(total, int((CGROUP / "memory.max").read_text()))
    return max(total, 0)


def free_memory() -> int:
    """Bytes that Linux can give out without killing a process, with swap."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {name: int(count) for name, count, *_ in lines}
    free = (kib["MemAvailable:"] + kib["SwapFree:"]) * KIB
    with suppress(OSError, ValueError):  # a container's own limit, where there is one
        used = int((CGROUP / "memory.current").read_text())
        free = min(free, int((CGROUP / "memory.max").read_text()) - used)
    return free

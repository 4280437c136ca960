"""Devices: their names and memory, the placement of models on them, and the processor's cores and memory."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings, Placement, ReplicaSettings

CPU = "CPU"
"""ggml's name of the processor, as a backend and as a device."""

RPC = "RPC"
"""The beginning of the names of other machines' devices."""


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
    """Return the placement of each copy of the model, at least one; -sm, -ts and -mg hold for every copy.

    Raises UsageError for unknown names, for more identical devices than there are, and for contradictions.
    """
    own = model_settings.placement.devices
    if wanted.groups and own:
        raise UsageError("--device and --replicas both name devices", "--replicas A+B,C+D names those of every copy")
    groups: tuple[tuple[str, ...], ...] = (own,)
    if wanted.groups:
        groups = wanted.groups
    elif wanted.count > 1:
        groups = _identical(wanted.count, named(own, found), found)
    elif wanted.rpc and not own:
        groups = (chosen(found),)
    copies = (replace(model_settings, placement=replace(model_settings.placement, devices=group)) for group in groups)
    return tuple(settled(copy, found).placement for copy in copies)


def settled(model_settings: ModelSettings, found: Sequence[Device]) -> ModelSettings:
    """Return the settings with devices as ggml spells them. Raises UsageError if the devices cannot follow them."""
    placement = replace(model_settings.placement, devices=named(model_settings.placement.devices, found))
    devices = offloading(placement, found)
    there = f"the model has {'+'.join(devices) or 'no GPU'}"
    # llama.cpp would ignore the one and read beyond the other.
    if placement.main_gpu >= max(len(devices), 1) or len(placement.tensor_split) > len(devices):
        raise UsageError(f"-mg {placement.main_gpu} and -ts are about several devices, and {there}", "leave them out")
    if placement.split_mode == "tensor" and (not devices or model_settings.flash_attention == "off"):
        raise UsageError(f"-sm tensor needs GPUs and flash attention, and {there}", "leave -sm or -fa off out")
    return replace(model_settings, placement=placement)


def named(names: Sequence[str], found: Sequence[Device]) -> tuple[str, ...]:
    """Return the devices of one copy as ggml spells them. Raises UsageError for unknown, repeated and mixed names."""
    known = {device.name.lower(): device.name for device in found if device.is_gpu or device.name == CPU}
    for name in names:
        if name.lower() not in known:
            raise UsageError(
                f"there is no device {name!r}", f"there is {', '.join(known.values())}; --rpc adds RPC0 .."
            )
    spelled = tuple(known[name.lower()] for name in names)
    if len(set(spelled)) < len(spelled) or (CPU in spelled and len(spelled) > 1):
        what = f"one copy of the model cannot have {'+'.join(spelled)}"
        raise UsageError(what, f"name each device once, and {CPU} alone: -ngl N leaves the other layers to it")
    return spelled


def chosen(found: Sequence[Device]) -> tuple[str, ...]:
    """Return llama.cpp's choice without --device: RPC's devices, then GPUs, or integrated ones if there are no others.

    Source: `llama_prepare_model_devices` of llama.cpp 0.3.36.
    """
    cards = [device for device in found if device.is_gpu]
    remote = [device.name for device in cards if device.name.startswith(RPC)]
    local = [device for device in cards if not device.name.startswith(RPC)]
    own = [device.name for device in local if not device.is_integrated]
    shared = [device.name for device in local if device.is_integrated and _backend(device) == _backend(local[0])]
    return tuple(remote + (own or shared))


def offloading(placement: Placement, found: Sequence[Device]) -> tuple[str, ...]:
    """Return the devices that layers can go to; () if only the processor computes."""
    devices = placement.devices or chosen(found)
    return () if [name.upper() for name in devices] == [CPU] else devices


def _identical(count: int, own: tuple[str, ...], found: Sequence[Device]) -> tuple[tuple[str, ...], ...]:
    """Return the first `count` identical devices, of those in `own` or of all; the CPU when there is no GPU."""
    cards = [device for device in found if (device.name in own if own else device.is_gpu)]
    if not cards or own == (CPU,):
        return ((CPU,),) * count
    kinds = defaultdict[tuple[str, str, int], list[str]](list)
    for card in cards:
        # The description of another machine's device is its address; only its memory is known.
        described = "" if _backend(card) == RPC else card.description
        kinds[_backend(card), described, card.total].append(card.name)
    for names in kinds.values():
        if len(names) >= count:
            return tuple((name,) for name in names[:count])
    there = ", ".join(f"{card.name} ({card.description.strip()})" for card in cards)
    raise UsageError(f"--replicas {count}: there are not {count} devices alike, there is {there}", "--replicas A,B")


def _backend(device: Device) -> str:
    return device.name.rstrip("0123456789")


SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def physical_cores() -> int:
    """Return the physical cores open to this process; logical ones on systems that do not tell them apart."""
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):
            return len({Path(SIBLINGS.format(core)).read_text() for core in os.sched_getaffinity(0)})
    return logical_cores()


def logical_cores() -> int:
    """Return the logical cores open to this process; all of the machine's on systems that do not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def with_threads(settings: ModelSettings) -> ModelSettings:
    """Return the settings with both numbers of threads decided."""
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


def free_memory() -> int:
    """Return the bytes that Linux can give out without killing a process, with swap."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {name: int(count) for name, count, *_ in lines}
    free = (kib["MemAvailable:"] + kib["SwapFree:"]) * KIB
    with suppress(OSError, ValueError):  # a container's own limit, where there is one
        used = int((CGROUP / "memory.current").read_text())
        free = min(free, int((CGROUP / "memory.max").read_text()) - used)
    return free


def total_memory() -> int:
    """Return the bytes of the processor's memory, or of a container's share of it; 0 on systems that do not say."""
    total = 0
    with suppress(AttributeError, OSError, ValueError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        total = min(total, int((CGROUP / "memory.max").read_text()))
    return max(total, 0)


def peak_memory() -> float:
    """Return the most MiB that this process has had in memory; 0 on systems that do not say."""
    try:
        import resource
    except ImportError:
        return 0.0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (KIB * KIB if sys.platform == "darwin" else KIB)

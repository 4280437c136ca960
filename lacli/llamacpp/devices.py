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
from lacli.llamacpp.settings import ModelSettings

CPU = "CPU"
"""ggml's name of the processor, as a backend and as a device."""

RPC = "RPC"
"""The beginning of the names of other machines' devices."""

DIGITS = "0123456789"


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


def dealt(settings: ModelSettings, found: Sequence[Device]) -> list[tuple[str, ...]]:
    """Return the devices of each replica: those of `settings`, or all GPUs, dealt out evenly in their order.

    Raises UsageError for unknown names, and for a number of devices that cannot be dealt out.
    """
    if settings.replicas == 1:
        # The servers' devices are llama.cpp's own choice too, but it does not say which they are.
        return [named(settings.devices or (chosen(found) if settings.rpc else ()), found)]
    names = [named((name,), found)[0] for name in settings.devices] or list(chosen(found)) or [CPU]
    each, left = divmod(len(names), settings.replicas)
    if names == [CPU]:
        return [(CPU,)] * settings.replicas
    if left or not each:
        what = f"--replicas {settings.replicas} cannot share {', '.join(names)} evenly"
        raise UsageError(what, "name as many devices for each: --device CUDA0,CUDA1")
    return [named(names[start : start + each], found) for start in range(0, len(names), each)]


def named(names: Sequence[str], found: Sequence[Device]) -> tuple[str, ...]:
    """Return the devices of one replica as ggml spells them. Raises UsageError for unknown and mixed names."""
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
    shared = [device.name for device in local if device.name.rstrip(DIGITS) == local[0].name.rstrip(DIGITS)]
    return tuple(remote + (own or shared))


def offloading(settings: ModelSettings, found: Sequence[Device]) -> tuple[str, ...]:
    """Return the devices that layers can go to; () if only the processor computes."""
    devices = settings.devices or chosen(found)
    return () if [name.upper() for name in devices] == [CPU] else devices


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


def with_threads(settings: ModelSettings, replicas_on_cpu: int = 1) -> ModelSettings:
    """Return the settings with both numbers of threads decided; replicas on the processor share them.

    Threads whose number nobody chose give way to other programs, if one replica has them all.
    """
    copies = max(replicas_on_cpu, 1)
    threads = settings.threads or physical_cores()
    is_free = not settings.threads and not settings.threads_batch
    return replace(
        settings,
        threads=max(threads // copies, 1),
        threads_batch=max((settings.threads_batch or threads) // copies, 1),
        gives_way=(settings.gives_way or is_free) and copies == 1,
    )


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

"""This machine without llama.cpp loaded: devices and how replicas share them, cores, memory, and the build."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.stats import MIN_CORE_SHARE

CPU = "CPU"
"""ggml's name of the processor, as a backend and as a device."""

RPC = "RPC"
"""The beginning of the names of other machines' devices."""

GIB = 2**30

CGROUP = Path("/sys/fs/cgroup")


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

    @property
    def words(self) -> str:
        """Its name, description and memory: CUDA0: NVIDIA H200, 138.2 of 139.8 GiB free."""
        # ggml calls all of the processor's memory free.
        free = f"{self.free / GIB:.1f} of " if self.is_gpu else ""
        memory = f", {free}{self.total / GIB:.1f} GiB{' free' if free else ''}" if self.total else ""
        return f"{self.name}: {self.description.strip()}{memory}"


def dealt(settings: ModelSettings, found: Sequence[Device]) -> list[tuple[str, ...]]:
    """Return the devices of each replica: those of `settings`, or all GPUs, dealt out evenly in their order.

    Raises UsageError for unknown names, and for a number of devices that cannot be dealt out.
    """
    if settings.replicas == 1:
        # The servers' devices are llama.cpp's own choice too, but it does not say which they are.
        return [named(settings.devices or (chosen(found) if settings.rpc else ()), found)]
    names = [named((name,), found)[0] for name in settings.devices] or list(chosen(found)) or [CPU]
    if names == [CPU]:
        return [(CPU,)] * settings.replicas
    each, left = divmod(len(names), settings.replicas)
    if left or not each:
        what = f"--replicas {settings.replicas} cannot share {', '.join(names)} evenly"
        raise UsageError(what, "name as many devices for each: --device CUDA0,CUDA1")
    return [named(names[start : start + each], found) for start in range(0, len(names), each)]


def named(names: Sequence[str], found: Sequence[Device]) -> tuple[str, ...]:
    """Return the devices of one replica as ggml spells them. Raises UsageError for unknown and mixed names."""
    known = {device.name.lower(): device.name for device in found if device.is_gpu or device.name == CPU}
    if unknown := [name for name in names if name.lower() not in known]:
        there = ", ".join(known.values())
        raise UsageError(f"there is no device {unknown[0]!r}", f"there is {there}; --rpc adds RPC0 ..")
    spelled = tuple(known[name.lower()] for name in names)
    if len(set(spelled)) < len(spelled) or (CPU in spelled and len(spelled) > 1):
        what = f"one copy of the model cannot have {'+'.join(spelled)}"
        raise UsageError(what, f"name each device once, and {CPU} alone: -ngl N leaves the other layers to it")
    return spelled


def chosen(found: Sequence[Device]) -> tuple[str, ...]:
    """Return llama.cpp's choice without --device: RPC's devices, then GPUs, or an integrated one without any.

    Source: `llama_prepare_model_devices` of llama.cpp 0.3.36.
    """
    cards = [device for device in found if device.is_gpu]
    remote = [device.name for device in cards if device.name.startswith(RPC)]
    local = [device for device in cards if not device.name.startswith(RPC)]
    own = [device.name for device in local if not device.is_integrated]
    return tuple(remote + (own or [device.name for device in local[:1]]))


class Processor(NamedTuple):
    """The processor's name, and on Linux the flags of its instruction sets and other features."""

    name: str
    flags: tuple[str, ...] = ()


@cache
def processor() -> Processor:
    """Describe the processor, from /proc/cpuinfo where there is one."""
    try:
        first = Path("/proc/cpuinfo").read_text("utf-8", "replace").split("\n\n")[0]
    except OSError:
        return Processor(f"{platform.machine()} {platform.processor()}")
    said: dict[str, str] = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", first, re.MULTILINE))
    name = " ".join(said[field] for field in ("model name", "CPU part") if field in said)
    # x86 calls them flags, ARM calls them Features.
    return Processor(name, tuple(said.get("flags", said.get("Features", "")).split()))


def physical_cores() -> int:
    """Return the physical cores open to this process; all logical ones on systems that do not tell them apart."""
    with suppress(AttributeError, OSError):
        siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
        return len({Path(siblings.format(core)).read_text() for core in os.sched_getaffinity(0)})
    return os.cpu_count() or 1


def with_threads(settings: ModelSettings, replicas_on_cpu: int = 1) -> ModelSettings:
    """Return the settings with both numbers of threads decided; replicas on the processor share them.

    Threads whose number nobody chose give way to other programs, if one replica has them all.
    """
    copies = max(replicas_on_cpu, 1)
    threads = max(settings.threads, 0) or physical_cores()
    is_free = settings.threads <= 0 and settings.threads_batch <= 0
    return replace(
        settings,
        threads=max(threads // copies, 1),
        threads_batch=max((max(settings.threads_batch, 0) or threads) // copies, 1),
        gives_way=(settings.gives_way or is_free) and copies == 1,
    )


OBSERVED_S = 0.25
"""Seconds of decoding over which the threads' share of the cores is taken: a few steps of the 0.5B that wait."""

RETRY_S = 10.0
"""Seconds until all threads are tried again: a try that fails lasts OBSERVED_S or two."""


class ThreadsInUse:
    """The threads of the next decode: as many as had a core while all of them decoded, until all are tried again.

    A step is slow where it takes longer than its threads' processor seconds say. `count`: of the next decode.
    """

    def __init__(self, threads: int) -> None:
        self._all = self.count = threads
        self._seconds = self._core_s = self._until_s = 0.0

    def note(self, seconds: float, core_s: float, now_s: float) -> None:
        """Record a decode of `seconds` and `core_s` processor seconds that ended at `now_s`."""
        if self.count < self._all:
            if now_s >= self._until_s:
                self.count = self._all
            return
        self._seconds += seconds
        self._core_s += core_s
        if self._seconds < OBSERVED_S:
            return
        cores = self._core_s / self._seconds
        self._seconds = self._core_s = 0.0
        if cores < MIN_CORE_SHARE * self._all:
            self.count, self._until_s = max(int(cores), 1), now_s + RETRY_S


@contextmanager
def bounded_by_free_memory() -> Iterator[None]:
    """Refuse allocations beyond the free memory in this block, on Linux, which would kill the process later."""
    try:
        import resource

        statm, meminfo = Path("/proc/self/statm").read_text(), Path("/proc/meminfo").read_text()
    except (ImportError, OSError):
        yield
        return
    kib = {line.split()[0]: int(line.split()[1]) for line in meminfo.splitlines()}
    free = (kib["MemAvailable:"] + kib["SwapFree:"]) * 1024
    with suppress(OSError, ValueError):  # a container's own limit, where there is one
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, limit - used)
    most = int(statm.split()[0]) * resource.getpagesize() + free
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *(each for each in (soft, hard) if each >= 0)]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


REQUIREMENT = "llama-cpp-python>=0.3.36,<0.4"
"""The versions of pyproject.toml."""

PYTHON = sys.executable or "python3"
"""This Python; empty in sys where a program embeds it."""

CMAKE = {
    "cuda": "-DGGML_CUDA=on",
    "vulkan": "-DGGML_VULKAN=on",
    "metal": "-DGGML_METAL=on",
    "rpc": "-DGGML_RPC=on",
    "native": "-DGGML_NATIVE=on",
    "no-amx": "-DCMAKE_CXX_FLAGS=-mno-amx-int8",
}
"""CMake's arguments for a kind of build: a backend, all instructions of this processor, or no AMX."""


def gpu_kind() -> str:
    """Return the kind of build for the GPU of this machine, whether the installed one uses it or not; "" without."""
    if platform.system() == "Darwin":
        return "metal" if platform.machine() == "arm64" else ""
    if Path("/dev/nvidia0").exists():
        return "cuda"
    return "vulkan" if Path("/dev/kfd").exists() else ""


def sound_kind() -> str:
    """Return the build to try after one that fails here: without AMX if the processor has it, else a native one.

    GCC 12.2 makes the set-up of ggml's AMX kernels crash (llama.cpp issue 20824); GCC 12.4, 13.3, 14 and clang do not.
    """
    return "no-amx" if "amx_int8" in processor().flags else "native"


def rebuild_command(kind: str = "") -> str:
    """Return the shell's command that builds llama.cpp again for this Python and GPU, of a further `kind`."""
    arguments = " ".join(CMAKE[each] for each in dict.fromkeys((gpu_kind(), kind)) if each)
    pip = f"{shlex.quote(PYTHON)} -m pip install --force-reinstall --no-cache-dir '{REQUIREMENT}'"
    return f'CMAKE_ARGS="{arguments}" {pip}' if arguments else pip


def build_files() -> list[tuple[str, int, int]]:
    """Identify this build: each library's name, its bytes and the time of its last change in nanoseconds."""
    spec, found = find_spec("llama_cpp"), []
    package = Path(spec.origin).parent if spec and spec.origin else Path()
    # llama_cpp reads this variable too, and the build described must be the one that it loads.
    for path in sorted(Path(os.environ.get("LLAMA_CPP_LIB_PATH") or package / "lib").glob("*")):
        if re.search(r"\.(so|dylib|dll)\b", path.name) and path.exists():
            found.append((path.name, path.stat().st_size, path.stat().st_mtime_ns))
    return found

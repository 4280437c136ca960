"""This machine, described without llama.cpp: processor, cores, free memory; and how many threads should decode."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from lacli.llamacpp.settings import ModelSettings
from lacli.stats import MIN_CORE_SHARE

CGROUP, SYSCTL = Path("/sys/fs/cgroup"), "/usr/sbin/sysctl"


class Processor(NamedTuple):
    """The processor's name, and on Linux the flags of its instruction sets and other features; () elsewhere."""

    name: str
    flags: tuple[str, ...] = ()


@cache
def processor() -> Processor:
    """Return the processor's description, on Linux from /proc/cpuinfo."""
    try:
        first = Path("/proc/cpuinfo").read_text("utf-8", "replace").split("\n\n")[0]
    except OSError:
        return Processor(f"{platform.machine()} {platform.processor()}")
    said: dict[str, str] = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", first, re.MULTILINE))
    name = " ".join(said[field] for field in ("model name", "CPU part") if field in said)
    # x86 calls them flags, ARM calls them Features.
    return Processor(name, tuple(said.get("flags", said.get("Features", "")).split()))


def physical_cores() -> int:
    """Return how many physical cores this process may use; logical cores if the system names no physical cores."""
    cores = 0
    with suppress(AttributeError, OSError):
        siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
        cores = len({Path(siblings.format(core)).read_text() for core in os.sched_getaffinity(0)})
    return max(int(min(cores or mac_cores() or os.cpu_count() or 1, cgroup_cores())), 1)


def mac_cores() -> int:
    """Return how many fast cores a Mac has; 0 elsewhere. Threads on its efficiency cores would hold up all others."""
    for name in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
        with suppress(OSError, ValueError):
            return int(subprocess.run([SYSCTL, "-n", name], capture_output=True).stdout)
    return 0


def cgroup_cores() -> float:
    """Return how many cores Linux's cpu.max allows this process, by its cgroup and all parents; inf without a limit."""
    cores = inf
    with suppress(OSError):
        own = CGROUP / Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
        for folder in (own, *own.parents):
            with suppress(OSError, ValueError):  # "max" is no limit
                quota, period = map(int, (folder / "cpu.max").read_text().split())
                cores = min(cores, quota / period)
    return cores


def with_threads(settings: ModelSettings, replicas_on_cpu: int = 1) -> ModelSettings:
    """Return the settings with `threads` and `threads_batch` decided, at least 1, and divided among the replicas.

    `gives_way` becomes true for a single replica if neither number was set; a later call keeps it true.
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
"""Seconds of decoding after which the threads' share of the cores is judged: a few slow steps of a 0.5B model."""

RETRY_S = 10.0
"""Seconds until all threads are tried again. A try that fails lasts once or twice OBSERVED_S."""


class ThreadsInUse:
    """Decides how many threads the next decode uses, its `count`: fewer while other programs take the cores.

    If all threads together got less than MIN_CORE_SHARE of their cores, `count` becomes the number of cores they got,
    for RETRY_S seconds.
    """

    def __init__(self, threads: int) -> None:
        self._all = self.count = threads
        self._seconds = self._core_s = self._until_s = 0.0

    def note(self, seconds: float, core_s: float, now_s: float) -> None:
        """Record a decode that took `seconds` and `core_s` processor seconds, and ended at `now_s` (perf_counter)."""
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


ONE_LIMIT = Lock()
"""Held while the memory is limited. Otherwise a second block could restore the limit of the first, for good."""


@contextmanager
def bounded_by_free_memory() -> Iterator[None]:
    """On Linux, make allocations beyond the free memory fail in this block, so that the process is not killed later."""
    try:
        import resource

        statm, meminfo = Path("/proc/self/statm").read_text(), Path("/proc/meminfo").read_text()
    except (ImportError, OSError):
        yield
        return
    kib = {line.split()[0]: int(line.split()[1]) for line in meminfo.splitlines()}
    free = (kib["MemAvailable:"] + kib["SwapFree:"]) * 1024
    with suppress(OSError, ValueError):  # a container's own limit, if any
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, limit - used)
    most = int(statm.split()[0]) * resource.getpagesize() + free
    with ONE_LIMIT:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (min([most, *(each for each in (soft, hard) if each >= 0)]), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

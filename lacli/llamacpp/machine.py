"""This machine without a library: its processor, its cores, the threads that compute, and the free memory."""

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
    """The processor's name, and on Linux the flags of its instruction sets and other features."""

    name: str
    flags: tuple[str, ...] = ()


@cache
def processor() -> Processor:
    """Describe the processor, on Linux from /proc/cpuinfo."""
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
    cores = 0
    with suppress(AttributeError, OSError):
        siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
        cores = len({Path(siblings.format(core)).read_text() for core in os.sched_getaffinity(0)})
    return max(int(min(cores or mac_cores() or os.cpu_count() or 1, cgroup_cores())), 1)


def mac_cores() -> int:
    """Return a Mac's physical cores without the efficiency cores, for which all others would wait; 0 elsewhere."""
    for name in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
        with suppress(OSError, ValueError):
            return int(subprocess.run([SYSCTL, "-n", name], capture_output=True).stdout)
    return 0


def cgroup_cores() -> float:
    """Return the cores that Linux's cpu.max allows this process's cgroup and its parents; inf without a limit."""
    cores = inf
    with suppress(OSError):
        own = CGROUP / Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
        for folder in (own, *own.parents):
            with suppress(OSError, ValueError):  # "max" is no limit
                quota, period = map(int, (folder / "cpu.max").read_text().split())
                cores = min(cores, quota / period)
    return cores


def with_threads(settings: ModelSettings, replicas_on_cpu: int = 1) -> ModelSettings:
    """Return the settings with both numbers of threads decided; replicas on the processor share them.

    If nobody chose a number and there is one replica, fewer threads decode while other programs are busy.
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
"""Seconds of decoding that show the threads' share of the cores: a few waiting steps of the 0.5B."""

RETRY_S = 10.0
"""Seconds until all threads are tried again: a try that fails lasts OBSERVED_S or two."""


class ThreadsInUse:
    """The threads of the next decode: as many as had a core while all of them decoded, until all are tried again.

    A step is slow if it takes longer than its threads' processor seconds. `count`: threads of the next decode.
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


ONE_LIMIT = Lock()
"""Held while the memory is limited: of two limits that overlap the second would put back the first one's."""


@contextmanager
def bounded_by_free_memory() -> Iterator[None]:
    """On Linux, refuse allocations beyond the free memory in this block; it would kill the process later."""
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

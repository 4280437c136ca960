"""This process's memory: its peak, and a bound while a context is made, so that one too large is an error and no crash.

Linux grants more memory than there is and kills whoever uses it. Below a limit of its own the process is refused
instead, and llama.cpp reports that like any other failure. Elsewhere nothing is bounded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
    """Bytes that Linux could hand out without killing anybody, swap included."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {name: int(count) for name, count, *_ in lines}
    free = (kib["MemAvailable:"] + kib["SwapFree:"]) * KIB
    with suppress(OSError, ValueError):  # a container's own limit, where there is one
        used = int((CGROUP / "memory.current").read_text())
        free = min(free, int((CGROUP / "memory.max").read_text()) - used)
    return free

"""How many threads to compute with when the user does not say: one per physical core this process may use, and how
copies of a model share them.

Two threads of one core share its arithmetic units, so more threads than cores slow llama.cpp down.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lacli.settings import ModelSettings

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
    """The settings of one of so many copies that compute on the processor: -t is for all of them, at least one each.

    replicas_on_cpu: 0 and 1 leave all threads to it; copies on GPUs do not count.
    """
    settings = with_threads(settings)
    copies = max(replicas_on_cpu, 1)
    each = max(settings.threads // copies, 1)
    return replace(settings, threads=each, threads_batch=max(settings.threads_batch // copies, 1))

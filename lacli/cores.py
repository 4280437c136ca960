"""How many threads to compute with when the user does not say: one per physical core this process may use.

Two threads of one core share its arithmetic units, so more threads than cores slow llama.cpp down.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from lacli.settings import ModelSettings

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def physical_cores() -> int:
    """Physical cores open to this process; logical ones where the system does not tell them apart."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    try:
        return len({Path(SIBLINGS.format(core)).read_text() for core in allowed})
    except OSError:
        return len(allowed)


def with_threads(settings: ModelSettings) -> ModelSettings:
    """The settings with both numbers of threads decided."""
    threads = settings.threads or physical_cores()
    return replace(settings, threads=threads, threads_batch=settings.threads_batch or threads)

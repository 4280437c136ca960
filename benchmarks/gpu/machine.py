"""What a machine is, as its results name it: card, processor, compiler. Nothing that tells whose machine it is."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.commands import KitError
from benchmarks.gpu.toolkit import find_nvcc, nvcc_release


def describe_machine(*, cpu_only: bool) -> dict[str, Any]:
    """The facts that results are read with."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "gpus": [] if cpu_only else gpus(),
        "cuda": "" if cpu_only else cuda_release(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def cuda_release() -> str:
    """The CUDA compiler's version, empty where there is none."""
    try:
        return nvcc_release(find_nvcc())
    except KitError:
        return ""


def folder_name(machine: dict[str, Any]) -> str:
    """A name for the machine's folder, after its card or else its processor: nvidia-h200."""
    words = str(machine["gpus"][0]["name"] if machine["gpus"] else machine["cpu"])
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "machine"


def gpus() -> list[dict[str, str]]:
    """The cards that NVIDIA's driver names, with their memory and the driver's version."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    names = ("name", "memory", "driver")
    return [dict(zip(names, (part.strip() for part in line.split(",")), strict=False)) for line in lines]


def processor() -> str:
    """The processor's own name."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()

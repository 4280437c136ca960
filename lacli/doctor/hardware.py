"""The doctor on hardware: instruction sets, GPUs, threads and memory, against what llama.cpp uses of them."""

from __future__ import annotations

import math
from contextlib import suppress

from lacli.doctor import rebuild
from lacli.doctor.finding import Finding
from lacli.doctor.machine import Machine
from lacli.doctor.versions import device_words, gib
from lacli.settings import OURS, THEIRS
from lacli.text.format import counted

INSTRUCTIONS = {
    "AVX": "avx",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512_vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
    "NEON": "asimd",
    "DOTPROD": "asimddp",
    "FP16_VA": "asimdhp",
    "MATMUL_INT8": "i8mm",
    "SVE": "sve",
}
"""ggml's names of instruction sets, and those of /proc/cpuinfo."""

BYTES_A_PARAMETER = 0.61
"""Q4_K_M's 4.85 bits a weight."""

GPU_BACKENDS = {"CUDA", "ROCM", "HIP", "VULKAN", "METAL", "MTL", "SYCL"}
"""ggml's names of backends that compute on GPUs."""

SHARE_FOR_WEIGHTS = 0.8
"""Of the free memory; the rest is for the context."""


def check_instructions(machine: Machine) -> Finding:
    """What the build uses of the processor; a generic build leaves the fast part unused."""
    used = {name for backend in machine.library().build.backends for name in backend.features}
    in_use = [name for name in INSTRUCTIONS if name in used]
    shown = ", ".join(in_use) or "no vector instructions"
    facts = {"used": in_use}
    try:
        offered = _processor_flags(machine)
    except OSError:
        return Finding("instructions", "fine", f"{shown} in use", facts=facts)
    unused = [name for name, flag in INSTRUCTIONS.items() if flag in offered and name not in used]
    if unused:
        words = f"{shown} in use; llama.cpp was built without {', '.join(unused)}, which this processor has"
        return Finding("instructions", "better", words, rebuild.steps(machine, "native"), {**facts, "unused": unused})
    return Finding("instructions", "fine", f"{shown} in use, all that this processor has", facts=facts)


def check_kernels(machine: Machine) -> Finding:
    """The kernels for several rows compute rightly here; a child process tries them now."""
    fault, without = machine.faults(_threads(machine, machine.physical_cores())[0])
    facts = {"fault": fault, "fault_without_repack": without}
    if not fault:
        return Finding("kernels", "fine", "batches of several rows give the right numbers", facts=facts)
    try:
        flags = _processor_flags(machine)
    except OSError:
        flags = set()
    todo = rebuild.steps(machine, rebuild.sound(flags))
    if without:
        return Finding("kernels", "broken", f"this build fails on this processor: {without}", todo, facts)
    words = f"this build fails on this processor: {fault}; lacli leaves the faster kernels out (--no-repack)"
    return Finding("kernels", "better", words, todo, facts)


def _processor_flags(machine: Machine) -> set[str]:
    for line in machine.read("/proc/cpuinfo").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(flags.split())
    return set()


def check_gpu(machine: Machine) -> Finding:
    """A GPU that this llama.cpp uses, or could use after another build."""
    build, devices = machine.library()
    cards = [device for device in devices if device.is_gpu]
    if cards:
        return Finding(
            "GPU", "fine", "; ".join(map(device_words, cards)), facts={"devices": [card.name for card in cards]}
        )
    found, kind = _card(machine)
    facts = {"devices": [], "found": found}
    if not kind:
        return Finding("GPU", "fine", "none found; the processor computes (device CPU)", facts=facts)
    if {backend.name.upper() for backend in build.backends} & GPU_BACKENDS:
        words = f"{found} is here and llama.cpp was built for a GPU, but it finds none"
        return Finding(
            "GPU",
            "better",
            words,
            ("update the GPU's driver, or give this container access (docker run --gpus all)",),
            facts,
        )
    words = f"{found} is here, but this llama.cpp computes on the processor only"
    return Finding("GPU", "better", words, rebuild.steps(machine, kind), facts)


def _card(machine: Machine) -> tuple[str, rebuild.Kind | None]:
    """A GPU's name and what llama.cpp is built with for it; no kind where there is none."""
    if machine.system == "Darwin":
        return ("Apple's GPU", "metal") if machine.processor == "arm64" else ("", None)
    nvidia = _nvidia(machine)
    if nvidia:
        return nvidia, "cuda"
    if machine.exists("/dev/kfd"):
        return "an AMD GPU", "hip" if machine.which("hipcc") else "vulkan"
    for card in range(4):
        with suppress(OSError):
            vendor = machine.read(f"/sys/class/drm/card{card}/device/vendor").strip()
            if vendor in VENDORS:
                return VENDORS[vendor]
    return "", None


VENDORS: dict[str, tuple[str, rebuild.Kind]] = {
    "0x10de": ("an NVIDIA GPU", "cuda"),
    "0x1002": ("an AMD GPU", "vulkan"),
    "0x8086": ("an Intel GPU", "vulkan"),
}
"""PCI's numbers of those who make GPUs."""


def _nvidia(machine: Machine) -> str:
    """The first NVIDIA card's name; '' where there is none."""
    if machine.which("nvidia-smi"):
        with suppress(Exception):  # a driver that does not answer is no reason to fail
            names = machine.output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).strip().splitlines()
            if names:
                return names[0].strip() + (f" (and {len(names) - 1} more)" if names[1:] else "")
    here = machine.exists("/proc/driver/nvidia/version") or machine.exists("/dev/nvidia0")
    return "an NVIDIA GPU" if here else ""


def check_threads(machine: Machine) -> Finding:
    """Threads against cores, a container's limit and what else runs: llama.cpp's threads wait for each other."""
    cores, logical = machine.physical_cores(), machine.logical_cores()
    threads, chosen_by = _threads(machine, cores)
    words = f"{counted(cores, 'physical core')}, -t is {threads} {chosen_by}"
    limit = _cpu_limit(machine)
    facts = {"physical_cores": cores, "logical_cores": logical, "cpu_limit": limit, "threads": threads}
    fewer = threads if limit is None else max(1, math.floor(limit))
    if fewer < threads:
        words += f"; but this container may use {limit:g} of them, and threads wait for each other"
        return Finding("threads", "better", words, (f"export LACLI_THREADS={fewer}",), facts)
    try:
        load = machine.load()
    except OSError:
        return Finding("threads", "fine", words, facts=facts)
    facts["load"] = round(load, 2)
    free = logical - math.floor(load)
    if max(1, free) < threads:
        words += f"; other programs use about {load:.1f} of {logical} cores now, and one slow thread slows all"
        return Finding("threads", "better", words, (f"-t {max(1, free)} while they run",), facts)
    return Finding("threads", "fine", f"{words}; load {load:.1f}", facts=facts)


def _threads(machine: Machine, cores: int) -> tuple[int, str]:
    """What -t is without the flag, and what it comes from."""
    names = [name for name in (f"{OURS}THREADS", f"{THEIRS}THREADS") if machine.environ.get(name)]
    with suppress(IndexError, ValueError):
        if (threads := int(machine.environ[names[0]])) > 0:
            return threads, f"by {names[0]}"
    return cores, "by default"


def _cpu_limit(machine: Machine) -> float | None:
    """Cores that a control group leaves, of either version; None for no limit."""
    with suppress(OSError, ValueError):
        quota, period = machine.read("/sys/fs/cgroup/cpu.max").split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        both = [machine.read(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota_us, period_us = map(int, both)
        return quota_us / period_us if quota_us > 0 else None
    return None


def check_memory(machine: Machine) -> Finding:
    """What is free, and how large a model that is."""
    total = machine.total_memory()
    try:
        free = machine.free_memory()
    except (OSError, LookupError, ValueError):
        return Finding("memory", "fine", f"{gib(total)} GiB", facts={"total": total})
    room = free * SHARE_FOR_WEIGHTS
    billions = room / BYTES_A_PARAMETER / 1e9
    size = f"{billions:.0f}B" if billions >= 2 else f"{billions:.1f}B"
    words = f"{gib(free)} of {gib(total)} GiB free: a model file of {gib(int(room))} GiB, about {size} at Q4_K_M"
    facts = {"free": free, "total": total}
    if billions < 0.5:
        return Finding("memory", "better", words, ("close other programs, or give this container more",), facts)
    return Finding("memory", "fine", words, facts=facts)

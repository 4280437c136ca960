"""The installed llama.cpp: its files, this processor and its GPUs, and the command that builds it again.

Only `load_library` loads it; the rest also describes a build that crashes or is missing.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from lacli.errors import in_one_line

if TYPE_CHECKING:
    from lacli.llamacpp.devices import Device
    from lacli.llamacpp.library import Build

PACKAGE = "llama-cpp-python"
REQUIREMENT = f"{PACKAGE}>=0.3.36,<0.4"
"""The versions of pyproject.toml."""

PYTHON = sys.executable or "python3"
"""This Python; empty in sys where a program embeds it."""

GIB = 2**30

Kind = Literal["cuda", "hip", "vulkan", "metal", "rpc", "native", "no-amx"]
"""A build's option: one of ggml's backends, all instructions of this processor, or no AMX."""

CMAKE_ARGUMENTS: dict[Kind, str] = {
    "cuda": "-DGGML_CUDA=on",
    "hip": "-DGGML_HIP=on",
    "vulkan": "-DGGML_VULKAN=on",
    "metal": "-DGGML_METAL=on",
    "rpc": "-DGGML_RPC=on",
    "native": "-DGGML_NATIVE=on",
    "no-amx": "-DCMAKE_CXX_FLAGS=-mno-amx-int8",
}


class LibraryMissing(Exception):
    """llama.cpp cannot be loaded, with the loader's reason."""


class Library(NamedTuple):
    """The loaded llama.cpp."""

    build: Build
    devices: list[Device]


class Processor(NamedTuple):
    """The processor's name, and on Linux the flags of its instruction sets and other features."""

    name: str
    flags: tuple[str, ...] = ()


def load_library() -> Library:
    """Load llama.cpp and describe it. Raises LibraryMissing with the loader's reason."""
    try:
        from lacli.llamacpp.library import build, devices

        return Library(build(), devices())
    except Exception as error:  # a missing driver, a wrong architecture, a package half installed
        raise LibraryMissing(in_one_line(error)) from error


def library_files() -> list[Path]:
    """Return the files of the libraries that llama_cpp would load."""
    spec = find_spec("llama_cpp")
    package = Path(spec.origin).parent if spec and spec.origin else Path()
    # llama_cpp reads this variable too, and the build described must be the one that it loads.
    found = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or package / "lib")
    return sorted(path for path in found.glob("*") if re.search(r"\.(so|dylib|dll)\b", path.name))


def build_files() -> list[tuple[str, int, int]]:
    """Identify this build: each library's name, its bytes and the time of its last change in nanoseconds."""
    found = []
    for path in library_files():
        with suppress(OSError):  # a link that leads nowhere
            status = path.stat()
            found.append((path.name, status.st_size, status.st_mtime_ns))
    return found


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


def gpu_kind() -> Kind | None:
    """Return the build for the GPU of this machine, whether the installed one uses it or not; None without a GPU."""
    if platform.system() == "Darwin":
        return "metal" if platform.machine() == "arm64" else None
    if Path("/dev/nvidia0").exists():
        return "cuda"
    return "vulkan" if Path("/dev/kfd").exists() else None


def sound_kind() -> Kind:
    """Return the build to try after one that fails here: without AMX if the processor has it, else a native one.

    GCC 12.2 makes the set-up of ggml's AMX kernels crash (llama.cpp issue 20824); GCC 12.4, 13.3, 14 and clang do not.
    """
    return "no-amx" if "amx_int8" in processor().flags else "native"


def rebuild_command(*kinds: Kind) -> str:
    """Return the shell's command that builds llama.cpp again for this Python, with its present backends and `kinds`."""
    names = {name for path in library_files() for name in re.findall(r"ggml-(\w+)", path.name)}
    before = [kind for kind in CMAKE_ARGUMENTS if kind in names]
    arguments = " ".join(CMAKE_ARGUMENTS[kind] for kind in dict.fromkeys([*before, *kinds]))
    pip = f"{shlex.quote(PYTHON)} -m pip install --force-reinstall --no-cache-dir '{REQUIREMENT}'"
    return f'CMAKE_ARGS="{arguments}" {pip}' if arguments else pip


def version_lines(library: Library) -> list[str]:
    """Return a line for the library, one for what it was built with, and one for each device."""
    build, devices = library
    return [build_words(build), build.features, *(f"device {device_words(device)}" for device in devices)]


def build_words(build: Build) -> str:
    """Return llama-cpp-python's version with those of llama.cpp and ggml, if known."""
    versions = {"llama.cpp": build.llama, "ggml": build.ggml, "commit": build.commit}
    inside = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return f"{PACKAGE} {build.python}" + (f" ({inside})" if inside else "")


def device_words(device: Device) -> str:
    """Return a device's name, description and memory: CUDA0: NVIDIA H200, 138.2 of 139.8 GiB free."""
    words = f"{device.name}: {device.description.strip()}"
    if not device.total:
        return words
    total = f"{device.total / GIB:.1f} GiB"
    # ggml calls all of the processor's memory free.
    return f"{words}, {device.free / GIB:.1f} of {total} free" if device.is_gpu else f"{words}, {total}"

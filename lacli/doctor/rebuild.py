"""How llama.cpp is built again for a machine: the one place where these commands stand."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Literal

from lacli.doctor.machine import LibraryMissing, Machine

Kind = Literal["cuda", "hip", "vulkan", "metal", "native", "no-amx", "rpc", "any"]

LIBRARY = "llama-cpp-python"

CMAKE_ARGUMENTS: dict[Kind, str] = {
    "cuda": "-DGGML_CUDA=on",
    "hip": "-DGGML_HIP=on",
    "vulkan": "-DGGML_VULKAN=on",
    "metal": "-DGGML_METAL=on",
    "native": "-DGGML_NATIVE=on",
    "no-amx": "-DCMAKE_CXX_FLAGS=-mno-amx-int8",
    "rpc": "-DGGML_RPC=on",
}

BACKENDS: dict[str, Kind] = {"CUDA": "cuda", "ROCM": "hip", "HIP": "hip", "VULKAN": "vulkan", "RPC": "rpc"}
"""What a backend of ggml's was asked for with; Metal needs no asking."""

TOOLS: dict[Kind, tuple[str, str]] = {
    "cuda": ("nvcc", "NVIDIA's CUDA toolkit (nvcc)"),
    "hip": ("hipcc", "AMD's ROCm (hipcc)"),
    "vulkan": ("glslc", "the Vulkan SDK (glslc)"),
}
"""The program that a build needs besides a C++ compiler, and where it comes from."""

COMPILERS = ("g++", "clang++", "c++", "cl")


def command(machine: Machine, *kinds: Kind) -> str:
    """The command line that builds llama.cpp for these kinds of devices."""
    return command_line(machine.system, machine.executable, machine.requirements(), *kinds)


def command_line(system: str, executable: str, requirements: Iterable[str], *kinds: Kind) -> str:
    """The same, on a system of this name, for this Python. requirements: lacli's own, with llama.cpp's range."""
    pip = f"{_installing(system, executable)} --force-reinstall --no-cache-dir {_library(system, requirements)}"
    arguments = " ".join(CMAKE_ARGUMENTS[kind] for kind in dict.fromkeys(kinds) if kind in CMAKE_ARGUMENTS)
    if not arguments:
        return pip
    if system == "Windows":
        return f'$env:CMAKE_ARGS="{arguments}"; {pip}'
    return f'CMAKE_ARGS="{arguments}" {pip}'


def installing(machine: Machine) -> str:
    """How this Python's pip is called, which need not be the first one on PATH."""
    return _installing(machine.system, machine.executable)


def _installing(system: str, executable: str) -> str:
    # PowerShell calls what stands in quotes only with an ampersand.
    python = f"& '{executable}'" if system == "Windows" else shlex.quote(executable)
    return f"{python} -m pip install"


def _library(system: str, requirements: Iterable[str]) -> str:
    """llama.cpp's package with the versions that lacli takes, in quotes, because < and > are the shell's."""
    found = next((each for each in requirements if each.startswith(LIBRARY)), LIBRARY)
    return f"'{found.partition(';')[0].strip()}'"


def built_for(backends: Iterable[str]) -> list[Kind]:
    """What a build with backends of these names has to be asked for again, so that it keeps them."""
    return [BACKENDS[name.upper()] for name in backends if name.upper() in BACKENDS]


def steps(machine: Machine, kind: Kind = "any") -> tuple[str, ...]:
    """What has to be installed first, where it is not there, and the command."""
    first = []
    if not compiler(machine):
        first.append(f"first install a C++ compiler: {install_compiler(machine)}")
    program, origin = TOOLS.get(kind, ("", ""))
    if program and not machine.which(program):
        first.append(f"first install {origin}")
    return (*first, command(machine, *_built_here(machine), kind))


def sound(processor_flags: Iterable[str]) -> Kind:
    """What mends a build that fails on a processor: no AMX where there is AMX, else a build for this processor.

    GCC 12.2 and its like make the set-up of ggml's AMX kernels crash (llama.cpp issue 20824); GCC 12.4, 13.3 and 14
    and clang do not.
    """
    return "no-amx" if "amx_int8" in processor_flags else "native"


def _built_here(machine: Machine) -> list[Kind]:
    """What the build here was asked for, so that the next one has it too."""
    try:
        return built_for(backend.name for backend in machine.library().build.backends)
    except LibraryMissing:
        return []


def compiler(machine: Machine) -> str:
    """The first C++ compiler on PATH, or ''."""
    return next((name for name in COMPILERS if machine.which(name)), "")


def install_compiler(machine: Machine) -> str:
    """The system's way to a C++ compiler."""
    if machine.system == "Darwin":
        return "xcode-select --install"
    if machine.system == "Windows":
        return "Visual Studio's Build Tools, with C++"
    for program, how in (
        ("apt-get", "sudo apt-get install g++"),
        ("dnf", "sudo dnf install gcc-c++"),
        ("pacman", "sudo pacman -S gcc"),
        ("apk", "sudo apk add g++"),
    ):
        if machine.which(program):
            return how
    return "g++ or clang++, from your system's packages"

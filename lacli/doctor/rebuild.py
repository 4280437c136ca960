"""How llama.cpp is built again for a machine: the one place where these commands stand."""

from __future__ import annotations

from typing import Literal

from lacli.doctor.machine import Machine

Kind = Literal["cuda", "hip", "vulkan", "metal", "native", "any"]

PIP = "pip install --force-reinstall --no-cache-dir llama-cpp-python"

CMAKE_ARGUMENTS: dict[Kind, str] = {
    "cuda": "-DGGML_CUDA=on",
    "hip": "-DGGML_HIP=on",
    "vulkan": "-DGGML_VULKAN=on",
    "metal": "-DGGML_METAL=on",
    "native": "-DGGML_NATIVE=on",
}

TOOLS: dict[Kind, tuple[str, str]] = {
    "cuda": ("nvcc", "NVIDIA's CUDA toolkit (nvcc)"),
    "hip": ("hipcc", "AMD's ROCm (hipcc)"),
    "vulkan": ("glslc", "the Vulkan SDK (glslc)"),
}
"""The program that a build needs besides a C++ compiler, and where it comes from."""

COMPILERS = ("g++", "clang++", "c++", "cl")


def command(machine: Machine, kind: Kind = "any") -> str:
    """The command line that builds llama.cpp for this kind of device."""
    arguments = CMAKE_ARGUMENTS.get(kind)
    if not arguments:
        return PIP
    if machine.system == "Windows":
        return f'$env:CMAKE_ARGS="{arguments}"; {PIP}'
    return f'CMAKE_ARGS="{arguments}" {PIP}'


def steps(machine: Machine, kind: Kind = "any") -> tuple[str, ...]:
    """What has to be installed first, where it is not there, and the command."""
    first = []
    if not compiler(machine):
        first.append(f"first install a C++ compiler: {install_compiler(machine)}")
    program, origin = TOOLS.get(kind, ("", ""))
    if program and not machine.which(program):
        first.append(f"first install {origin}")
    return (*first, command(machine, kind))


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

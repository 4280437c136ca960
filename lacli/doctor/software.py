"""The doctor on software: Python, the packages below lacli, llama.cpp itself, and what could build it."""

from __future__ import annotations

import re

from lacli.doctor import rebuild
from lacli.doctor.finding import Finding
from lacli.doctor.machine import LibraryMissing, Machine
from lacli.doctor.versions import build_words, device_words
from lacli.errors import LacliError

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
"""What lacli is tested with (pyproject.toml)."""

CUDA_LIBRARIES = "this build needs CUDA's libraries: put their folder into LD_LIBRARY_PATH, or build it again:"

LOADER_HINTS = (
    ("libcuda.", "this build needs NVIDIA's driver: install it, or take a build without CUDA:"),
    ("libcudart", CUDA_LIBRARIES),
    ("libcublas", CUDA_LIBRARIES),
    ("libgomp", "it needs OpenMP's library: sudo apt-get install libgomp1"),
    ("GLIBC", "it was built for a newer system: build it here:"),
    ("No module named", "it is not installed:"),
)
"""What the loader says, and what to do then."""


def check_python(machine: Machine) -> Finding:
    version = ".".join(map(str, machine.python))
    facts = {"version": version, "system": f"{machine.system} {machine.processor}"}
    words = f"{version} on {machine.system} {machine.processor}"
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST_PYTHON, NEWEST_PYTHON))
    if machine.python[:2] < OLDEST_PYTHON:
        return Finding("Python", "broken", f"{words} is too old", (f"install Python {oldest} or newer",), facts)
    if machine.python[:2] > NEWEST_PYTHON:
        words += f": newer than what lacli is tested with ({oldest} to {newest})"
        return Finding("Python", "better", words, facts=facts)
    return Finding("Python", "fine", words, facts=facts)


def check_packages(machine: Machine) -> Finding:
    """Installed versions against the ranges that lacli is tested with."""
    facts: dict[str, str | None] = {}
    missing, other = [], []
    for requirement in machine.requirements():
        name, wanted = split_requirement(requirement)
        version = facts[name] = machine.version_of(name)
        if version is None:
            missing.append(f"'{name}{wanted}'")
        elif not within(version, wanted):
            other.append((f"{name} {version} (tested: {wanted})", f"'{name}{wanted}'"))
    if missing:
        absent = ", ".join(each.strip("'") for each in missing)
        return Finding(
            "packages", "broken", f"missing: {absent}", (f"{rebuild.installing(machine)} {' '.join(missing)}",), facts
        )
    if other:
        command = f"{rebuild.installing(machine)} " + " ".join(wanted for _, wanted in other)
        return Finding("packages", "better", "untested: " + ", ".join(each for each, _ in other), (command,), facts)
    return Finding("packages", "fine", f"all {len(facts)} are of tested versions", facts=facts)


def split_requirement(requirement: str) -> tuple[str, str]:
    """A package's name and its range: "numpy>=2.4,<3" is ("numpy", ">=2.4,<3")."""
    found = re.match(r"\s*([\w.-]+)(?:\[[^\]]*\])?\s*\(?([^;)]*)", requirement)
    return (found[1], found[2].replace(" ", "")) if found else (requirement, "")


def within(version: str, wanted: str) -> bool:
    """Whether a version lies in a range of >= and < bounds; other kinds of bounds are not judged."""
    number = _number(version)
    for bound in filter(None, wanted.split(",")):
        if bound.startswith(">=") and number < _number(bound[2:]):
            return False
        if bound.startswith("<") and not bound.startswith("<=") and number >= _number(bound[1:]):
            return False
    return True


def check_library(machine: Machine) -> Finding:
    """llama.cpp loads, and which one it is."""
    try:
        build = machine.library().build
    except LibraryMissing as error:
        reason = str(error)
        hint = next((hint for part, hint in LOADER_HINTS if part in reason), "install it again:")
        todo = (hint, *rebuild.steps(machine)) if hint.endswith(":") else (hint,)
        return Finding("llama.cpp", "broken", f"{rebuild.LIBRARY} does not load: {reason}", todo)
    facts = {"python": build.python, "llama": build.llama, "ggml": build.ggml, "commit": build.commit}
    return Finding("llama.cpp", "fine", build_words(build), facts=facts)


def check_rpc(machine: Machine) -> Finding:
    """Whether devices of other machines can be used, and this machine's lent; which the servers named have."""
    names = [backend.name for backend in machine.library().build.backends]
    if machine.rpc:
        return _servers(machine)
    if "RPC" in names:
        return Finding("RPC", "fine", "built in: --rpc and lacli rpc-server work", facts={"built_in": True})
    words = "not built in; only --rpc and lacli rpc-server need it, and say how to build it"
    return Finding("RPC", "fine", words, facts={"built_in": False})


def _servers(machine: Machine) -> Finding:
    try:
        found = machine.rpc_devices(machine.rpc)
    except LacliError as error:
        return Finding("RPC", "broken", error.what, (error.hint,) if error.hint else (), {"asked": list(machine.rpc)})
    devices = [
        {"name": each.name, "server": each.description, "free": each.free, "total": each.total} for each in found
    ]
    facts = {"built_in": True, "asked": list(machine.rpc), "devices": devices}
    return Finding("RPC", "fine", "; ".join(map(device_words, found)), facts=facts)


def check_compiler(machine: Machine) -> Finding:
    """What could build llama.cpp anew, which pip does where it finds no ready one."""
    names = (rebuild.compiler(machine), "cmake", "nvcc", "hipcc", "glslc", "xcrun")
    found = [name for name in names if name and machine.which(name)]
    if rebuild.compiler(machine):
        return Finding("compiler", "fine", ", ".join(found), facts={"found": found})
    words = "no C++ compiler; only building llama.cpp needs one"
    return Finding("compiler", "better", words, (rebuild.install_compiler(machine),), {"found": found})


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])

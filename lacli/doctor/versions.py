"""llama.cpp's build, backends and devices in words, for `lacli --version` and the doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lacli.doctor.machine import Library

if TYPE_CHECKING:
    from lacli.llamacpp.devices import Device
    from lacli.llamacpp.library import Backend, Build

GIB = 2**30


def version_lines(library: Library) -> list[str]:
    """A line for the library, one a backend, one a device."""
    build, devices = library
    return [
        build_words(build),
        *(f"backend {backend_words(backend)}" for backend in build.backends),
        *(f"device {device_words(device)}" for device in devices),
    ]


def build_words(build: Build) -> str:
    """llama-cpp-python's version and what is in it: llama.cpp's and ggml's, as far as the library says."""
    inside = [
        *([f"llama.cpp {build.llama}"] if build.llama else []),
        *([f"ggml {build.ggml}"] if build.ggml else []),
        *([f"commit {build.commit}"] if build.commit else []),
    ]
    return f"llama-cpp-python {build.python}" + (f" ({', '.join(inside)})" if inside else "")


def backend_words(backend: Backend) -> str:
    return f"{backend.name}: {', '.join(backend.features)}" if backend.features else backend.name


def device_words(device: Device) -> str:
    memory = ""
    if device.total:
        # Of the processor's memory ggml says that all of it is free.
        free = f"{gib(device.free)} of {gib(device.total)} GiB free" if device.is_gpu else f"{gib(device.total)} GiB"
        memory = f", {free}"
    return f"{device.name}: {device.description.strip()}{memory}"


def gib(count: int) -> str:
    """Bytes as GiB: 0.4, 7.5, 120."""
    return f"{count / GIB:.1f}" if count < 100 * GIB else f"{count / GIB:.0f}"

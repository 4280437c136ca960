"""What llama.cpp was built with and finds here: its version, its backends, its devices and their memory.

Questions about the library only; what they mean for a user is said elsewhere. The library comes from `llama.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from lacli.devices import CPU as CPU
from lacli.devices import Device as Device
from lacli.llama import declared, lib, library, version
from lacli.llama import devices as devices


class Backend(NamedTuple):
    """A part of llama.cpp that computes: ggml's name of it ("CPU", "CUDA") and what its build can use ("AVX2")."""

    name: str
    features: tuple[str, ...] = ()


class Build(NamedTuple):
    """llama-cpp-python's version, and of llama.cpp and its ggml; '' where the library does not say.

    commit: llama.cpp's, shortened, with "-dirty" where it was changed.
    """

    python: str
    llama: str
    ggml: str
    commit: str
    backends: tuple[Backend, ...]


def build() -> Build:
    """What this llama.cpp is, without loading a model."""
    library()
    ggml = _ggml()
    registered = map(ggml.ggml_backend_reg_get, range(ggml.ggml_backend_reg_count()))
    names = [ggml.ggml_backend_reg_name(backend).decode() for backend in registered]
    return Build(
        version(),
        _words(ggml, "llama_version"),
        _words(ggml, "ggml_version"),
        _words(ggml, "ggml_commit"),
        tuple(backends(names, lib.llama_print_system_info().decode("utf-8", "replace"))),
    )


def backends(names: Sequence[str], system_info: str) -> list[Backend]:
    """Backends with their features, from llama_print_system_info's `CPU : AVX2 = 1 | FMA = 1 | CUDA : ARCHS = 800 |`.

    A feature of value 1 stands for itself, one of value 0 is left out, others keep their value.
    """
    features: dict[str, list[str]] = {name: [] for name in names}
    owner = CPU
    for part in system_info.split("|"):
        before, colon, rest = part.partition(" : ")
        if colon:
            owner = before.strip()
        feature, _, value = (rest if colon else part).partition("=")
        if feature.strip() and value.strip() not in ("", "0"):
            shown = feature.strip() if value.strip() == "1" else f"{feature.strip()} {value.strip()}"
            features.setdefault(owner, []).append(shown)
    return [Backend(name, tuple(found)) for name, found in features.items()]


def _words(ggml: ctypes.CDLL, name: str) -> str:
    """What a function without parameters says, which an older or newer library may not have."""
    if not hasattr(ggml, name):
        return ""
    said: bytes | None = getattr(declared((name, [], ctypes.c_char_p)), name)()
    return (said or b"").decode("utf-8", "replace")


def _ggml() -> ctypes.CDLL:
    """The library's functions about backends, which llama_cpp does not declare."""
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    return declared(
        ("ggml_backend_reg_count", [], number),
        ("ggml_backend_reg_get", [number], pointer),
        ("ggml_backend_reg_name", [pointer], text),
    )

"""ggml's RPC functions: whether this build has them, servers as devices of this process, and serving.

They are asked for by name, as llama.cpp's programs do, so that a build that loads its backends at run time has them
too. Source: ggml/src/ggml-rpc and common/arg.cpp of llama.cpp.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lacli.errors import LacliError
from lacli.llamacpp.devices import Device
from lacli.llamacpp.library import build, declared, devices, library

ADD = "ggml_backend_rpc_add_server"
SERVE = "ggml_backend_rpc_start_server"

POINTER, TEXT, NUMBER = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t


def supported() -> bool:
    """Whether this llama.cpp was built with RPC."""
    return bool(_address(ADD) and _address(SERVE))


def need_support() -> None:
    """Raise LacliError, with the command that builds llama.cpp anew, where it was built without RPC."""
    if not supported():
        from lacli.doctor import rebuild
        from lacli.doctor.machine import requirements

        here = rebuild.built_for(backend.name for backend in build().backends)
        command = rebuild.command_line(platform.system(), sys.executable, requirements(), *here, "rpc")
        raise LacliError("this llama.cpp was built without RPC", f"build it again: {command}")


def register(endpoints: Sequence[str]) -> list[Device]:
    """Make the devices of these servers devices of this process, RPC0, RPC1 and so on in their order.

    Only for a process that may die: ggml aborts it when a server is not there, or not there any more.
    """
    need_support()
    add = ctypes.CFUNCTYPE(POINTER, TEXT)(_address(ADD))
    ggml = declared(("ggml_backend_register", [POINTER], None), ("ggml_backend_dev_count", [], NUMBER))
    before = ggml.ggml_backend_dev_count()
    for endpoint in endpoints:
        registry = add(endpoint.encode())
        if not registry:
            raise LacliError(f"the RPC server at {endpoint} has no devices", "start it again with --device")
        ggml.ggml_backend_register(registry)
    return devices()[before:]


def server_loop(endpoint: str, names: Sequence[str], threads: int, cache: Path | None) -> Callable[[], None]:
    """ggml's server of devices of these names, to be called: it returns only when it cannot go on.

    threads: of the processor, where it is served. cache: a folder for weights that clients send, None for no such.
    """
    start = ctypes.CFUNCTYPE(None, TEXT, TEXT, NUMBER, NUMBER, POINTER)(_address(SERVE))
    ggml = declared(("ggml_backend_dev_by_name", [TEXT], POINTER))
    handles = (POINTER * len(names))(*(ggml.ggml_backend_dev_by_name(name.encode()) for name in names))
    folder = os.fsencode(cache) if cache else None
    return lambda: start(endpoint.encode(), folder, threads, len(names), handles)


def _address(function: str) -> int:
    """Where a function of ggml's RPC library lies; 0 in a build without it."""
    library()
    ggml = declared(
        ("ggml_backend_reg_by_name", [TEXT], POINTER), ("ggml_backend_reg_get_proc_address", [POINTER, TEXT], POINTER)
    )
    backend: int | None = ggml.ggml_backend_reg_by_name(b"RPC")
    found: int | None = ggml.ggml_backend_reg_get_proc_address(backend, function.encode()) if backend else None
    return found or 0

"""llama.cpp's RPC: using the devices of servers, and serving this machine's devices.

ggml's client aborts the process if a server is absent or ends, so `check_servers` asks from a child process. The child
runs this file: it adds the server of each address in its arguments, and then prints the address.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import NoReturn

from lacli.errors import LacliError, reason_of
from lacli.llamacpp.build import PYTHON, rebuild_command
from lacli.llamacpp.library import POINTER, SIZE, TEXT, ggml, on_abort, start
from lacli.llamacpp.probe import run_python

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"

ANSWER_S = 15.0
"""Seconds after which the child process is ended; a server without a client needs milliseconds."""

ADD, SERVE = "ggml_backend_rpc_add_server", "ggml_backend_rpc_start_server"
"""ggml's functions, found by name as llama.cpp's programs do (common/arg.cpp), also in backends loaded at run time."""


def check_servers(endpoints: Sequence[str]) -> None:
    """Raise LacliError if this build has no RPC, or if a server is missing, busy, or of another kind or version."""
    need_support()
    try:
        child = run_python([PYTHON, "-P", "-m", "lacli.llamacpp.rpc", *endpoints], ANSWER_S)
        out, said = child.stdout, child.stderr.decode("utf-8", "replace")
    except subprocess.TimeoutExpired as late:
        out, said = late.stdout or b"", "no answer; it serves one client at a time, and another may be using it"
    if (good := len(out.splitlines())) < len(endpoints):
        # A line before the last one names the version. Each line begins with a file and line of ggml's code.
        lines = [re.sub(r"^\S+: ", "", line) for line in said.strip().splitlines()]
        reason = next((line for line in lines if "mismatch" in line), lines[-1] if lines else "no reason given")
        what = f"--rpc: the RPC server at {endpoints[good]} cannot be used: {reason}"
        raise LacliError(what, "start one there with the same version of llama.cpp: lacli rpc-server -H ADDRESS")


def need_support() -> None:
    """Raise LacliError, with the command that rebuilds llama.cpp, if this build has no RPC."""
    if not (_address(ADD) and _address(SERVE)):
        raise LacliError("this llama.cpp was built without RPC", f"build it again: {rebuild_command('rpc')}")


@cache
def register(endpoint: str) -> None:
    """Add a server's devices as RPC0, RPC1 .., with `endpoint` as description. Raises LacliError if there are none."""
    registry = ctypes.CFUNCTYPE(POINTER, TEXT)(_address(ADD))(endpoint.encode())
    if not registry:
        raise LacliError(f"the RPC server at {endpoint} is absent or has no devices")
    ggml.ggml_backend_register(registry)


def free_port(address: str, port: int) -> int:
    """Return `port`, or for 0 any free port of `address`. Raises LacliError if this machine cannot listen there."""
    try:
        with socket.create_server((address, port)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        hint = f"-p 0 takes any port that is free, and -H {EVERYWHERE} all addresses of this machine"
        raise LacliError(f"cannot listen at {address}:{port}: {reason_of(error)}", hint) from error


def start_server(address: str, port: int, names: Sequence[str], threads: int, cache: Path | None) -> Thread:
    """Serve the devices `names` in a new thread, and return it when the server listens or the thread has ended.

    The thread runs ggml's endless call, which would block Ctrl-C in the main thread. It ends only if ggml fails.
    `threads`: for computing on the CPU. `cache`: a folder for the weights that clients send, None to keep none.
    """
    start = ctypes.CFUNCTYPE(None, TEXT, TEXT, SIZE, SIZE, POINTER)(_address(SERVE))
    handles = (POINTER * len(names))(*(ggml.ggml_backend_dev_by_name(name.encode()) for name in names))
    folder = os.fsencode(cache) if cache else None
    arguments = (f"{address}:{port}".encode(), folder, threads, len(names), handles)
    server = Thread(target=start, args=arguments, daemon=True)
    server.start()
    while server.is_alive():
        with suppress(OSError):
            socket.create_connection((LOOPBACK if address == EVERYWHERE else address, port), 1.0).close()
            break
        server.join(0.02)
    return server


def _address(function: str) -> int:
    """Return the address of the C function named `function` in ggml's RPC library, 0 in a build without RPC."""
    start()
    backend: int | None = ggml.ggml_backend_reg_by_name(b"RPC")
    found: int | None = ggml.ggml_backend_reg_get_proc_address(backend, function.encode()) if backend else None
    return found or 0


def _end(message: str) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    start().verbose = True
    on_abort(_end)
    for each in sys.argv[1:]:
        register(each)
        print(each, flush=True)

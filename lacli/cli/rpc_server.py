"""`lacli rpc-server`: serve this machine's devices to lacli or llama.cpp elsewhere, with ggml's own server."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address
from typing import Annotated

import typer

from lacli.cli import options
from lacli.errors import LacliError
from lacli.llamacpp.settings import CPU, device_names

Host = Annotated[str, typer.Option("-H", "--host", help="IPv4 address to listen on. 0.0.0.0: all.")]
Port = Annotated[int, typer.Option("-p", "--port", min=0, max=65535, help="Port. 0: a free one.")]
Devices = Annotated[str, typer.Option("-d", "-dev", "--device", help="Devices to serve. Default: GPUs, or the CPU.")]
Cache = Annotated[bool, typer.Option("-c", "--cache", help="Keep large weights of clients on this disk.")]


def rpc_server(
    host: Host = "127.0.0.1",
    port: Port = 50052,
    device: Devices = "",
    cache: Cache = False,
    verbose: options.Verbose = False,
) -> None:
    """Serve this machine's devices to lacli on other machines.

    The server is llama.cpp's and has no password and no encryption: by default only this machine reaches it.
    """
    from platformdirs import user_cache_path

    from lacli.llamacpp import rpc
    from lacli.llamacpp.devices import devices, named
    from lacli.llamacpp.library import start
    from lacli.llamacpp.machine import physical_cores
    from lacli.terminal.screen import Screen, abandon_stdout, end_at_abort

    rpc.need_support()
    found = devices()
    wanted = named(device_names(device), found) or [each.name for each in found if each.is_gpu] or [CPU]
    address = socket.gethostbyname(host)
    port = rpc.free_port(address, port)
    screen = Screen()
    if not ip_address(address).is_loopback:
        hint = "anyone who reaches the port can read other clients' data and run code here; an SSH tunnel needs no -H"
        screen.error(LacliError(f"warning: with -H {host} other machines reach this server without a password", hint))
    folder = user_cache_path("lacli", appauthor=False) / "rpc" if cache else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    start().verbose = verbose
    # ggml reports its clients on stdout.
    if verbose:
        os.dup2(2, 1)
    else:
        abandon_stdout()
    end_at_abort(screen, "a client may have asked for too much memory; start the server again")
    server = rpc.start_server(address, port, wanted, physical_cores(), folder)
    if server.is_alive():
        reached = socket.gethostname() if address == rpc.EVERYWHERE else address
        screen.note(f"serving {', '.join(wanted)} to one client at a time: lacli run --rpc {reached}:{port}")
    while server.is_alive():
        server.join(1.0)
    raise LacliError(f"llama.cpp's RPC server at {address}:{port} has ended", "the reason may be printed above")

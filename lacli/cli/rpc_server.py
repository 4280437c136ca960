"""`lacli rpc-server`: serve this machine's devices to lacli or llama.cpp elsewhere, with ggml's own server."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address
from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.environment import setting
from lacli.errors import LacliError
from lacli.llamacpp.build import device_words
from lacli.llamacpp.devices import CPU, named
from lacli.llamacpp.settings import ModelSettings, device_names

Host = Annotated[
    str,
    typer.Option("-H", "--host", metavar="ADDRESS", help="IPv4 address to listen at. 0.0.0.0: all of this machine."),
]
Port = Annotated[int, typer.Option("-p", "--port", min=0, max=65535, help="Port to listen at. 0: a free one.")]
Devices = Annotated[
    str,
    typer.Option("-d", "-dev", "--device", metavar="NAME,..", show_default="all GPUs, or the CPU",
                 help="Devices to serve. 'lacli doctor' names them."),
]  # fmt: skip
Threads = Annotated[
    int,
    setting("-t", "--threads", show_default="one a core", help="Threads to compute with, where the CPU is served."),
]
Cache = Annotated[
    bool,
    typer.Option("-c", "--cache", help="Keep large weights that clients send on this disk."),
]

DANGER = (
    "it has no password and no encryption: anyone who reaches the port can use these devices, read what others compute "
    "and may run code on this machine; only for a network whose every machine you trust, an SSH tunnel needs no -H"
)


def rpc_server(
    host: Host = "127.0.0.1",
    port: Port = 50052,
    device: Devices = "",
    threads: Threads = 0,
    cache: Cache = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Serve this machine's devices to lacli on other machines.

    There 'lacli run --rpc host:port' uses them, and llama.cpp can too. It is llama.cpp's own RPC server, which has no
    password and no encryption: by default only this machine reaches it.

    It serves one client at a time until Ctrl-C. Needs a llama.cpp that was built with RPC.
    """
    from platformdirs import user_cache_path

    ModelSettings(threads=threads)
    names = device_names(device)

    from lacli.llamacpp import rpc
    from lacli.llamacpp.devices import physical_cores
    from lacli.llamacpp.library import devices, library
    from lacli.terminal.screen import Screen, abandon_stdout, end_at_abort

    rpc.need_support()
    found = devices()
    wanted = named(names, found) or [each.name for each in found if each.is_gpu] or [CPU]
    try:
        address = socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise LacliError(f"-H {host} is no address of this machine", "give an IPv4 address or a name") from error
    port = rpc.free_port(address, port)
    screen = Screen(color=color)
    if not ip_address(address).is_loopback:
        screen.error(LacliError(f"warning: with -H {host} other machines reach this server", DANGER))
    folder = user_cache_path("lacli", appauthor=False, ensure_exists=True) / "rpc" if cache else None
    if folder:
        folder.mkdir(exist_ok=True)
    library().verbose = verbose
    # ggml reports its clients on stdout.
    if verbose:
        os.dup2(2, 1)
    else:
        abandon_stdout()
    end_at_abort(screen, "a client may have asked for more memory than there is: start it again")
    server = rpc.start_server(address, port, wanted, threads or physical_cores(), folder)
    if server.is_alive():
        reached = socket.gethostname() if address == rpc.EVERYWHERE else address
        screen.note("serving " + "; ".join(device_words(each) for each in found if each.name in wanted))
        screen.note(f"listening at {address}:{port}, one client at a time; Ctrl-C ends it")
        screen.note(f"use it with: lacli run --rpc {reached}:{port}")
    while server.is_alive():
        server.join(1.0)
    raise LacliError(f"llama.cpp's RPC server at {address}:{port} has ended", "its reason may stand above")

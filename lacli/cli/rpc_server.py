"""`lacli rpc-server`: serve this machine's devices to lacli or llama.cpp elsewhere, with ggml's own server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lacli.cli import options
from lacli.cli.environment import setting
from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.build import device_words
from lacli.llamacpp.devices import CPU, Device
from lacli.llamacpp.settings import ModelSettings, device_names
from lacli.text.format import counted

if TYPE_CHECKING:
    from lacli.terminal.screen import Screen

Host = Annotated[
    str,
    typer.Option("-H", "--host", metavar="ADDRESS", help="IPv4 address to listen at. 0.0.0.0: all of this machine."),
]
Port = Annotated[int, typer.Option("-p", "--port", help="Port to listen at. 0: a free one.")]
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
    from lacli.llamacpp.library import devices
    from lacli.terminal.screen import Screen

    rpc.check_host(host)
    if not 0 <= port <= rpc.LARGEST_PORT:
        raise UsageError(f"-p is {port}", f"ports go from 0, for any that is free, to {rpc.LARGEST_PORT}")
    rpc.need_support()
    screen = Screen(color=color)
    served = served_devices(devices(), names)
    address = rpc.ipv4(host)
    port = rpc.free_port(address, port)
    folder = made_folder(user_cache_path("lacli", appauthor=False) / "rpc") if cache else None
    if not ip_address(address).is_loopback:
        screen.error(danger(host))
    threads = threads or physical_cores()
    _take_over(verbose, screen)
    server = rpc.start_server(address, port, [device.name for device in served], threads, folder)
    if server.is_alive():
        reached = rpc.own_address() if address == rpc.EVERYWHERE else address
        for sentence in served_words(served, f"{address}:{port}", f"{reached}:{port}", threads):
            screen.note(sentence)
    while server.is_alive():
        server.join(1.0)
    raise LacliError(f"llama.cpp's RPC server at {address}:{port} has ended", "its reason may stand above")


def served_devices(present: Sequence[Device], names: Sequence[str]) -> list[Device]:
    """The devices of these names, in upper or lower case; without names all GPUs, or the processor if there is none."""
    if not names:
        return [each for each in present if each.is_gpu] or [each for each in present if each.name == CPU]
    known = {each.name.lower(): each for each in present}
    for name in names:
        if name.lower() not in known:
            raise UsageError(f"--device {name} is not here", "there is " + ", ".join(each.name for each in present))
    served = [known[name.lower()] for name in names]
    if twice := [device.name for device in served if served.count(device) > 1]:
        raise UsageError(f"--device has {twice[0]} twice", "name it once")
    return served


def made_folder(folder: Path) -> Path:
    """Make a folder, where it is missing, and return it. Raises LacliError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LacliError(f"cannot make the folder {folder}: {reason_of(error)}", "leave -c out") from error
    return folder


def danger(host: str) -> LacliError:
    """The warning before a server that other machines reach."""
    return LacliError(
        f"warning: with -H {host} other machines reach this server. It has no password and no encryption: anyone who "
        "reaches the port can use these devices, read what others compute and may run code on this machine",
        "only for a network whose every machine you trust, never the internet; an SSH tunnel needs no -H",
    )


def served_words(served: Sequence[Device], endpoint: str, reached: str, threads: int) -> list[str]:
    """What is served at `endpoint`, and how it is used from where it is reached."""
    words = "; ".join(map(device_words, served))
    if any(device.name == CPU for device in served):
        words += f"; {counted(threads, 'thread')}"
    return [
        f"serving {words}",
        f"listening at {endpoint}, one client at a time; Ctrl-C ends it",
        f"use it with: lacli run --rpc {reached}",
    ]


def _take_over(verbose: bool, screen: Screen) -> None:
    """Keep stdout clear, where ggml reports its clients, and let a failed computation of ggml's end in a line."""
    from lacli.llamacpp.library import library
    from lacli.terminal.screen import abandon_stdout, end_at_abort

    library().verbose = verbose
    if verbose:
        os.dup2(2, 1)
    else:
        abandon_stdout()
    end_at_abort(screen, "a client may have asked for more memory than there is: start it again")

"""`lacli rpc-server`: this machine's devices for lacli or llama.cpp elsewhere. The server itself is ggml's."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from threading import Thread

from lacli.doctor.versions import device_words
from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.devices import CPU, Device, physical_cores
from lacli.llamacpp.library import devices, library
from lacli.rpc.addresses import (
    ENDPOINT,
    LARGEST_PORT,
    PORT,
    ipv4,
    own_address,
)
from lacli.rpc.library import need_support, server_loop
from lacli.terminal.screen import Screen, abandon_stdout, end_at_abort
from lacli.text.format import counted

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"

GLANCE_S = 0.02
"""How long to wait between two looks at the server's thread."""


@dataclass(frozen=True)
class ServerSettings:
    """What is served and where; names follow llama.cpp's rpc-server.

    port: 0 takes a free one. devices: ggml's names, none for all GPUs, or the processor where there is none. threads:
    0 is one a physical core. cache: a folder that keeps large weights which clients send; None keeps none. verbose:
    show llama.cpp's log, and that clients come and go.
    """

    host: str = LOOPBACK
    port: int = PORT
    devices: tuple[str, ...] = ()
    threads: int = 0
    cache: Path | None = None
    verbose: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= LARGEST_PORT:
            raise UsageError(f"-p is {self.port}", f"ports go from 0, for any that is free, to {LARGEST_PORT}")
        _check_host(self.host)


def _check_host(host: str) -> None:
    """Raise UsageError for what is no address or name of a machine."""
    if host.count(":") > 1:
        raise UsageError(f"-H {host} is an IPv6 address, which llama.cpp does not take", f"{EVERYWHERE} is all of IPv4")
    found = ENDPOINT.fullmatch(host)
    if not found:
        raise UsageError(f"-H {host!r} is no address", f"for example -H {LOOPBACK}")
    if found["port"]:
        raise UsageError(f"-H {host} has a port", f"the port goes to -p: -H {found['host']} -p {found['port']}")


def serve(settings: ServerSettings, screen: Screen) -> None:
    """Serve devices until Ctrl-C. Raises LacliError where that cannot begin, or cannot go on."""
    need_support()
    served = served_devices(devices(), settings.devices)
    address = ipv4(settings.host)
    port = free_port(address, settings.port)
    _make_folder(settings.cache)
    if not ip_address(address).is_loopback:
        screen.error(danger(settings.host))
    threads = settings.threads or physical_cores()
    loop = server_loop(f"{address}:{port}", [device.name for device in served], threads, settings.cache)
    _take_over(settings.verbose, screen)
    # In a thread of its own, so that Python sees Ctrl-C while ggml waits for clients.
    server = Thread(target=loop, daemon=True)
    server.start()
    if _listens(server, (LOOPBACK if address == EVERYWHERE else address, port)):
        for sentence in served_words(served, address, port, threads):
            screen.note(sentence)
    while server.is_alive():
        server.join(1.0)
    raise LacliError(f"llama.cpp's RPC server at {address}:{port} has ended", "its reason may stand above")


def served_devices(present: Sequence[Device], names: Sequence[str]) -> list[Device]:
    """The devices of these names, in any case of letters; without names the GPUs, or else the processor."""
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


def free_port(address: str, port: int) -> int:
    """The port, free to listen at this address now; for 0 one that is. Raises LacliError where it cannot be had."""
    try:
        with socket.create_server((address, port)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LacliError(f"port {port} is in use", "choose another with -p; -p 0 takes any that is free") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise LacliError(
                f"{address} is no address of this machine", f"-H takes one of its own; {EVERYWHERE} is all of them"
            ) from error
        raise LacliError(f"cannot listen at {address}:{port}: {reason_of(error)}", "choose another -H or -p") from error


def danger(host: str) -> LacliError:
    """What a server that other machines reach means, in words."""
    return LacliError(
        f"warning: with -H {host} other machines reach this server. It has no password and no encryption: whoever "
        "reaches the port can use these devices, read what others compute and may run code on this machine",
        "only for a network whose every machine you trust, never the internet; an SSH tunnel needs no -H",
    )


def served_words(served: Sequence[Device], address: str, port: int, threads: int) -> list[str]:
    """What is served, where, and how it is used."""
    words = "; ".join(map(device_words, served))
    if any(device.name == CPU for device in served):
        words += f"; {counted(threads, 'thread')}"
    reached = own_address() if address == EVERYWHERE else address
    return [
        f"serving {words}",
        f"listening at {address}:{port}, one client at a time; Ctrl-C ends it",
        f"use it with: lacli run --rpc {reached}:{port}",
    ]


def _take_over(verbose: bool, screen: Screen) -> None:
    """ggml prints on stdout that clients come and go, and ends the process where a computation fails."""
    library().verbose = verbose
    if verbose:
        os.dup2(2, 1)
    else:
        abandon_stdout()
    end_at_abort(screen, "a client may have asked for more memory than there is: start it again")


def _make_folder(cache: Path | None) -> None:
    if cache:
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LacliError(f"cannot make the folder {cache}: {reason_of(error)}", "leave -c out") from error


def _listens(server: Thread, address: tuple[str, int]) -> bool:
    """Wait until the server takes connections; False where it ends before."""
    while server.is_alive():
        with suppress(OSError):
            socket.create_connection(address, 1.0).close()
            return server.is_alive()
        server.join(GLANCE_S)
    return False

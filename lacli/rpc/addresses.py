"""Addresses of RPC servers: how they are written, and whether somebody listens there.

Only Python's sockets; nothing is said to the other end.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence

from lacli.errors import LacliError, UsageError, reason_of

PORT = 50052
"""Of llama.cpp's RPC server, where nothing else is said."""

LARGEST_PORT = 65535

ENDPOINT = re.compile(r"(?P<host>[^\s:/\\\[\]\x00]+)(?::(?P<port>[0-9]+))?")

CONNECT_S = 5.0
"""How long a connection may take at most; one to a machine that is there takes a moment."""

BUSY = "it serves one client at a time, and another may be using it"

ROUTED = ("192.0.2.1", PORT)
"""An address of no machine, kept for examples, which lies beyond the own network as others do."""


def check_endpoints(text: str) -> tuple[str, ...]:
    """--rpc as llama.cpp takes it, "host:port,host:port"; a port that is left out is 50052. Raises UsageError."""
    endpoints = tuple(_checked(part.strip()) for part in text.split(","))
    for place, endpoint in enumerate(endpoints):
        if endpoint in endpoints[:place]:
            raise UsageError(f"--rpc names {endpoint} twice", "name each server once")
    return endpoints


def _checked(part: str) -> str:
    if not part:
        raise UsageError("--rpc has an empty address", "give host:port, several with commas between them")
    if "://" not in part and part.count(":") > 1:
        raise UsageError(
            f"--rpc {part} is an IPv6 address, which llama.cpp does not take", "give an IPv4 one or a name"
        )
    found = ENDPOINT.fullmatch(part)
    if not found:
        raise UsageError(f"--rpc {part} is no address", f"it looks like 192.168.1.2:{PORT}")
    port = int(found["port"] or PORT)
    if not 0 < port <= LARGEST_PORT:
        raise UsageError(f"--rpc {part} has no such port", f"ports go from 1 to {LARGEST_PORT}")
    return f"{found['host'].lower()}:{port}"


def look(endpoints: Sequence[str], limit_s: float) -> None:
    """Connect to each address once and leave again.

    Raises LacliError where one is of no use, UsageError where two are the same.
    """
    seen: dict[tuple[str, int], str] = {}
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        address = (ipv4(host), int(port))
        if address in seen:
            raise UsageError(f"--rpc: {seen[address]} and {endpoint} are the same RPC server", "name each server once")
        seen[address] = endpoint
        _connect(endpoint, address, min(limit_s, CONNECT_S))


def ipv4(host: str) -> str:
    """The address of a machine in numbers; llama.cpp knows IPv4 only. Raises LacliError."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:  # a name may also be too long to be asked for
        raise LacliError(f"the name {host} cannot be resolved", "check its spelling, or give an IP address") from error


def own_address() -> str:
    """This machine's address towards other networks, in numbers; its name where it has no way there."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            # Nothing is sent: this only looks the way up.
            way.connect(ROUTED)
            return str(way.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _connect(endpoint: str, address: tuple[str, int], limit_s: float) -> None:
    try:
        socket.create_connection(address, limit_s).close()
    except ConnectionRefusedError as error:
        hint = f"start one there: lacli rpc-server -p {address[1]}; other machines need its -H too"
        raise LacliError(f"--rpc: no RPC server listens at {endpoint}: connection refused", hint) from error
    except TimeoutError as error:
        hint = f"{BUSY}; or the address is wrong, or a firewall is in between"
        raise LacliError(f"--rpc: {endpoint} does not answer within {limit_s:g} s", hint) from error
    except OSError as error:
        what = f"--rpc: cannot reach {endpoint}: {reason_of(error)}"
        raise LacliError(what, "check the address and the network") from error

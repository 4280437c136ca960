"""llama.cpp's RPC: addresses of servers, the devices they have, and serving this machine's.

ggml's client aborts the process when a server is absent or goes away, so `remote_devices` connects once and then asks
from a child process: this file as a program prints a line of JSON for each address among its arguments.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import NamedTuple, NoReturn

from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.build import PYTHON, rebuild_command
from lacli.llamacpp.devices import Device
from lacli.llamacpp.library import declared, devices, library, on_abort
from lacli.llamacpp.probe import python_environment

LISTING = (PYTHON, "-P", "-m", "lacli.llamacpp.rpc")
"""Starts the child process that asks servers for their devices."""

PORT, LARGEST_PORT = 50052, 65535
"""llama.cpp's port of an RPC server, and the largest port of TCP."""

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"

ENDPOINT = re.compile(r"(?P<host>[^\s:/\\\[\]\x00]+)(?::(?P<port>[0-9]+))?")

CONNECT_S, ANSWER_S = 5.0, 5.0
"""Seconds for connecting to an address, and for all answers, at most; a free server needs milliseconds for either."""

GLANCE_S = 0.02
"""Seconds between two attempts to connect to a server that starts."""

EXAMPLE = ("192.0.2.1", PORT)
"""An address reserved for examples (RFC 5737), routed like other networks."""

BUSY = "it serves one client at a time, and another may be using it"
SAME_VERSION = "both ends need the same version of llama.cpp"

OTHER_VERSION = re.compile(r"RPC server version mismatch: (\S+)")
NO_SERVER = "Remote RPC server crashed or returned malformed response"
"""ggml's words about a server of another version, and about an answer that breaks off or has a wrong length."""

ADD, SERVE = "ggml_backend_rpc_add_server", "ggml_backend_rpc_start_server"
"""ggml's functions, found by name as llama.cpp's programs do (common/arg.cpp), also in backends loaded at run time."""

POINTER, TEXT, SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t


def check_endpoints(text: str) -> tuple[str, ...]:
    """Split --rpc, "host:port,host:port" as llama.cpp writes it; a missing port is 50052. Raises UsageError."""
    endpoints: list[str] = []
    for part in map(str.strip, text.split(",")):
        if not part:
            raise UsageError("--rpc has an empty address", "give host:port, several with commas between them")
        found = _endpoint("--rpc", part, f"it looks like 192.168.1.2:{PORT}")
        port = int(found["port"] or PORT)
        if not 0 < port <= LARGEST_PORT:
            raise UsageError(f"--rpc {part} has no such port", f"ports go from 1 to {LARGEST_PORT}")
        endpoint = f"{found['host'].lower()}:{port}"
        if endpoint in endpoints:
            raise UsageError(f"--rpc names {endpoint} twice", "name each server once")
        endpoints.append(endpoint)
    return tuple(endpoints)


def check_host(host: str) -> None:
    """Raise UsageError if -H of a server is no IPv4 address or name of a machine."""
    found = _endpoint("-H", host, f"for example -H {LOOPBACK}, or {EVERYWHERE} for all of this machine")
    if found["port"]:
        raise UsageError(f"-H {host} has a port", f"the port goes to -p: -H {found['host']} -p {found['port']}")


def _endpoint(flag: str, text: str, hint: str) -> re.Match[str]:
    """Match a flag's host, or host:port. Raises UsageError."""
    if "://" not in text and text.count(":") > 1:
        what = f"{flag} {text} is an IPv6 address, which llama.cpp does not take"
        raise UsageError(what, "give an IPv4 one or a name")
    if found := ENDPOINT.fullmatch(text):
        return found
    raise UsageError(f"{flag} {shlex.quote(text)} is no address", hint)


def ipv4(host: str) -> str:
    """Resolve a name to an IPv4 address, llama.cpp's only kind. Raises LacliError."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:  # a name may also be too long for a query
        raise LacliError(f"the name {host} cannot be resolved", "check its spelling, or give an IP address") from error


def own_address() -> str:
    """This machine's IPv4 address towards other networks; its name without a route there."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
            # Connecting UDP sends nothing, it only chooses the route.
            route.connect(EXAMPLE)
            return str(route.getsockname()[0])
    except OSError:
        return socket.gethostname()


def check_reachable(endpoints: Sequence[str], timeout_s: float) -> None:
    """Connect to each address once.

    Raises LacliError for an address where nothing listens or answers within `timeout_s` seconds, at most 5.
    """
    limit_s = min(timeout_s, CONNECT_S)
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        try:
            socket.create_connection((ipv4(host), int(port)), limit_s).close()
        except ConnectionRefusedError as error:
            hint = f"start one there: lacli rpc-server -p {port}; other machines need its -H too"
            raise LacliError(f"--rpc: no RPC server listens at {endpoint}: connection refused", hint) from error
        except TimeoutError as error:
            hint = f"{BUSY}; or the address is wrong, or a firewall is in between"
            raise LacliError(f"--rpc: {endpoint} does not answer within {limit_s:g} s", hint) from error
        except OSError as error:
            what = f"--rpc: cannot reach {endpoint}: {reason_of(error)}"
            raise LacliError(what, "check the address and the network") from error


class Answer(NamedTuple):
    """A child process's lines, one for each server, ggml's words on its stderr, and whether it ended in time."""

    lines: list[str]
    words: str
    in_time: bool


def remote_devices(endpoints: Sequence[str], timeout_s: float) -> list[Device]:
    """Ask servers for their devices: RPC0, RPC1 and so on in their order, each with its server's address.

    `timeout_s`: for all answers, at most 5. Raises LacliError if this build has no RPC, or a server is absent, does not
    answer, is something else or has another version.
    """
    need_support()
    check_reachable(endpoints, timeout_s)
    timeout_s = min(timeout_s, ANSWER_S)
    answer = _ask(endpoints, timeout_s)
    if len(answer.lines) == len(endpoints):
        return [Device(*row) for line in answer.lines for row in json.loads(line)]
    endpoint = endpoints[len(answer.lines)]
    if answer.in_time:
        raise _refused(endpoint, answer.words)
    what = f"--rpc: the RPC server at {endpoint} does not answer within {timeout_s:g} s"
    raise LacliError(what, f"{BUSY}; or something else listens there")


def _ask(endpoints: Sequence[str], timeout_s: float) -> Answer:
    in_time = True
    with subprocess.Popen(
        [*LISTING, *endpoints],
        bufsize=0,  # `readline` then leaves the other lines to `communicate`
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=python_environment(),
    ) as child:
        try:
            assert child.stdout
            # The limit begins when llama.cpp is loaded.
            child.stdout.readline()
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            in_time = False
            child.kill()
            out, err = child.communicate()
        except BaseException:
            child.kill()
            raise
    return Answer(out.decode().splitlines(), err.decode("utf-8", "replace"), in_time)


def _refused(endpoint: str, words: str) -> LacliError:
    """The error that ggml's last words about a server mean."""
    if other := OTHER_VERSION.search(words):
        what = f"--rpc: the RPC server at {endpoint} speaks version {other[1]} of the protocol, this llama.cpp another"
        return LacliError(what, SAME_VERSION)
    if NO_SERVER in words:
        what = f"--rpc: what listens at {endpoint} does not speak llama.cpp's RPC protocol"
        return LacliError(what, f"check the port; {SAME_VERSION}")
    last = [line.strip() for line in words.splitlines() if line.strip()][-1:] or ["llama.cpp gives no reason"]
    return LacliError(f"--rpc: the RPC server at {endpoint} cannot be used: {last[0].rsplit('/', 1)[-1]}", SAME_VERSION)


def supported() -> bool:
    """True if this llama.cpp was built with RPC."""
    return bool(_address(ADD) and _address(SERVE))


def need_support() -> None:
    """Raise LacliError, with the command that builds llama.cpp again, if it was built without RPC."""
    if not supported():
        raise LacliError("this llama.cpp was built without RPC", f"build it again: {rebuild_command('rpc')}")


def register(endpoints: Sequence[str]) -> list[Device]:
    """Add the devices of servers to this process, once each: RPC0, RPC1 and so on in their order.

    ggml aborts the process when a server is absent or goes away.
    """
    need_support()
    before = len(devices(memory=False))
    for endpoint in endpoints:
        _add(endpoint)
    return devices()[before:]


@cache
def _add(endpoint: str) -> None:
    ggml = declared(("ggml_backend_register", [POINTER], None))
    registry = ctypes.CFUNCTYPE(POINTER, TEXT)(_address(ADD))(endpoint.encode())
    if not registry:
        raise LacliError(f"the RPC server at {endpoint} has no devices", "start it again with --device")
    ggml.ggml_backend_register(registry)


def free_port(address: str, port: int) -> int:
    """Check that this machine can listen at `address` on `port`, or take any free port for 0. Raises LacliError."""
    try:
        with socket.create_server((address, port)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LacliError(f"port {port} is in use", "choose another with -p; -p 0 takes any that is free") from error
        if error.errno == errno.EADDRNOTAVAIL:
            hint = f"-H takes one of its own; {EVERYWHERE} is all of them"
            raise LacliError(f"{address} is no address of this machine", hint) from error
        raise LacliError(f"cannot listen at {address}:{port}: {reason_of(error)}", "choose another -H or -p") from error


def start_server(address: str, port: int, names: Sequence[str], threads: int, cache: Path | None) -> Thread:
    """Serve the devices `names` in a thread, which ends only if ggml cannot go on, and wait until it listens.

    The thread keeps ggml's endless call from holding back Ctrl-C. `threads`: of the processor, if it is served.
    `cache`: a folder for weights that clients send, None to keep none.
    """
    start = ctypes.CFUNCTYPE(None, TEXT, TEXT, SIZE, SIZE, POINTER)(_address(SERVE))
    ggml = declared(("ggml_backend_dev_by_name", [TEXT], POINTER))
    handles = (POINTER * len(names))(*(ggml.ggml_backend_dev_by_name(name.encode()) for name in names))
    folder = os.fsencode(cache) if cache else None
    arguments = (f"{address}:{port}".encode(), folder, threads, len(names), handles)
    server = Thread(target=start, args=arguments, daemon=True)
    server.start()
    while server.is_alive():
        with suppress(OSError):
            socket.create_connection((LOOPBACK if address == EVERYWHERE else address, port), 1.0).close()
            break
        server.join(GLANCE_S)
    return server


def _address(function: str) -> int:
    """The address of a function of ggml's RPC library, 0 in a build without it."""
    library()
    ggml = declared(
        ("ggml_backend_reg_by_name", [TEXT], POINTER), ("ggml_backend_reg_get_proc_address", [POINTER, TEXT], POINTER)
    )
    backend: int | None = ggml.ggml_backend_reg_by_name(b"RPC")
    found: int | None = ggml.ggml_backend_reg_get_proc_address(backend, function.encode()) if backend else None
    return found or 0


def list_devices(endpoints: Sequence[str]) -> None:
    """Print an empty line once llama.cpp is loaded, then each server's devices as JSON; ggml's words go to stderr."""
    library().verbose = True
    on_abort(_end)
    print(flush=True)
    try:
        for endpoint in endpoints:
            print(json.dumps(register([endpoint])), flush=True)
    except LacliError as error:
        _end(str(error))


def _end(message: str) -> NoReturn:
    """Say why, and end without a core dump."""
    print(message, file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    list_devices(sys.argv[1:])

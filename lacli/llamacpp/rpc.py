"""llama.cpp's RPC: addresses of servers, the devices they have, and serving this machine's.

ggml has the protocol and both ends of it. Its client aborts the process when a server goes away, so `remote_devices`
looks first whether somebody listens and then asks from a child process, which this file run as a program is: for each
address among its arguments it prints a line of JSON.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple, NoReturn

from lacli.errors import LacliError, UsageError, reason_of
from lacli.llamacpp.build import PYTHON, rebuild_command
from lacli.llamacpp.devices import Device
from lacli.llamacpp.library import (
    declared,
    devices,
    library,
    on_abort,
)
from lacli.llamacpp.probe import python_environment

LISTING = (PYTHON, "-P", "-m", "lacli.llamacpp.rpc")
"""Starts the child process that asks servers for their devices."""

PORT, LARGEST_PORT = 50052, 65535
"""llama.cpp's port of an RPC server, and the largest port of TCP."""

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"

ENDPOINT = re.compile(r"(?P<host>[^\s:/\\\[\]\x00]+)(?::(?P<port>[0-9]+))?")

CONNECT_S, ANSWER_S = 5.0, 5.0
"""Most seconds for connecting to an address, and for what servers have; one that is free needs a moment for either."""

GLANCE_S = 0.02
"""Seconds between two looks at a server that starts."""

EXAMPLE = ("192.0.2.1", PORT)
"""An address reserved for examples (RFC 5737): routed as other networks are, and nobody's."""

BUSY = "it serves one client at a time, and another may be using it"
SAME_VERSION = "both ends need the same version of llama.cpp"

OTHER_VERSION = re.compile(r"RPC server version mismatch: (\S+)")
NO_SERVER = "Remote RPC server crashed or returned malformed response"
"""What ggml says of a server of another version, and when an answer breaks off or has a wrong length."""

ADD, SERVE = "ggml_backend_rpc_add_server", "ggml_backend_rpc_start_server"
"""ggml's functions, asked for by name as llama.cpp's programs do (common/arg.cpp): a build that loads its backends at
run time has them too."""

POINTER, TEXT, SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t


def check_endpoints(text: str) -> tuple[str, ...]:
    """Split --rpc, "host:port,host:port" as llama.cpp writes it; a missing port is 50052. Raises UsageError."""
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


def check_host(host: str) -> None:
    """Raise UsageError if -H of a server is no IPv4 address or name of a machine."""
    if host.count(":") > 1:
        raise UsageError(f"-H {host} is an IPv6 address, which llama.cpp does not take", f"{EVERYWHERE} is all of IPv4")
    found = ENDPOINT.fullmatch(host)
    if not found:
        raise UsageError(f"-H {host!r} is no address", f"for example -H {LOOPBACK}")
    if found["port"]:
        raise UsageError(f"-H {host} has a port", f"the port goes to -p: -H {found['host']} -p {found['port']}")


def ipv4(host: str) -> str:
    """Resolve a name to an IPv4 address, the only kind that llama.cpp knows. Raises LacliError."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:  # a name may also be too long to be asked for
        raise LacliError(f"the name {host} cannot be resolved", "check its spelling, or give an IP address") from error


def own_address() -> str:
    """This machine's IPv4 address towards other networks; its name if no way leads there."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            # Connecting UDP sends nothing, it only chooses the way.
            way.connect(EXAMPLE)
            return str(way.getsockname()[0])
    except OSError:
        return socket.gethostname()


def check_reachable(endpoints: Sequence[str], timeout_s: float) -> None:
    """Connect to each address once and leave again; two names of one server raise UsageError.

    Raises LacliError if nothing listens there, or nothing answers within `timeout_s` seconds, at most 5.
    """
    seen: dict[tuple[str, int], str] = {}
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        address = (ipv4(host), int(port))
        if address in seen:
            raise UsageError(f"--rpc: {seen[address]} and {endpoint} are the same RPC server", "name each server once")
        seen[address] = endpoint
        _connect(endpoint, address, min(timeout_s, CONNECT_S))


def _connect(endpoint: str, address: tuple[str, int], timeout_s: float) -> None:
    try:
        socket.create_connection(address, timeout_s).close()
    except ConnectionRefusedError as error:
        hint = f"start one there: lacli rpc-server -p {address[1]}; other machines need its -H too"
        raise LacliError(f"--rpc: no RPC server listens at {endpoint}: connection refused", hint) from error
    except TimeoutError as error:
        hint = f"{BUSY}; or the address is wrong, or a firewall is in between"
        raise LacliError(f"--rpc: {endpoint} does not answer within {timeout_s:g} s", hint) from error
    except OSError as error:
        what = f"--rpc: cannot reach {endpoint}: {reason_of(error)}"
        raise LacliError(what, "check the address and the network") from error


class Answer(NamedTuple):
    """What a child process printed, a line for each server asked, what ggml said, and whether it ended in time."""

    lines: list[str]
    words: str
    in_time: bool


def remote_devices(endpoints: Sequence[str], timeout_s: float) -> list[Device]:
    """Ask servers for their devices: RPC0, RPC1 and so on in their order, `description` being the server's address.

    timeout_s: seconds for all answers, at most 5. Raises LacliError, in one line, if this build has no RPC or a server
    is not there, does not answer, is none or is of another version.
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
            # Loading llama.cpp is not the servers' time.
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
    """What ggml's last words about a server mean."""
    if other := OTHER_VERSION.search(words):
        what = f"--rpc: the RPC server at {endpoint} speaks version {other[1]} of the protocol, this llama.cpp another"
        return LacliError(what, SAME_VERSION)
    if NO_SERVER in words:
        what = f"--rpc: what listens at {endpoint} does not speak llama.cpp's RPC protocol"
        return LacliError(what, f"check the port; {SAME_VERSION}")
    last = [line.strip() for line in words.splitlines() if line.strip()][-1:] or ["llama.cpp gives no reason"]
    return LacliError(f"--rpc: the RPC server at {endpoint} cannot be used: {last[0].rsplit('/', 1)[-1]}", SAME_VERSION)


def supported() -> bool:
    """Whether this llama.cpp was built with RPC."""
    return bool(_address(ADD) and _address(SERVE))


def need_support() -> None:
    """Raise LacliError, with the command that builds llama.cpp again, if it was built without RPC."""
    if not supported():
        raise LacliError("this llama.cpp was built without RPC", f"build it again: {rebuild_command('rpc')}")


def register(endpoints: Sequence[str]) -> list[Device]:
    """Make the devices of servers devices of this process: RPC0, RPC1 and so on in their order.

    Only for a process that may die: ggml aborts it when a server is not there, or not there any more.
    """
    need_support()
    add = ctypes.CFUNCTYPE(POINTER, TEXT)(_address(ADD))
    ggml = declared(("ggml_backend_register", [POINTER], None), ("ggml_backend_dev_count", [], SIZE))
    before = ggml.ggml_backend_dev_count()
    for endpoint in endpoints:
        registry = add(endpoint.encode())
        if not registry:
            raise LacliError(f"the RPC server at {endpoint} has no devices", "start it again with --device")
        ggml.ggml_backend_register(registry)
    return devices()[before:]


def free_port(address: str, port: int) -> int:
    """A port on which this machine can listen at `address`: this one, or any free one for 0. Raises LacliError."""
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
    """Serve the devices of these names in a thread, which ends only if ggml cannot go on; wait until it listens.

    Python sees Ctrl-C meanwhile, which a call of ggml's would keep away. threads: of the processor, if it is served.
    cache: a folder for weights that clients send, None to keep none.
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
    """Where a function of ggml's RPC library lies; 0 in a build without it."""
    library()
    ggml = declared(
        ("ggml_backend_reg_by_name", [TEXT], POINTER), ("ggml_backend_reg_get_proc_address", [POINTER, TEXT], POINTER)
    )
    backend: int | None = ggml.ggml_backend_reg_by_name(b"RPC")
    found: int | None = ggml.ggml_backend_reg_get_proc_address(backend, function.encode()) if backend else None
    return found or 0


def list_devices(endpoints: Sequence[str]) -> None:
    """Print an empty line when llama.cpp is loaded, then each server's devices; ggml's words go to stderr."""
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

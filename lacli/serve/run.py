"""Runs the application on an address until it is told to end, by a signal or Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from lacli.errors import Interrupted, LacliError, reason_of

SEND_BUFFER = 64 * 2**10
"""Bytes of an answer that the system keeps for a client that does not read, instead of megabytes.

They hold 250 events of a token each, so that a client that stops reading is soon known as one.
"""


class Listener(uvicorn.Server):
    """uvicorn's server, whose signals are `serve`'s."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def open_sockets(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Sockets that listen on addresses, all on one port. Raises LacliError where that cannot be."""
    found: list[socket.socket] = []
    try:
        for host in hosts:
            found.append(open_socket(host, port))
            if not host.startswith("unix:"):
                port = found[-1].getsockname()[1]
    except LacliError:
        for listening in found:
            listening.close()
        raise
    return found


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on an address, or on a path behind `unix:`. Raises LacliError where that cannot be."""
    try:
        if host.startswith("unix:"):
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listening.bind(host.removeprefix("unix:"))
            listening.listen()
        else:
            listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        # Connections inherit it.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return listening
    except OSError as error:
        raise LacliError(
            f"cannot listen on {host} port {port}: {reason_of(error)}", "--port 0 takes a free one"
        ) from error


def serve(app: ASGIApp, listening: Sequence[socket.socket], *, drain_s: float, said: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, then let running answers end within `drain_s` seconds; a second one ends at once.

    Raises Interrupted after Ctrl-C.
    """
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=int(drain_s), lifespan="off"
    )
    server = Listener(config)
    pressed: list[int] = []

    def end(number: int) -> None:
        if not pressed:
            said(f"ending; answers that run have {drain_s:g} s")
        server.force_exit = bool(pressed)
        pressed.append(number)
        server.should_exit = True

    async def run() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        await server.serve(sockets=[*listening])

    asyncio.run(run())
    if signal.SIGINT in pressed:
        raise Interrupted("")

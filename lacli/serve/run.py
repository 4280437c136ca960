"""Runs the application on an address until it is told to end, by a signal or Ctrl-C."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from lacli.errors import Interrupted, LacliError, UsageError, reason_of
from lacli.text.format import counted

SEND_BUFFER = 64 * 2**10
"""Bytes of an answer that the system keeps for a client that does not read, instead of megabytes.

They hold 250 events of a token each, so that a client that stops reading is soon known as one.
"""


HEADERS_S = 20.0
"""Seconds in which the headers of a request have to come, as Apache's mod_reqtimeout has it."""

KEPT_S = 75
"""Seconds that a connection without a request is kept, as nginx does it: longer than clients keep theirs.

With uvicorn's 5 s one of 140 requests of openai's client at intervals of 5 s met a connection that was just closed.
"""


NO_HTTP = "Invalid HTTP request received."
"""What uvicorn says of bytes that it cannot read."""


LAST_S = 5.0
"""Seconds behind `drain_s` in which answers that were ended tell their clients so: a step of a prompt may take 2 s."""


FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of the system where it has no room for another connection, as asyncio knows them."""

FULL_TOLD_S = 60.0
"""Seconds between two lines about it: asyncio speaks of each connection, of thousands a second."""

LOGS = ("uvicorn.error", "asyncio")
"""The loggers whose lines would go to stderr by themselves."""


class Certificate(NamedTuple):
    """Files of a certificate and of its private key, in PEM."""

    file: str
    key: str


def checked_certificate(file: str, key: str) -> Certificate | None:
    """What https needs, None where neither is given. Raises UsageError for one of them, LacliError for a wrong pair."""
    if not file and not key:
        return None
    if not file or not key:
        raise UsageError("https needs a certificate and its key", "give --ssl-cert-file and --ssl-key-file")
    for each in (file, key):
        if not os.path.isfile(each):
            raise LacliError(f"there is no file {each}", "give a certificate and its key in PEM")
    try:
        # A key with a pass phrase would ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, key, password="")
    except (OSError, ValueError) as error:
        what = f"cannot use {file} with {key}: {reason_of(error)}"
        raise LacliError(what, _cure(file, key)) from error
    return Certificate(file, key)


def _cure(file: str, key: str) -> str:
    """What to do about a pair that cannot be used, from what stands in the two files."""
    try:
        certificate, secret = (Path(each).read_bytes() for each in (file, key))
    except OSError:
        return "give files that this user can read"
    if b" PRIVATE KEY-----" in certificate and b"-----BEGIN CERTIFICATE-----" in secret:
        return "they are exchanged: the certificate goes to --ssl-cert-file, its key to --ssl-key-file"
    if b"ENCRYPTED" in secret:
        return f"take the pass phrase off: openssl pkey -in {quote(key)} -out plain.pem"
    return "give a certificate and its key in PEM, without a pass phrase"


class TimedProtocol(H11Protocol):
    """Closes a connection on which `HEADERS_S` seconds pass without the whole headers of a request.

    They count from its beginning, and again from the first byte behind an answer: be it of headers, or of a body that
    was answered before its end. uvicorn itself closes a connection that stays silent there.
    """

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._time()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _time(self) -> None:
        """Go on counting the seconds, or stop where an answer is on its way."""
        if self.cycle and not self.cycle.response_complete:
            self._stop()
        elif not self._closing:
            self._closing = self.loop.call_later(HEADERS_S, self.transport.close)

    def _stop(self) -> None:
        if self._closing:
            self._closing.cancel()
            self._closing = None


class Listener(uvicorn.Server):
    """uvicorn's server with settings of its own; its signals are `serve`'s."""

    def __init__(self, app: ASGIApp, drain_s: float, certificate: Certificate | None = None) -> None:
        """`drain_s`: seconds that running answers have when it ends. `certificate`: for https."""
        logging.getLogger("uvicorn.error").addFilter(_is_told)
        super().__init__(
            uvicorn.Config(
                app,
                http=TimedProtocol,
                ws="none",
                log_config=None,
                access_log=False,
                timeout_keep_alive=KEPT_S,
                timeout_graceful_shutdown=int(drain_s + LAST_S),
                lifespan="off",
                ssl_certfile=certificate and certificate.file,
                ssl_keyfile=certificate and certificate.key,
            )
        )

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def open_sockets(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Sockets for addresses, all on one port. Raises LacliError where that cannot be."""
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
    """A socket for an address, or for a path behind `unix:`. Raises LacliError where that cannot be.

    The one on a path listens at once, so that another server does not take it for a killed one's.
    """
    try:
        path = host.removeprefix("unix:")
        listening = _bound_to(host, port) if path == host else _listening_on(path)
        # Connections inherit it.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return listening
    except OSError as error:
        raise _no_listener(host, port, error) from error


def listen(host: str, bound: socket.socket) -> None:
    """Take connections from now on. Raises LacliError where another server has done so on this address since."""
    try:
        bound.listen()
    except OSError as error:
        raise _no_listener(host, 0 if host.startswith("unix:") else bound.getsockname()[1], error) from error


def _no_listener(host: str, port: int, error: OSError) -> LacliError:
    if host.startswith("unix:"):
        return LacliError(f"cannot listen on {host}: {reason_of(error)}", "another path may do")
    is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
    hint = "--port 0 takes a free one" if is_port else "127.0.0.1 is this machine alone, 0.0.0.0 all its addresses"
    return LacliError(f"cannot listen on {host} port {port}: {reason_of(error)}", hint)


def _bound_to(host: str, port: int) -> socket.socket:
    """A socket that refuses connections until the server listens on it: a model may take a minute to load."""
    # asyncio has TCP send small parts at once where a socket names TCP; else a kept connection waits 40 ms for each.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # The port of a server that has just ended can be had again.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _listening_on(path: str) -> socket.socket:
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


def _remove_stale(path: str) -> None:
    """Remove a socket that a killed server has left, on which nobody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        try:
            caller.connect(path)
        except ConnectionRefusedError:
            # An ordinary file refuses connections too.
            if stat.S_ISSOCK(os.stat(path).st_mode):
                os.unlink(path)
        except OSError:
            # There is none, or it is another kind of file.
            return


def serve(
    app: ASGIApp,
    listening: Sequence[socket.socket],
    *,
    drain_s: float,
    said: Callable[[str], None],
    warned: Callable[[str], None],
    busy: Callable[[], int],
    refuse: Callable[[], None],
    stop: Callable[[], None],
    certificate: Certificate | None = None,
) -> None:
    """Serve until one of `ending_signals`, then let answers end within `drain_s` seconds; a second one ends at once.

    `said`: takes lines for people. `warned`: those that they want to see in any case. `busy`: the number of running
    answers. `refuse`: ends those that wait, and takes no more. `stop`: ends those that run, so that they tell their
    clients. `certificate`: for https. Raises Interrupted after Ctrl-C.
    """
    server = Listener(app, drain_s, certificate)
    pressed: list[int] = []

    def end(number: int) -> None:
        if pressed and number == signal.SIGHUP:
            # A closed terminal's may come twice, from the system and from the shell.
            return
        loop = asyncio.get_running_loop()
        if pressed:
            stop()
            loop.call_later(LAST_S, force)
        else:
            answers = busy()
            more = f"; {counted(answers, 'answer')} may take {drain_s:g} s more; once more ends them now"
            said(f"ending{more if answers else ''}")
            refuse()
            loop.call_later(drain_s, stop)
        pressed.append(number)
        server.should_exit = True

    def force() -> None:
        server.force_exit = True

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(exception_handler(warned))
        for number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        await server.serve(sockets=[*listening])

    paths = [each.getsockname() for each in listening if each.family == socket.AF_UNIX]
    lines = LogLines(warned)
    for name in LOGS:
        logging.getLogger(name).addHandler(lines)
    try:
        asyncio.run(run())
    finally:
        if signal.SIGHUP in pressed:
            # The event loop gives it back to the system, and what was learned is not kept yet.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for name in LOGS:
            logging.getLogger(name).removeHandler(lines)
        for path in paths:
            Path(path).unlink(missing_ok=True)
    if signal.SIGINT in pressed:
        raise Interrupted("")


def ending_signals() -> list[signal.Signals]:
    """The signals that end a server: Ctrl-C, SIGTERM and SIGHUP, unless it is to outlive its terminal (nohup)."""
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if outlives else [signal.SIGHUP])]


def exception_handler(warned: Callable[[str], None]) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return a handler of an event loop's errors; connections that the system has no room for get a line a minute."""
    last_s = -FULL_TOLD_S

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal last_s
        error = context.get("exception")
        # asyncio names the socket where it accepts connections.
        if "socket" not in context or not (isinstance(error, OSError) and error.errno in FULL):
            loop.default_exception_handler(context)
        elif loop.time() - last_s >= FULL_TOLD_S:
            last_s = loop.time()
            todo = " (ulimit -n)" if error.errno == errno.EMFILE else ""
            warned(f"no further connection can be taken in: {reason_of(error)}{todo}")

    return handle


class LogLines(logging.Handler):
    """Hands what libraries log to `warned`, a line at a time."""

    def __init__(self, warned: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warned = warned

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            self._warned(line)


def _is_told(record: logging.LogRecord) -> bool:
    """False for the traceback of an answer that the server's end has broken off; uvicorn's sentence gets ours."""
    if record.msg == NO_HTTP:
        record.msg = "something that is no HTTP came to this address; https, perhaps"
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))

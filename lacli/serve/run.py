"""The server process: its addresses, uvicorn's settings, and the checks that refuse requests."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from ipaddress import ip_address
from typing import Any

import uvicorn
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from lacli.errors import LacliError, UsageError, reason_of
from lacli.serve.protocol import error_body

UNIX = "unix:"

HEADERS_S = 20.0
"""Seconds that a client has to send the headers of a request, as in Apache's mod_reqtimeout."""

PUBLIC = r"/(health|page/.*)?"
"""Paths that need no key: programs that monitor a server have none, and the page asks the user for one."""

THIS_MACHINE = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


def access_for(
    hosts: Sequence[str], keys: Sequence[str] = (), origins: Sequence[str] = (), *, no_auth: bool = False
) -> list[Middleware]:
    """Return the middleware that refuses requests, outermost first. `keys`: if there are any, a request needs one.

    `hosts`: addresses of the server. If no other machine can reach them, a request's Host header must name localhost,
    127.0.0.1, ::1 or one of `hosts`. `origins`: of pages whose scripts may send requests; `localhost` for this
    machine's, `*` for all. Raises UsageError if other machines can reach a host, but `keys` and `no_auth` are unset.
    """
    local = all(host.startswith(UNIX) or is_loopback(host) for host in hosts)
    if not (local or keys or no_auth):
        what = f"other machines can reach {', '.join(hosts)}, and there is no API key"
        raise UsageError(what, "set one with --api-key KEY, or accept all requests with --no-auth")
    layers = []
    if origins or not keys:
        kind = CORSMiddleware if keys else Pages
        cors = partial(kind, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])
        layers.append(Middleware(cors, allow_origin_regex=THIS_MACHINE if "localhost" in origins else None))
    if local:
        names = ["localhost", "127.0.0.1", "[::1]", *(f"[{host}]" if ":" in host else host for host in hosts)]
        layers.append(Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False))
    return [*layers, Middleware(Keys, keys=keys)] if keys else layers


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine can reach `host`, an IP address or a name."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class Pages(CORSMiddleware):
    """Middleware that answers 403 to requests from other servers' pages (header Origin), unless they are allowed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        # A page cannot set X-Forwarded-Host: a browser first asks the server whether the page may send this header.
        own = [headers.get("host", ""), *map(str.strip, headers.get("x-forwarded-host", "").split(","))]
        if origin is None or self.is_allowed_origin(origin) or origin.partition("://")[2] in filter(None, own):
            await super().__call__(scope, receive, send)
            return
        body = error_body(403, f"pages of {origin[:99]} may not ask: set --cors-origins, or a proxy's X-Forwarded-Host")
        await JSONResponse(body, 403)(scope, receive, send)


class Keys:
    """Middleware that answers 401 to requests without one of the keys, except for the paths in PUBLIC."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app, self._keys = app, [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or re.fullmatch(PUBLIC, scope["path"]) or self._opens(scope, Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        body = error_body(401, "send an API key in the header Authorization: Bearer KEY", "authentication_error")
        await JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _opens(self, scope: Scope, headers: Headers) -> bool:
        """Return whether the headers hold a valid key, compared in constant time. Puts the key's hash in `scope`."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = (token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")).encode()
        scope["owner"] = f"{sha256(given).hexdigest()[:16]}-"
        return any([hmac.compare_digest(key, given) for key in self._keys])


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP protocol. Closes a connection if the headers of a request take more than HEADERS_S seconds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.cycle or self.cycle.response_complete:
            self._await_request()

    def _await_request(self) -> None:
        last = self.cycle
        self.loop.call_later(HEADERS_S, lambda: self.transport.close() if self.cycle is last else None)


def open_sockets(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Return sockets bound to `hosts`, all with one `port` (0: any free port), to reserve it while the model loads.

    A socket refuses connections until the server listens on it. Raises LacliError if an address cannot be bound.
    """
    found: list[socket.socket] = []
    for host in hosts:
        # With IPPROTO_TCP asyncio sends small parts at once. Otherwise each takes 40 ms on a kept connection.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
        except OSError as error:
            for each in (*found, bound):
                each.close()
            hint = "--port 0 takes a free one; 127.0.0.1 is this machine, 0.0.0.0 all its addresses"
            raise LacliError(f"cannot listen on {host} port {port}: {reason_of(error)}", hint) from error
        found.append(bound)
        port = bound.getsockname()[1]
    return found


class Listener(uvicorn.Server):
    """uvicorn's server with lacli's settings."""

    def __init__(
        self, app: ASGIApp, *, drain_s: float = 10, begun: Callable[[], None] = lambda: None, **settings: Any
    ) -> None:
        """`drain_s`: seconds for answers at Ctrl-C. `begun`: called when the server listens. `settings`: uvicorn's."""
        settings |= {"http": TimedProtocol, "loop": "asyncio", "ws": "none", "lifespan": "off", "log_config": None}
        # A connection without a request stays open for 75 seconds, as in nginx.
        settings |= {"limit_concurrency": 512, "timeout_keep_alive": 75, "timeout_graceful_shutdown": drain_s}
        super().__init__(uvicorn.Config(app, **settings))
        self._begun = begun

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if (path := self.config.uds) and not os.path.exists(path):
            # uvicorn keeps the mode of an existing socket file; its own new file would be open to all users.
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path)
            os.chmod(path, 0o600)
        await super().startup(sockets)
        self._begun()


def serve(server: Listener, sockets: list[socket.socket] | None) -> None:
    """Serve until Ctrl-C or SIGTERM, then let running answers end; a second Ctrl-C ends at once.

    `sockets`: from `open_sockets`, None for a Unix socket. Raises LacliError for an unusable certificate or path.
    """
    # At its end uvicorn raises the signal again. SystemExit then lets this program clean up.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.run(sockets)
    except OSError as error:
        raise LacliError(f"cannot serve: {reason_of(error)}", "check certificate, key and unix:PATH") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def log_from(level: int) -> None:
    """Write log messages of `level` and above to stderr: lacli's, and uvicorn's with a line for each request."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    # If the end of the server breaks off an answer, the log has no traceback.
    handler.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)))
    for name in ("uvicorn", "lacli"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(level)

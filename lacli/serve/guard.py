"""Who may ask: API keys, the Host header on a loopback address, and the size and time of a request's body."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from re import fullmatch

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lacli.errors import LacliError, UsageError, reason_of
from lacli.serve import pages
from lacli.serve.replies import error_body

PUBLIC = ("/health", "/v1/health", *pages.FILES)
"""What is answered without a key: programs that only watch whether the server lives have none, and the page
asks for one."""

OWNER = "lacli.owner"
"""Where a request's scope says whose it is, None without a right key; where none is needed it says nothing."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""Names of this machine in a Host header; another one is a page that resolved its own name to this address."""


BODY_S = 60.0
"""Seconds in which a request's body has to come: 8 MiB at 1.2 Mbit/s."""


@dataclass(frozen=True)
class GuardSettings:
    """Who may ask. `keys`: any of them opens, and each is an owner of texts; none is needed where there are none.

    `hosts`: names that a request may be made to, without their ports; empty for any. `body`: bytes of a request, which
    has to be there after `body_s` seconds.
    """

    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    body: int = 8 * 2**20
    body_s: float = BODY_S


def guard_settings(hosts: Sequence[str], keys: Sequence[str], *, no_auth: bool, body: int) -> GuardSettings:
    """Who may ask at addresses, by the names of all where only this machine reaches them.

    Raises UsageError for an address with a port, for one that others reach while no key is asked for, and for keys that
    nobody needs.
    """
    if keys and no_auth:
        raise UsageError(
            "--no-auth lets everybody in, and --api-key or --api-key-file asks for a key", "drop one of them"
        )
    if not hosts:
        raise UsageError("--host is empty", "write --host 127.0.0.1, or leave it out")
    for host in hosts:
        if host == "unix:":
            raise UsageError("--host unix: names no file", "write --host unix:PATH")
        if host.startswith("unix:"):
            continue
        if "/" in host:
            raise UsageError(f"--host {host} is no address", "write --host 0.0.0.0 or a name, without http://")
        if found := fullmatch(r"([^:]*|\[.*\]):(\d+)", host):
            raise UsageError(
                f"--host {host} has a port in it", f"write --host {found[1].strip('[]')} --port {found[2]}"
            )
        if not (keys or no_auth or is_loopback(host)):
            raise UsageError(
                f"{host} can be reached by others, and no key is asked for",
                "--api-key KEY asks for one; --no-auth lets everybody in",
            )
    names = [*LOOPBACK, *(f"[{host}]" if ":" in host else host for host in hosts)]
    return GuardSettings(tuple(keys), tuple(dict.fromkeys(names)) if all(map(is_loopback, hosts)) else (), body)


def is_loopback(host: str) -> bool:
    """True for an address that only programs of this machine reach."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def given_keys(texts: Sequence[str]) -> list[str]:
    """The keys of `--api-key`, several with commas. Raises UsageError for an empty one: a variable that is not set."""
    keys = [key.strip() for text in texts for key in text.split(",")]
    if not all(keys):
        raise UsageError("--api-key is empty", "give a key, or leave it out")
    return keys


def read_keys(path: str) -> list[str]:
    """The keys of a file, one a line; lines that begin with # are none.

    Raises LacliError for a file that cannot be read or holds none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            keys = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise LacliError(f"cannot read {path}: {reason_of(error)}", "give a file with a key a line") from error
    if not keys:
        raise LacliError(f"{path} holds no key", "give a file with a key a line")
    return keys


class Guard:
    """Lets requests through that may ask."""

    def __init__(self, app: ASGIApp, settings: GuardSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        owner = self._owner(headers)
        if refused := self._refusal(scope["path"], headers, owner):
            await refused(scope, receive, send)
            return
        read, is_whole = 0, False
        end = asyncio.get_running_loop().time() + self._settings.body_s

        async def limited() -> Message:
            nonlocal read, is_whole
            if is_whole:
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(408, f"a request has to be there in {self._settings.body_s:g} s") from error
            read, is_whole = read + len(message.get("body", b"")), not message.get("more_body", False)
            if read > self._settings.body:
                raise HTTPException(413)
            return message

        if self._settings.keys:
            scope[OWNER] = owner
        await self._app(scope, limited, send)

    def _refusal(self, path: str, headers: Headers, owner: str | None) -> JSONResponse | None:
        settings = self._settings
        host = headers.get("host", "").rpartition(":")[0] if _has_port(headers) else headers.get("host", "")
        if settings.hosts and host.lower() not in settings.hosts:
            what = f"this server is not {host or 'named'}: ask for {settings.hosts[0]}"
            return JSONResponse(error_body(403, "forbidden_error", what), 403)
        if int(headers.get("content-length") or 0) > settings.body:
            what = f"a request has {settings.body:,} bytes at most"
            return JSONResponse(error_body(413, "invalid_request_error", what), 413)
        if settings.keys and path not in PUBLIC and owner is None:
            given = any(name in headers for name in ("authorization", "x-api-key"))
            what = f"{'the API key is wrong' if given else 'no API key'}: send the header Authorization: Bearer KEY"
            return JSONResponse(error_body(401, "authentication_error", what), 401, {"WWW-Authenticate": "Bearer"})
        return None

    def _owner(self, headers: Headers) -> str | None:
        """Whose key a request has, None for no right one; each is compared, in constant time.

        The first key is the program's own owner, "", for whom is kept between runs what mode auto learns.
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = (token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")).encode()
        are_right = [hmac.compare_digest(key.encode(), given) for key in self._settings.keys]
        return next((str(place) if place else "" for place, is_right in enumerate(are_right) if is_right), None)


def owner_of(request: Request) -> str:
    """Whose a request is."""
    return request.scope.get(OWNER) or ""


def _has_port(headers: Headers) -> bool:
    host = headers.get("host", "")
    return host.rpartition(":")[2].isdecimal() and (not host.startswith("[") or "]:" in host)

"""Pages of other origins whose scripts may ask (CORS); none may unless they are named."""

from __future__ import annotations

from collections.abc import Sequence
from re import fullmatch

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lacli.errors import UsageError
from lacli.serve.replies import REQUEST_ID, error_body

THIS_MACHINE = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


def checked_origins(origins: Sequence[str]) -> Sequence[str]:
    """The origins: addresses, `localhost` for this machine's, `*`. Raises UsageError for one that no browser sends."""
    for origin in origins:
        if origin not in ("localhost", "*") and not fullmatch(r"[\w.+-]+://[^/]+", origin):
            host = origin.partition("://")[2] or origin
            raise UsageError(f"--cors-origins {origin} is no origin", f"for example https://{host.partition('/')[0]}")
    return origins


class Origins(CORSMiddleware):
    """Answers browsers that ask whether a page may ask, and refuses pages that may not."""

    def preflight_response(self, request_headers: Headers) -> Response:
        if self.is_allowed_origin(origin := request_headers["origin"]):
            return super().preflight_response(request_headers)
        return _refusal(origin)

    async def simple_response(self, scope: Scope, receive: Receive, send: Send, request_headers: Headers) -> None:
        """Refuse a page whose browser does not ask first, and would only keep the answer from it."""
        origin, host = request_headers.get("origin", ""), request_headers.get("host")
        is_own = origin.partition("://")[2] == host or request_headers.get("sec-fetch-site") == "same-origin"
        if origin and scope["method"] == "POST" and not (is_own or self.is_allowed_origin(origin)):
            await _refusal(origin)(scope, receive, send)
        else:
            await super().simple_response(scope, receive, send, request_headers)


def _refusal(origin: str) -> Response:
    what = f"pages of {origin} may not ask: --cors-origins names those that may"
    return JSONResponse(error_body(403, "forbidden_error", what), 403)


def with_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """An application that lets browsers ask for pages of `origins`, which are checked, and for no others."""
    return Origins(
        app,
        allow_origins=[each for each in origins if each != "localhost"],
        allow_origin_regex=THIS_MACHINE if "localhost" in origins else None,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=[REQUEST_ID],
    )

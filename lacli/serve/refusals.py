"""Requests that get no answer: their errors in OpenAI's shape, and the JSON that is read before."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from lacli.errors import LacliError, PromptError, SamplingError, UsageError, in_one_line
from lacli.llamacpp.sampling import SamplingSettings
from lacli.options import options_of

INVALID, TOO_LONG, FAILED, NOT_SUPPORTED = (
    "invalid_request_error",
    "exceed_context_size_error",
    "server_error",
    "not_supported_error",
)

FIELDS = {each.label: each.request or name for name, each in options_of(SamplingSettings).items()}
"""The fields of requests by the flags that name the same settings."""

Endpoint = Callable[[Request], Awaitable[Response]]


def error_body(status: int, kind: str, message: str, **more: Any) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    return {"error": {"code": status, "message": message, "type": kind, **more}}


class Refused(Exception):
    """A request that gets an error and no answer."""

    def __init__(self, status: int, kind: str, message: str, **more: Any) -> None:
        """`more`: further fields of the error."""
        super().__init__(message)
        self.status, self.body = status, error_body(status, kind, message, **more)


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object of a request. Raises Refused where it is none."""
    try:
        found = json.loads(await request.body())
    except ValueError as error:
        raise Refused(400, INVALID, f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused(400, INVALID, "the body is no JSON object")
    return found


async def not_offered(request: Request) -> Response:
    """Answer for a route that the server was started without."""
    raise Refused(501, NOT_SUPPORTED, f"this server was started without {request.url.path}")


def failure_of(error: Exception) -> tuple[int, str]:
    """The status of an error and OpenAI's name of its kind: what a request asks for is its fault, the rest is not."""
    if isinstance(error, UsageError | PromptError | SamplingError):
        return 400, INVALID
    return 500, FAILED


async def _refuse(request: Request, error: Exception) -> Response:
    """Say in OpenAI's shape what was wrong; Starlette raises an unknown error again, for the log."""
    match error:
        case Refused():
            return JSONResponse(error.body, error.status)
        case HTTPException():
            said = f"{request.method} {request.url.path}: {error.detail.lower()}"
            return JSONResponse(error_body(error.status_code, INVALID, said), error.status_code, error.headers)
        case ClientDisconnect():
            return Response(status_code=499)
        case RecursionError():
            return JSONResponse(error_body(400, INVALID, "the request is nested too deeply"), 400)
    said = str(error) if isinstance(error, LacliError) else in_one_line(error)
    # Settings are named by their flags, and requests have llama.cpp's and OpenAI's names for them.
    said = re.sub(r"--[a-z-]+", lambda found: FIELDS.get(found[0], found[0]), said)
    status, kind = failure_of(error)
    return JSONResponse(error_body(status, kind, said), status)


HANDLERS: dict[type[Exception], Callable[[Request, Exception], Any]] = dict.fromkeys(
    (Refused, LacliError, HTTPException, ClientDisconnect, RecursionError, Exception), _refuse
)
"""What answers for each kind of error."""

"""Requests that get no answer: their errors in OpenAI's shape, and the JSON that is read before."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lacli.errors import LacliError, PromptError, SamplingError, Unavailable, UsageError, in_one_line
from lacli.llamacpp.sampling import flag
from lacli.serve.protocol import NotOffered, in_words
from lacli.serve.replies import error_body
from lacli.serve.sampled import NAMES
from lacli.text.format import did_you_mean, offered

INVALID, TOO_LONG, BUSY, FAILED, NOT_SUPPORTED = (
    "invalid_request_error",
    "exceed_context_size_error",
    "unavailable_error",
    "server_error",
    "not_supported_error",
)

FIELDS = {flag(name): field for field, name in NAMES.items()}
FIELDS |= {flag(name): name for name in ("grammar", "json_schema", "logit_bias")}
"""The fields of requests by the flags that name the same settings."""

LONGEST_PATH = 60
"""Characters of an unknown path that are compared with the known ones."""

Endpoint = Callable[[Request], Awaitable[Response]]

Asked = TypeVar("Asked", bound=BaseModel)


class Refused(Exception):
    """A request that gets an error and no answer."""

    def __init__(self, status: int, kind: str, message: str, *, retry_s: int = 0, **more: Any) -> None:
        """`retry_s`: seconds after which another try may be answered. `more`: further fields of the error."""
        super().__init__(message)
        self.status, self.body = status, error_body(status, kind, message, **more)
        # OpenAI's client asks again after any status from 500 on, unless it is told not to.
        self.headers = (
            {"Retry-After": f"{retry_s}"} if retry_s else {"X-Should-Retry": "false"} if status == 501 else None
        )


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object of a request. Raises Refused where it is none."""
    try:
        found = json.loads(await request.body())
    except ValueError as error:
        raise Refused(400, INVALID, f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused(400, INVALID, "the body is no JSON object")
    return found


def parsed(kind: type[Asked], body: dict[str, Any]) -> Asked:
    """A request checked. Raises Refused with the first thing that is wrong."""
    try:
        return kind.model_validate(body)
    except NotOffered as error:
        raise Refused(501, NOT_SUPPORTED, str(error)) from error
    except ValidationError as error:
        raise Refused(400, INVALID, in_words(error)) from error


def refusing(why: str) -> Endpoint:
    """An endpoint that is not offered."""
    return partial(_refuse_path, why)


async def _refuse_path(why: str, request: Request) -> Response:
    raise Refused(501, NOT_SUPPORTED, why)


async def refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return JSONResponse(error.body, error.status, error.headers)


async def refuse_ours(request: Request, error: Exception) -> Response:
    """Say what lacli's own errors say."""
    # Settings are named by their flags, and requests have llama.cpp's and OpenAI's names for them.
    said = re.sub(r"--[a-z-]+", lambda found: FIELDS.get(found[0], found[0]), str(error))
    status, kind = failure_of(error)
    # Without the header OpenAI's client tries again after 0.5 and 1 s, when the port is closed.
    headers = {"Retry-After": f"{error.retry_s}"} if isinstance(error, Unavailable) and error.retry_s else None
    return JSONResponse(error_body(status, kind, said), status, headers)


def failure_of(error: Exception) -> tuple[int, str]:
    """The status of an error and OpenAI's name of its kind: what a request asks for is its fault, the rest is not."""
    if isinstance(error, UsageError | PromptError | SamplingError):
        return 400, INVALID
    return (503, BUSY) if isinstance(error, Unavailable) else (500, FAILED)


async def refuse_depth(request: Request, error: Exception) -> Response:
    """Refuse JSON in JSON in JSON, deeper than Python goes."""
    return JSONResponse(error_body(400, INVALID, "the request is nested too deeply"), 400)


async def refuse_http(request: Request, error: Exception) -> Response:
    """Say in OpenAI's shape what the library refuses: an unknown path, a method, a body that is too large."""
    assert isinstance(error, HTTPException)
    # The library names the methods of a path whose method was wrong.
    way = f", use {error.headers['Allow']}" if error.headers and "Allow" in error.headers else ""
    if error.status_code == 404:
        way = f", {_meant(request.url.path[:LONGEST_PATH], known_paths(request))}"
    said = f"{request.method} {request.url.path}: {error.detail.lower()}{way}"
    return JSONResponse(error_body(error.status_code, INVALID, said), error.status_code, error.headers)


def _meant(path: str, known: Sequence[str]) -> str:
    """The question whether paths that a wrong one stands in or resembles were meant, or what is spoken here."""
    containing = [each for each in known if path.rstrip("/") in each] if len(path) > 1 else []
    containing.sort(key=lambda each: not each.startswith("/v1/"))
    return offered(containing[:2]) or did_you_mean(path, known, "lacli speaks OpenAI's protocol, under /v1")


def known_paths(request: Request) -> list[str]:
    """The paths of the application that has the request, without those that are not offered."""
    routes = [each for each in request.app.routes if isinstance(each, Route) and "{" not in each.path]
    return [each.path for each in routes if getattr(each.endpoint, "func", None) is not _refuse_path]


async def refuse_failure(request: Request, error: Exception) -> Response:
    """Say what failed inside; Starlette raises it again, so that the log has its traceback."""
    return JSONResponse(error_body(500, FAILED, in_one_line(error)), 500)


async def answer_nobody(request: Request, error: Exception) -> Response:
    """Answer a client that has gone away, which is no error to log."""
    return Response(status_code=499)


HANDLERS: dict[type[Exception], Callable[[Request, Exception], Any]] = {
    Refused: refuse,
    LacliError: refuse_ours,
    HTTPException: refuse_http,
    ClientDisconnect: answer_nobody,
    RecursionError: refuse_depth,
    Exception: refuse_failure,
}
"""What answers for each kind of error."""

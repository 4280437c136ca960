"""The access log: a line for each answered request, without what was asked; and the counts of their statuses."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from io import TextIOWrapper
from secrets import token_hex
from select import select
from time import perf_counter, strftime
from typing import TextIO

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lacli.serve import pages
from lacli.serve.guard import OWNER
from lacli.serve.meter import Meter
from lacli.serve.replies import REQUEST_ID, usage
from lacli.session.report import busy
from lacli.terminal.screen import BUSY_AFTER_S
from lacli.text.format import counted, printable

CHOICES = "lacli.choices"
"""Where a request's scope has its answers."""

POLLED = ("/health", "/v1/health", "/slots", "/metrics", "/lacli/steps", *pages.FILES)
"""What programs and the page ask for all the time."""

TOLD_WAIT_S = 1.0
"""Seconds of waiting for a place, or for a step that is taken, from which a line tells them: fewer are hardly felt."""

LONGEST_PATH = 100
"""Characters of a path that a line shows."""

LONGEST_LINE = 1000
"""Characters of a line: a pipe that is not full takes 4,096 bytes at once (PIPE_BUF)."""


class AccessLog:
    """Tells of each request once its answer has ended, and with `polled` why it was refused."""

    def __init__(self, app: ASGIApp, meter: Meter, said: Callable[[str], None], *, polled: bool) -> None:
        """`said`: takes a line. `polled`: tell of what is asked for all the time too."""
        self._app, self._meter, self._said, self._polled = app, meter, said, polled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # nginx's status for a client that left before there was one.
        status, begin, said, request_id = 499, perf_counter(), "", _id_of(scope)

        async def watched(message: Message) -> None:
            nonlocal status, said
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (REQUEST_ID.encode(), request_id.encode())]
                message = {**message, "headers": headers}
            elif self._polled and status >= 400 and not said and (body := message.get("body")):
                # An error may quote a request, and no line does but with -v. A client that has left gets none.
                said = f": {_error(body)}"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._meter.count_status(status)
            if self._polled or status >= 400 or scope["path"] not in POLLED:
                self._said(_line(scope, request_id, status, perf_counter() - begin) + said)


def _id_of(scope: Scope) -> str:
    """The id of a request: the client's own, where it gives one that is safe in a line, or a new one."""
    given = Headers(scope=scope).get(REQUEST_ID, "")
    return given if re.fullmatch("[!-~]{1,64}", given) else token_hex(4)


def own_stderr(errors: TextIO | None) -> TextIO | None:
    """Open stderr once more: while a grammar is read the process's is another file, and a line would be lost."""
    if errors is None:
        return None
    try:
        file = os.fdopen(os.dup(errors.fileno()), "wb")
    except (OSError, ValueError):  # it is closed, or no file
        return errors
    # The program's own kind takes what is written also once its terminal is closed.
    kind = type(errors) if isinstance(errors, TextIOWrapper) else TextIOWrapper
    return kind(file, errors.encoding, errors.errors, line_buffering=True)


def unless_full(said: Callable[[str], None]) -> Callable[[str], None]:
    """Wrap `said` so that a line is left out while stderr is a full pipe, which would hold up all for its reader.

    Lines begin with the date. Where there is room again a line counts those that were left out.
    """
    left_out = 0

    def say(line: str) -> None:
        nonlocal left_out
        if not _has_room():
            left_out += 1
        elif left_out:
            said(f"{_now()} {counted(left_out, 'line')} left out: this log was not read")
            left_out = 0
            say(line)
        else:
            said(f"{_now()} {line[:LONGEST_LINE]}")

    return say


def _now() -> str:
    """The date and the time, with which a line begins."""
    return strftime("%Y-%m-%d %H:%M:%S")


def _has_room() -> bool:
    """False where stderr is a pipe, or a socket, that is full."""
    try:
        return bool(select([], [sys.stderr], [], 0)[1])
    except (OSError, ValueError, TypeError):  # it is no file, or Windows, which can ask sockets only
        return True


def _error(body: bytes) -> str:
    """The sentence of an error's body, in one line."""
    try:
        return printable(str(json.loads(body)["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return "no reason is given"


def _line(scope: Scope, request_id: str, status: int, seconds: float) -> str:
    """Address, key, method, path, status, tokens of prompt and answer, seconds, id if it failed, what held it up."""
    owner, choices = scope.get(OWNER), scope.get(CHOICES)
    # A path as it was sent has no control characters in it.
    path = scope.get("raw_path", b"").decode("ascii", "replace")[:LONGEST_PATH]
    words = [scope["client"][0] if scope.get("client") else "unix"]
    words += [] if owner is None else [f"key {int(owner or 0) + 1}"]
    words += [scope["method"], path, str(status)]
    is_broken = any(choice.finish == "interrupt" for choice in choices or ())
    if choices:
        words += ["broken off"] if is_broken else []
        tokens = usage(choices)
        words.append(f"{tokens['prompt_tokens']}+{tokens['completion_tokens']} tokens")
    words.append(f"{seconds:.2f} s")
    runs = [choice.statistics for choice in choices or ()]
    if (waited_s := max((run.first_token_s - run.prompt_s for run in runs), default=0.0)) > TOLD_WAIT_S:
        words.append(f"(begun after {waited_s:.2f} s)")
    words += [f"id {request_id}"] if is_broken or status >= 400 else []
    found = [busy(run) for run in runs if seconds > BUSY_AFTER_S]
    if held_up := next(filter(None, found), None):
        words[-1] += f": {held_up}"
    return " ".join(words)

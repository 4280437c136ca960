"""Who may ask: keys, names of a loopback address, sizes of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from lacli.errors import LacliError, UsageError
from lacli.serve.guard import Guard, GuardSettings, guard_settings, read_keys

BODY = 1000


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers 200 with the owner of the request, once its body is read."""
    while (await receive()).get("more_body"):
        pass
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"owner", str(scope["state"]["owner"]).encode())]}
    )
    await send({"type": "http.response.body", "body": b""})


def asked(settings: GuardSettings, headers: Mapping[str, str], path: str = "/v1/models") -> tuple[int, dict[str, str]]:
    """The status and the headers that a request gets."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "headers": raw, "method": "GET"}
    asyncio.run(Guard(inner, settings)(scope, receive, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"])
def test_a_loopback_address_is_asked_by_its_names(host: str) -> None:
    assert asked(guard_settings("127.0.0.1", (), no_auth=False, body=BODY), {"Host": host})[0] == 200


@pytest.mark.parametrize("host", ["evil.com", "evil.com:8080", "localhost.evil.com", "127.0.0.1.evil.com", ""])
def test_a_page_that_resolved_its_name_to_this_machine_is_refused(host: str) -> None:
    assert asked(guard_settings("127.0.0.1", (), no_auth=False, body=BODY), {"Host": host})[0] == 403


def test_each_key_opens_and_is_an_owner() -> None:
    settings = GuardSettings(("one", "two"))
    assert asked(settings, {"Authorization": "Bearer one"}) == (200, {"owner": "0"})
    assert asked(settings, {"Authorization": "bearer two"}) == (200, {"owner": "1"})
    assert asked(settings, {"X-Api-Key": "two"}) == (200, {"owner": "1"})


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer on"}, {"Authorization": "one"}, {"X-Api-Key": "\xe9"}]
)
def test_without_a_right_key_only_health_is_told(headers: Mapping[str, str]) -> None:
    settings = GuardSettings(("one",))
    assert asked(settings, headers)[0] == 401
    assert asked(settings, headers, "/health")[0] == 200


def test_a_body_that_is_announced_too_large_is_refused() -> None:
    assert asked(GuardSettings(body=BODY), {"Content-Length": str(BODY + 1)})[0] == 413


def test_an_address_that_others_reach_asks_for_a_key() -> None:
    with pytest.raises(UsageError, match="--api-key"):
        guard_settings("0.0.0.0", (), no_auth=False, body=BODY)
    assert guard_settings("0.0.0.0", ("key",), no_auth=False, body=BODY).keys == ("key",)
    assert not guard_settings("0.0.0.0", (), no_auth=True, body=BODY).hosts


def test_a_file_of_keys_has_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n\n two \n")
    assert read_keys(str(path)) == ["one", "two"]
    path.write_text("\n")
    with pytest.raises(LacliError, match="holds no key"):
        read_keys(str(path))

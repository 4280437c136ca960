"""Who may ask: keys, names of a loopback address, sizes of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lacli.errors import LacliError, UsageError
from lacli.serve.guard import Guard, GuardSettings, given_keys, guard_settings, owner_of, read_keys
from lacli.serve.origins import checked_origins
from tests.loading import STDLIB_7M
from tests.program import call

BODY = 1000


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers 200 once a request's body is read."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def status(
    settings: GuardSettings, headers: Mapping[str, str], path: str = "/v1/models", app: ASGIApp | None = None
) -> int:
    """The status that a request gets."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "headers": raw, "method": "GET"}
    asyncio.run(Guard(app or inner, settings)(scope, receive, send))
    found: int = sent[0]["status"]
    return found


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"])
def test_a_loopback_address_is_asked_by_its_names(host: str) -> None:
    assert status(guard_settings(["127.0.0.1"], (), no_auth=False, body=BODY), {"Host": host}) == 200


@pytest.mark.parametrize("host", ["evil.com", "evil.com:8080", "localhost.evil.com", "127.0.0.1.evil.com", ""])
def test_a_page_that_resolved_its_name_to_this_machine_is_refused(host: str) -> None:
    assert status(guard_settings(["127.0.0.1"], (), no_auth=False, body=BODY), {"Host": host}) == 403


def test_each_key_opens() -> None:
    settings = GuardSettings(("one", "two"))
    for headers in ({"Authorization": "Bearer one"}, {"Authorization": "bearer two"}, {"X-Api-Key": "two"}):
        assert status(settings, headers) == 200


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer on"}, {"Authorization": "one"}, {"X-Api-Key": "\xe9"}]
)
def test_without_a_right_key_only_health_is_told(headers: Mapping[str, str]) -> None:
    settings = GuardSettings(("one",))
    assert status(settings, headers) == 401
    assert status(settings, headers, "/health") == 200


def test_a_body_that_is_announced_too_large_is_refused() -> None:
    assert status(GuardSettings(body=BODY), {"Content-Length": str(BODY + 1)}) == 413


def test_each_key_is_an_owner_of_its_own() -> None:
    owners: list[str] = []

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        owners.append(owner_of(Request(scope)))
        await inner(scope, receive, send)

    for key in ("one", "two", "three"):
        status(GuardSettings(("one", "two", "three")), {"X-Api-Key": key}, app=told)
    assert len({*owners}) == 3 and owners[0] == ""


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def never() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        raise AssertionError

    scope = {"type": "http", "path": "/v1/models", "headers": [], "method": "POST"}
    with pytest.raises(HTTPException) as caught:
        asyncio.run(Guard(inner, GuardSettings(body_s=0))(scope, never, send))
    assert caught.value.status_code == 408


def test_after_its_body_a_request_may_take_any_time() -> None:
    """An answer is waited for by waiting for the client to go."""

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"

    async def body_then_end() -> Message:
        if given:
            return given.pop()
        for _ in range(5):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError

    given: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]
    scope = {"type": "http", "path": "/v1/models", "headers": [], "method": "POST"}
    asyncio.run(Guard(patient, GuardSettings(body_s=0))(scope, body_then_end, send))


def test_an_address_that_others_reach_asks_for_a_key() -> None:
    with pytest.raises(UsageError, match="--api-key"):
        guard_settings(["0.0.0.0"], (), no_auth=False, body=BODY)
    assert guard_settings(["0.0.0.0"], ("key",), no_auth=False, body=BODY).keys == ("key",)
    assert not guard_settings(["0.0.0.0"], (), no_auth=True, body=BODY).hosts


@pytest.mark.parametrize("host", ["127.0.0.1:9000", "localhost:9000", "[::1]:9000", "0.0.0.0:9000"])
def test_a_port_in_an_address_is_told_where_it_goes(host: str) -> None:
    with pytest.raises(UsageError, match="--port 9000"):
        guard_settings([host], ("key",), no_auth=False, body=BODY)


@pytest.mark.parametrize(
    ("hosts", "words"),
    [(["unix:"], "names no file"), (["http://0.0.0.0"], "without http://"), ([], "--host is empty")],
)
def test_what_is_no_address_is_told(hosts: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        guard_settings(hosts, ("key",), no_auth=False, body=BODY)


@pytest.mark.parametrize("origin", ["a.example", "localhost:3000", "https://a.example/page"])
def test_an_origin_that_no_browser_sends_is_refused_with_one_that_it_may_be(origin: str) -> None:
    assert checked_origins(["*", "localhost", "http://a.example:3000"])
    with pytest.raises(UsageError, match="for example https://(a.example|localhost:3000)"):
        checked_origins([origin])


def test_a_file_of_keys_has_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# the office\none\n\n two \n")
    assert read_keys(str(path)) == ["one", "two"]
    path.write_text("\n")
    with pytest.raises(LacliError, match="holds no key"):
        read_keys(str(path))


def test_keys_have_commas_between_them_and_none_is_empty() -> None:
    assert given_keys(["one,two ", "three"]) == ["one", "two", "three"]
    for empty in ("", "one,"):
        with pytest.raises(UsageError, match="--api-key is empty"):
            given_keys([empty])


def test_a_key_and_no_key_are_not_asked_for_at_once() -> None:
    with pytest.raises(UsageError, match="--no-auth lets everybody in.*drop one of them"):
        guard_settings(["localhost"], ("key",), no_auth=True, body=BODY)


@pytest.mark.parametrize(
    ("flags", "variables", "keys", "note"),
    [
        ("", {"LACLI_API_KEY": "l"}, ["l"], ""),
        ("--no-auth", {"LACLI_API_KEY": "l"}, [], "LACLI_API_KEY has no effect with --no-auth"),
        ("--no-auth", {"LACLI_API_KEY_FILE": "FILE"}, [], "LACLI_API_KEY_FILE has no effect with --no-auth"),
        ("--api-key-file FILE", {"LLAMA_API_KEY": "l"}, ["f"], "LLAMA_API_KEY has no effect with --api-key-file"),
        ("--api-key a", {"LACLI_NO_AUTH": "1"}, ["a"], "LACLI_NO_AUTH has no effect with --api-key"),
        ("--api-key a --api-key-file FILE", {"LACLI_API_KEY": "l"}, ["a", "f"], ""),
        ("--no-auth", {}, [], ""),
    ],
)
def test_what_is_typed_of_keys_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    flags: str,
    variables: Mapping[str, str],
    keys: Sequence[str],
    note: str,
) -> None:
    found = list[Sequence[str]]()

    def settings(hosts: Sequence[str], keys: Sequence[str], *, no_auth: bool, body: int) -> GuardSettings:
        found.append(keys)
        assert no_auth == (not keys)
        raise LacliError("seen")

    monkeypatch.setattr("lacli.serve.guard.guard_settings", settings)
    path = tmp_path / "keys"
    path.write_text("f")
    env = {name: value.replace("FILE", str(path)) for name, value in variables.items()}
    done = call("serve", str(STDLIB_7M), *flags.replace("FILE", str(path)).split(), env=env)
    assert found == [keys]
    assert done.err.removeprefix("lacli: ").partition("\n")[0] == (note or "seen")

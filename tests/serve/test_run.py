"""Addresses and refused requests: keys, names of this machine, other pages; connections without a whole request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from stat import S_IMODE

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

import lacli
from lacli.cli.serve import ServerOptions
from lacli.errors import LacliError, UsageError
from lacli.serve import run
from lacli.serve.run import access_for, open_sockets
from tests.serve.conftest import app_of


def connected(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=3)


def test_a_connection_without_a_request_is_closed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HEADERS_S", 0.0)
    with connected(address) as client:
        assert client.recv(1) == b""


@pytest.mark.parametrize("host", ["nowhere.invalid", "127.0.0.1"])
def test_an_address_that_cannot_be_had_is_refused_with_what_helps(address: str, host: str) -> None:
    with pytest.raises(LacliError, match=f"{host} .*--port 0"):
        open_sockets([host], int(address.rpartition(":")[2]))


def status(model: lacli.Model, access: list[Middleware], headers: Mapping[str, str], path: str = "/v1/models") -> int:
    client = TestClient(app_of(model, access), base_url="http://localhost", raise_server_exceptions=False)
    return client.get(path, headers=dict(headers)).status_code


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((name, 200) for name in ("localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST")),
        *((name, 400) for name in ("evil.com", "evil.com:8080", "localhost.evil.com", "127.0.0.1.evil.com")),
    ],
)
def test_a_loopback_address_is_asked_by_its_names(model: lacli.Model, host: str, expected: int) -> None:
    assert status(model, access_for(["127.0.0.1", "::1"]), {"Host": host}) == expected
    assert status(model, access_for(["127.0.0.1", "0.0.0.0"], ["key"]), {"Host": host, "X-Api-Key": "key"}) == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Authorization": "Bearer one"}, 200),
        ({"Authorization": "bearer two"}, 200),
        ({"X-Api-Key": "two"}, 200),
        ({}, 401),
        ({"Authorization": "Bearer on"}, 401),
        ({"Authorization": "one"}, 401),
    ],
)
def test_each_key_opens_and_without_one_only_health_is_told(
    model: lacli.Model, headers: Mapping[str, str], expected: int
) -> None:
    access = access_for(["0.0.0.0"], ["one", "two"])
    assert status(model, access, headers) == expected
    assert status(model, access, headers, "/health") == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "some.name"])
def test_an_address_that_others_reach_needs_a_key(host: str) -> None:
    with pytest.raises(UsageError, match="or accept all requests with --no-auth"):
        access_for(["127.0.0.1", host])
    assert access_for([host], no_auth=True)


OTHER = "https://evil.example"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),
        *(({"Host": name, "Origin": f"http://{name}"}, 200) for name in ("localhost", "127.0.0.1:8080", "[::1]:8080")),
        ({"Host": "localhost", "X-Forwarded-Host": "chat.example", "Origin": "https://chat.example"}, 200),
        ({"X-Forwarded-Host": "chat.example:8443, inner", "Origin": "https://chat.example:8443"}, 200),
        ({"Origin": "https://named.example"}, 200),
        *(({"Origin": origin}, 403) for origin in (OTHER, "http://localhost:3000", "http://127.0.0.1", "null", "")),
        ({"X-Forwarded-Host": "chat.example", "Origin": OTHER}, 403),
    ],
)
@pytest.mark.parametrize("hosts", [["127.0.0.1", "::1"], ["0.0.0.0"], ["unix:socket"]])
def test_without_a_key_only_pages_of_the_server_and_named_ones_may_ask(
    model: lacli.Model, hosts: list[str], headers: Mapping[str, str], expected: int
) -> None:
    access = access_for(hosts, [], ["https://named.example"], no_auth=True)
    assert status(model, access, headers) == expected
    assert status(model, access_for(hosts, ["key"]), {**headers, "X-Api-Key": "key"}) == 200


def test_a_page_that_may_not_ask_is_told_what_would_let_it(model: lacli.Model) -> None:
    client = TestClient(app_of(model, access_for(["127.0.0.1"])))
    for method in ("POST", "OPTIONS"):
        headers = {"Host": "localhost", "Origin": OTHER, "Access-Control-Request-Method": "POST"}
        reply = client.request(method, "/completion", headers=headers, content='{"prompt": "x"}')
        said = reply.json()["error"]["message"]
        assert reply.status_code == 403 and OTHER in said and "--cors-origins" in said and "X-Forwarded-Host" in said


@pytest.mark.parametrize("mode", [None, 0o660])
def test_a_socket_file_is_its_owners_unless_it_was_there(tmp_path: Path, mode: int | None) -> None:
    path = tmp_path / "socket"
    if mode is not None:
        with socket.socket(socket.AF_UNIX) as earlier:
            earlier.bind(str(path))
        path.chmod(mode)
    server = run.Listener(Starlette(), uds=str(path))

    async def start() -> int:
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup()
        found = S_IMODE(path.stat().st_mode)
        await server.shutdown()
        return found

    assert asyncio.run(start()) == (mode or 0o600)


@pytest.mark.parametrize("seconds", [0, 0.9, 10])
def test_running_answers_have_the_seconds_that_drain_gives(seconds: float) -> None:
    assert run.Listener(Starlette(), drain_s=seconds).config.timeout_graceful_shutdown == seconds


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none\n\n two \n")
    assert ServerOptions(api_key_file=str(file)).keys == ["one", "two"]
    for text in ("# none\n", None):
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(LacliError, match="has no key|cannot read"):
            assert not ServerOptions(api_key_file=str(file)).keys

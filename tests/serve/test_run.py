"""Addresses and who may ask: keys, names of this machine, pages; connections that send half of a request."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import Any
from urllib.request import urlopen

import pytest
from starlette.middleware import Middleware
from starlette.testclient import TestClient

import lacli
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.serve import run
from lacli.serve.app import Server, ServeSettings
from lacli.serve.run import access_for, open_sockets, read_keys
from tests.serve.conftest import NAME, serving


def connected(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=3)


def test_a_connection_without_a_request_is_closed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HEADERS_S", 0.0)
    with connected(address) as client:
        assert client.recv(1) == b""


def app_for(model: lacli.Model, access: list[Middleware]) -> Any:
    return Server(model, ServeSettings(NAME, SamplingSettings())).app(access)


@pytest.mark.parametrize(("host", "hint"), [("nowhere.invalid", "all its addresses"), ("127.0.0.1", "--port 0")])
def test_an_address_that_cannot_be_had_is_refused_with_what_helps(address: str, host: str, hint: str) -> None:
    with pytest.raises(LacliError, match=hint):
        open_sockets([host], int(address.rpartition(":")[2]))


def status(model: lacli.Model, access: list[Middleware], headers: Mapping[str, str], path: str = "/v1/models") -> int:
    client = TestClient(app_for(model, access), base_url="http://localhost", raise_server_exceptions=False)
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
    with pytest.raises(UsageError, match="--no-auth lets everybody in"):
        access_for(["127.0.0.1", host])
    assert access_for([host], no_auth=True) == []


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none\n\n two \n")
    assert read_keys(str(file)) == ["one", "two"]
    for text in ("# none\n", None):
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(LacliError, match="a key a line"):
            read_keys(str(file))


def test_with_a_certificate_a_server_speaks_https(model: lacli.Model, tmp_path: Path) -> None:
    if not (openssl := which("openssl")):
        pytest.skip("openssl makes the certificate")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    made = [openssl, "req", "-x509", *curve, *name, "-out", str(cert), "-keyout", str(key)]
    subprocess.run(made, check=True, capture_output=True)
    trusting = ssl.create_default_context(cafile=str(cert))
    with (
        serving(app_for(model, []), ssl_certfile=str(cert), ssl_keyfile=str(key)) as address,
        urlopen(f"{address}/health", context=trusting) as reply,
    ):
        assert reply.status == 200
    with pytest.raises(LacliError, match="cannot serve"):
        run.serve(run.Listener(app_for(model, []), ssl_certfile=str(key), ssl_keyfile=str(cert)), [])

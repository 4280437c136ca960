"""Connections: those that ask for nothing end, and those that wait for an answer stay."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lacli.errors import LacliError
from lacli.serve import run

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b'{"prompt": "def f(", "max_tokens": 40, "stream": true}'
ASKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


def until(client: socket.socket, end: bytes) -> bytes:
    """What comes up to `end`, or to the end of the connection."""
    found = b""
    while not found.endswith(end) and (more := client.recv(4096)):
        found += more
    return found


def connected(address: str) -> socket.socket:
    """A connection, on which nothing is waited for longer than a server without its timer would take to fail."""
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=3)


def test_a_connection_without_a_request_is_closed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HEADERS_S", 0.0)
    with connected(address) as client:
        assert client.recv(1) == b""


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        pytest.param(HEALTH, HEALTH[:-4], id="headers that do not end"),
        pytest.param(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", b"{", id="a body"),
    ],
)
def test_behind_an_answer_a_connection_without_a_request_is_closed_too(
    address: str, monkeypatch: pytest.MonkeyPatch, asked: bytes, more: bytes
) -> None:
    with connected(address) as client:
        client.sendall(asked)
        assert until(client, b"}")
        monkeypatch.setattr(run, "HEADERS_S", 0.0)
        client.sendall(more)
        assert client.recv(1) == b""


def test_an_answer_may_take_longer_than_headers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(address) as client:
        client.sendall(HEALTH)
        assert b" 200 " in until(client, b"}")
        monkeypatch.setattr(run, "HEADERS_S", 0.0)
        client.sendall(ASKED)
        assert b"data: [DONE]" in until(client, b"0\r\n\r\n")


def test_a_socket_that_a_killed_server_left_is_taken_again(tmp_path: Path) -> None:
    host = f"unix:{tmp_path}/s"
    with run.open_socket(host, 0), pytest.raises(LacliError, match="cannot listen on unix:"):
        run.open_socket(host, 0)
    run.open_socket(host, 0).close()

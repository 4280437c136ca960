"""Streams to clients that read slowly, disconnect or send rubbish, and errors in the middle of a stream."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from benchmarks.soak import KINDS, Soak, questions
from lacli.engine.engine import Engine, Progress
from lacli.serve import replies
from tests.serve.conftest import serving_7m
from tests.serve.test_app import get, post

DEAD_END = {"prompt": "x", "grammar": 'root ::= "a"', "ignore_eos": True}
LONG = {"prompt": "def f(", "max_tokens": 1500, "ignore_eos": True}
"""A request whose answer has more events than the buffers of a connection hold."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Yield the port of a server with one slot, whose answers do not depend on other requests."""
    with serving_7m(strict=True) as address:
        yield int(address.rpartition(":")[2])


def test_every_answer_is_the_one_alone_whatever_other_clients_do(port: int) -> None:
    soak = Soak(port, questions(6, 16), lambda: 0, strict=True)
    report = asyncio.run(soak.run(120, 16))
    assert not report.wrong and not report.stuck
    assert report.equal and report.first_s and report.gap_s and set(report.kinds) == set(KINDS)


def opened(port: int, body: dict[str, Any]) -> socket.socket:
    """Return a connection that has requested a stream. Its receive buffer is small, and nothing is read yet."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    data = json.dumps({**body, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    return client


def test_a_stream_without_events_says_that_it_lives(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "PAUSE_S", 1e-4)
    body = json.dumps({"prompt": "def f(", "max_tokens": 3, "stream": True}).encode()
    with urlopen(Request(f"{address}/v1/completions", body)) as reply:
        frames = reply.read().decode().split("\n\n")
    assert ": keep-alive" in frames and frames[-2:] == ["data: [DONE]", ""]
    assert any(json.loads(frame[6:])["choices"][0]["text"] for frame in frames[:-2] if frame.startswith("data: "))


def rest(client: socket.socket) -> list[str]:
    """Return the data of all events that a stream still has."""
    with client.makefile("rb") as file:
        lines = file.read().decode().splitlines()
    client.close()
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def test_a_slot_shows_its_state_and_counts_and_no_text(port: int) -> None:
    with opened(port, LONG) as client, client.makefile("rb") as lines:
        while not lines.readline().startswith(b"data"):
            pass
        (shown,) = get(f"http://127.0.0.1:{port}/slots")
    assert shown.keys() == {"id", "n_ctx", "is_processing", "n_prompt_tokens", "n_decoded"}
    assert shown["is_processing"] and shown["n_prompt_tokens"] > 0 and {*map(type, shown.values())} == {int, bool}


def test_a_dead_end_in_an_answer_is_an_error_event_and_ends_no_other(address: str) -> None:
    port = int(address.rpartition(":")[2])
    other = opened(port, {**LONG, "max_tokens": 60})
    first, *_, last = rest(opened(port, DEAD_END))
    assert json.loads(first)["choices"][0]["text"] == "a"
    assert json.loads(last)["error"]["code"] == 400
    assert rest(other)[-1] == "[DONE]"
    whole = post(f"{address}/v1/completions", DEAD_END)
    assert whole["error"]["code"] == 400, "a client would ask again after 500"


def test_a_client_that_goes_away_leaves_no_complaint(port: int, caplog: pytest.LogCaptureFixture) -> None:
    body = b'{"prompt": "def f(", "max_tokens": 1500, "ignore_eos": true}'
    for announced in (len(body), 2 * len(body)):
        client = socket.create_connection(("127.0.0.1", port))
        head = f"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: {announced}\r\n\r\n"
        client.sendall(head.encode() + body)
        client.close()
    # The server has one slot, so both requests have ended by then.
    assert post(f"http://127.0.0.1:{port}/v1/completions", {"prompt": "class A", "max_tokens": 4})["choices"]
    assert not caplog.records


def test_waiting_clients_and_health_are_told_of_an_engine_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(engine: Engine) -> list[Progress]:
        if not (news := one_step(engine)):
            return news
        raise RuntimeError("the device is gone")

    one_step = Engine.step
    with serving_7m() as address:
        assert get(f"{address}/health") == {"status": "ok"}
        monkeypatch.setattr(Engine, "step", step)
        last = rest(opened(int(address.rpartition(":")[2]), LONG))[-1]
        later = post(f"{address}/v1/completions", LONG)
        for found in (json.loads(last), later):
            assert (found["error"]["code"], found["error"]["message"]) == (500, "the device is gone")
        assert "the device is gone" in get(f"{address}/health")["error"]["message"]

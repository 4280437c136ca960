"""Connections: those that ask for nothing end, and those that wait for an answer stay."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import ssl
import subprocess
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import openai
import pytest
from starlette.types import Receive, Scope, Send

import lacli
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.serve import run
from lacli.serve.app import Server, ServeSettings
from lacli.serve.guard import GuardSettings
from lacli.serve.run import Certificate
from tests.serve.conftest import NAME, serving

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


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """One of this machine's, made by openssl."""
    if not (openssl := which("openssl")):
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("certificate")
    made = Certificate(f"{folder}/cert.pem", f"{folder}/key.pem")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        [openssl, "req", "-x509", *curve, *name, "-out", made.file, "-keyout", made.key],
        check=True,
        capture_output=True,
    )
    return made


def test_with_a_certificate_a_server_speaks_https(model: lacli.Model, certificate: Certificate) -> None:
    app = Server(model, ServeSettings(NAME, SamplingSettings())).app(GuardSettings())
    with serving(app, run.checked_certificate(*certificate)) as address:
        trusting = ssl.create_default_context(cafile=certificate.file)
        with urlopen(f"{address}/health", context=trusting) as reply:
            assert reply.status == 200


def test_what_is_no_http_is_told_with_what_it_may_be(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with connected(address) as client:
        # How https begins.
        client.sendall(b"\x16\x03\x01\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 400")
    assert "https, perhaps" in caplog.text


@pytest.mark.parametrize(("host", "hint"), [("nowhere.invalid", "all its addresses"), ("127.0.0.1", "--port 0")])
def test_an_address_that_cannot_be_had_is_refused_with_what_helps(address: str, host: str, hint: str) -> None:
    with pytest.raises(LacliError, match=hint):
        run.open_socket(host, int(address.rpartition(":")[2]))


def test_a_certificate_that_cannot_be_used_is_refused_in_one_line(certificate: Certificate) -> None:
    assert run.checked_certificate("", "") is None
    for file, key in (
        (certificate.file, ""),
        ("nowhere", certificate.key),
        (certificate.key, certificate.key),
        (certificate.file, certificate.file),
    ):
        with pytest.raises(LacliError, match="certificate and its key"):
            run.checked_certificate(file, key)
    with pytest.raises(LacliError, match="there is no file nowhere"):
        run.checked_certificate(certificate.file, "nowhere")
    with pytest.raises(LacliError, match="they are exchanged"):
        run.checked_certificate(certificate.key, certificate.file)


def test_a_key_with_a_pass_phrase_is_refused_with_the_way_to_take_it_off(
    certificate: Certificate, tmp_path: Path
) -> None:
    locked = str(tmp_path / "locked.pem")
    command = ["openssl", "pkey", "-in", certificate.key, "-aes128", "-passout", "pass:secret", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(LacliError, match="openssl pkey -in .*locked.pem"):
        run.checked_certificate(certificate.file, locked)


def test_a_file_in_the_place_of_a_socket_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    with pytest.raises(LacliError, match="cannot listen on unix:"):
        run.open_socket(f"unix:{tmp_path}/s", 0)
    assert (tmp_path / "s").read_text() == "mine"


def test_a_socket_that_a_killed_server_left_is_taken_again(tmp_path: Path) -> None:
    host = f"unix:{tmp_path}/s"
    with run.open_socket(host, 0), pytest.raises(LacliError, match="cannot listen on unix:"):
        run.open_socket(host, 0)
    run.open_socket(host, 0).close()


def test_a_port_that_another_server_has_taken_since_it_was_bound_is_named() -> None:

    class Taken(socket.socket):
        """On Linux another server that was bound to it too listens first."""

        def listen(self, *_: object) -> None:
            raise OSError(errno.EADDRINUSE, "Address already in use")

    with Taken() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(LacliError, match=f"cannot listen on 127.0.0.1 port {port}: .*--port 0"):
            run.listen("127.0.0.1", bound)


def test_small_parts_of_an_answer_are_sent_at_once() -> None:
    async def sends_at_once() -> bool:
        served = asyncio.Event()
        found = list[int]()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()
            served.set()

        listening = run.open_socket("127.0.0.1", 0)
        async with await asyncio.start_server(accepted, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            await served.wait()
            writer.close()
        return bool(found[0])

    assert asyncio.run(sends_at_once())


@pytest.mark.parametrize(
    ("sent", "stops"),
    [
        ([signal.SIGTERM], False),
        ([signal.SIGHUP], False),
        ([signal.SIGHUP, signal.SIGHUP], False),
        ([signal.SIGHUP, signal.SIGTERM], True),
    ],
    ids=["SIGTERM", "SIGHUP", "two of a terminal", "one more ends at once"],
)
def test_a_closed_terminal_ends_a_server_as_sigterm_does(
    monkeypatch: pytest.MonkeyPatch, sent: list[signal.Signals], stops: bool
) -> None:
    done = list[str]()

    class Signalled(run.Listener):
        """Gets the signals in the place of requests."""

        async def serve(self, sockets: object = None) -> None:
            for number in sent:
                signal.raise_signal(number)
                # Its handler is called by the event loop, which reads that it came.
                for _ in range(100):
                    await asyncio.sleep(0)
            assert self.should_exit

    monkeypatch.setattr(run, "Listener", Signalled)
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        run.serve(
            answer_nothing,
            [],
            drain_s=60,
            said=done.append,
            warned=done.append,
            busy=lambda: 1,
            refuse=lambda: done.append("refuse"),
            stop=lambda: done.append("stop"),
        )
        assert (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) == (signal.SIGHUP in sent)
    finally:
        signal.signal(signal.SIGHUP, before)
    told, *calls = done
    assert told.startswith("ending; 1 answer may") and calls == ["refuse", *(["stop"] if stops else [])]


def test_a_server_that_is_to_outlive_its_terminal_goes_on() -> None:
    assert run.ending_signals() == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run.ending_signals() == [signal.SIGINT, signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)


async def answer_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer nothing."""


def test_a_connection_is_kept_longer_than_openais_client_keeps_it() -> None:
    kept_s = openai.DEFAULT_CONNECTION_LIMITS.keepalive_expiry
    assert kept_s and run.Listener(answer_nothing, 1).config.timeout_keep_alive > 2 * kept_s


def test_connections_that_the_system_has_no_room_for_are_told_once_a_minute() -> None:
    said, others, now = list[str](), list[str](), [0.0]
    loop: Any = SimpleNamespace(
        time=lambda: now[0], default_exception_handler=lambda found: others.append(found["message"])
    )
    handle = run.exception_handler(said.append)
    for seconds in (0.0, 1.0, 59.0, 61.0):
        now[0] = seconds
        handle(loop, {"message": "no room", "exception": OSError(errno.EMFILE, "Too many open files"), "socket": None})
    handle(loop, {"message": "another", "exception": OSError(errno.ENOMEM, "Cannot allocate memory")})
    assert said == 2 * ["no further connection can be taken in: Too many open files (ulimit -n)"]
    assert others == ["another"]

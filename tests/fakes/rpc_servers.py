"""RPC servers on the loopback: real ones, and sockets that only claim to be one. No test lives here."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Event, Thread
from typing import Self

import pytest

from lacli.llamacpp.rpc import SERVE, _address
from tests.program import PROGRAM, start

HERE = "127.0.0.1"

HELLO = 33
"""Bytes of a client's first message: the command, the length of what follows, what it can do."""

with_rpc = pytest.mark.skipif(not _address(SERVE), reason="this llama.cpp was built without RPC")


@dataclass(frozen=True)
class Server:
    """A `lacli rpc-server` that listens; `said`: what it wrote on stderr until then."""

    endpoint: str
    said: list[str]
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def rpc_server(*arguments: str, program: tuple[str, ...] = PROGRAM) -> Iterator[Server]:
    """A real server of this machine's processor, on a free port; it has ended after the block."""
    with start("rpc-server", "-p", "0", *arguments, program=program) as process:
        assert process.stderr
        said: list[str] = []
        # Its last line before it serves says how it is used.
        while not (said and "--rpc " in said[-1]):
            line = process.stderr.readline().decode()
            assert line, said
            said.append(line.rstrip("\n"))
        port = said[-1].rpartition(":")[2]
        try:
            yield Server(f"{HERE}:{port}", said, process)
        finally:
            process.kill()


def hello(major: int, minor: int, patch: int) -> bytes:
    """A server's answer to a client's first message: its length, the version of the protocol, what it can do."""
    return struct.pack("<Q4B24x", 28, major, minor, patch, 0)


class Pretender(ThreadingTCPServer):
    """Somebody who listens on the loopback and answers every first message alike; None: with silence.

    heard: the last first message.
    """

    daemon_threads = True

    def __init__(self, answer: bytes | None) -> None:
        super().__init__((HERE, 0), _Answers)
        self.answer, self.heard = answer, b""
        self.endpoint = f"{HERE}:{self.server_address[1]}"
        self.over = Event()
        self._thread = Thread(target=self.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Answers(BaseRequestHandler):
    server: Pretender

    def handle(self) -> None:
        # Who only looks whether somebody is here says nothing, and who has waited too long is gone.
        with suppress(OSError):
            if message := self.request.recv(HELLO, socket.MSG_WAITALL):
                self.server.heard = message
                if self.server.answer is None:
                    self.server.over.wait()
                else:
                    self.request.sendall(self.server.answer)

"""RPC servers on the loopback: real servers, and sockets that only send a server's first message."""

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
"""Bytes of a client's first message: the command, the length of the rest, and the client's features."""

with_rpc = pytest.mark.skipif(not _address(SERVE), reason="this llama.cpp was built without RPC")


@dataclass(frozen=True)
class Server:
    """A `lacli rpc-server` that listens. `said`: its lines on stderr until then."""

    endpoint: str
    said: list[str]
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def rpc_server(*arguments: str, program: tuple[str, ...] = PROGRAM) -> Iterator[Server]:
    """Yield a real server of this machine's processor, on a free port, and kill it after the block."""
    with start("rpc-server", "-p", "0", *arguments, program=program) as process:
        assert process.stderr
        said: list[str] = []
        # The last line before it serves says how to use it.
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
    """Return a server's answer to a client's first message: its length, this protocol version, no features."""
    return struct.pack("<Q4B24x", 28, major, minor, patch, 0)


class Pretender(ThreadingTCPServer):
    """A socket on the loopback that sends `answer` after each client's first message (`heard`), None: nothing."""

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
        # A client may only connect and send nothing, or disconnect while it waits.
        with suppress(OSError):
            if message := self.request.recv(HELLO, socket.MSG_WAITALL):
                self.server.heard = message
                if self.server.answer is None:
                    self.server.over.wait()
                else:
                    self.request.sendall(self.server.answer)

"""RPC servers on the loopback: real ones, and sockets that only claim to be one. No test lives here."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread

import pytest

from lacli.llamacpp.rpc import supported
from tests.program import PROGRAM, start

HERE = "127.0.0.1"

HELLO = 33
"""Bytes of a client's first message: the command, the length of what follows, what it can do."""

with_rpc = pytest.mark.skipif(not supported(), reason="this llama.cpp was built without RPC")


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
    """A real server of this machine's processor, on a free port; it has ended behind the block."""
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


class Pretender:
    """Somebody who listens on the loopback and answers every first message alike; None: with silence.

    heard: the last first message.
    """

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._listening = socket.create_server((HERE, 0))
        self._over = Event()
        self._thread = Thread(target=self._serve)
        self.endpoint = f"{HERE}:{self._listening.getsockname()[1]}"
        self.heard = b""

    def __enter__(self) -> Pretender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        # It wakes whoever accepts, which closing alone does not.
        with socket.create_connection(self._listening.getsockname()):
            self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            client, _ = self._listening.accept()
            # Who only looks whether somebody is here says nothing, and who has waited too long is gone.
            with client, suppress(OSError):
                if message := client.recv(HELLO, socket.MSG_WAITALL) if not self._over.is_set() else b"":
                    self.heard = message
                    self._reply(client)

    def _reply(self, client: socket.socket) -> None:
        if self._answer is None:
            self._over.wait()
        else:
            client.sendall(self._answer)

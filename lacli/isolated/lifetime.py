"""A child process from its start to its end: the socket to it, what it last said, and that it never stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import IO

from lacli.amounts import printable
from lacli.child_python import python_environment
from lacli.closing import Closing
from lacli.isolated.wire import LENGTH, Wire

COMMAND = (sys.executable, "-P", "-m", "lacli.isolated.child")

MOMENT_S = 2.0
"""How long a process that has been told to end may take."""

KILLED_S = 10.0
"""How long the system may take for a process that is killed; one that waits for a driver may never end."""

KEPT = 8192
"""Bytes of what it wrote last."""


class Child(Closing):
    """A process that has the other end of `wire`; closing it ends the process.

    Raises OSError when it cannot be started.
    """

    def __init__(self, command: Sequence[str] = COMMAND, *, heard: bool = False) -> None:
        """heard: what it writes to its standard error goes to ours."""
        ours, theirs = socket.socketpair()
        self.wire = Wire(ours)
        with theirs:
            try:
                self._process = _started(command, theirs)
            except BaseException:
                self.wire.close()
                raise
        self.process_id = self._process.pid
        self._said, self._heard = b"", heard
        assert self._process.stderr
        self._ear = Thread(target=self._listen, args=(self._process.stderr,), daemon=True)
        self._ear.start()

    def end(self) -> str:
        """How it ended, in words, after its connection broke; it is killed where it has not ended."""
        code = self._waited(MOMENT_S)
        self.close()
        return "it closed its connection" if code is None else _ending(code, self._said)

    def strike(self) -> None:
        """End the process and nothing else; the other end of its connection breaks."""
        self._process.kill()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._waited(KILLED_S)
        self.close()

    def close(self) -> None:
        """Let it end by itself, for it hears when the connection closes; kill it where it does not."""
        self.wire.close()
        if self._waited(MOMENT_S) is None:
            self._process.kill()
            self._waited(KILLED_S)
        if self._process.stdin:
            self._process.stdin.close()
        self._ear.join(MOMENT_S)

    def _waited(self, limit_s: float) -> int | None:
        """Its exit code; None where it goes on for longer than that."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit_s)
        return None

    def _listen(self, said: IO[bytes]) -> None:
        """Read all it writes, so that it never waits for room, and keep the end."""
        with said:
            while piece := os.read(said.fileno(), KEPT):
                self._said = (self._said + piece)[-KEPT:]
                if self._heard and sys.stderr:
                    with suppress(OSError):
                        sys.stderr.write(printable(piece.decode("utf-8", "replace"), lines=True))


def _started(command: Sequence[str], connection: socket.socket) -> subprocess.Popen[bytes]:
    """The process. Standard input ends when we do, and so tells it; a terminal's Ctrl-C is not for its group."""
    environment = python_environment()
    if sys.platform == "win32":
        return _started_on_windows(command, connection, environment)
    number = connection.fileno()
    return subprocess.Popen(
        [*command, str(number)],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        pass_fds=[number],
        process_group=0,
    )


if sys.platform == "win32":

    def _started_on_windows(
        command: Sequence[str], connection: socket.socket, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """The process, which reads what its socket is from standard input: no number of ours means anything there."""
        process = subprocess.Popen(
            [*command, "-"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,
        )
        shared = connection.share(process.pid)
        assert process.stdin
        process.stdin.write(len(shared).to_bytes(LENGTH, "little") + shared)
        return process


def _ending(code: int, said: bytes) -> str:
    """What a process said last, where it ended by itself, or what ended it. code: negative for a signal."""
    words = _last_line(said) if code >= 0 or -code == signal.SIGABRT else ""
    if words or code >= 0:
        return words or f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}" + (", as the system does when memory is short" if name == "SIGKILL" else "")


def _last_line(said: bytes) -> str:
    """The last line that is not empty; C++ puts a word of its own before what an exception says."""
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines()]
    return next((line.removeprefix("what():").lstrip() for line in reversed(lines) if line), "")

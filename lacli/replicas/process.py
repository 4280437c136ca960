"""A child process and the connection to it: requests to a context, in order, and how the process ended."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from io import BufferedRWPair
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, NamedTuple

from lacli.text.files import Closing
from lacli.text.format import printable

COMMAND = (sys.executable, "-P", "-m", "lacli.replicas.child")

Change = tuple[str, tuple[int, ...]]
"""A sequence call of the cache, which returns nothing: its name and its arguments."""


class Request(NamedTuple):
    """A call of the context, and the sequence calls to make before it. The first request is `open`, with ChildSettings.

    The answer is the call's result or the LacliError that it raises.
    """

    changes: list[Change]
    name: str
    arguments: dict[str, Any]


class Reply(NamedTuple):
    """The other end's answer to a request, in an envelope that noise on the connection cannot have."""

    result: Any


class Wire:
    """One end of a connection: a thread sends requests and reads their answers, as pickles, one at a time.

    Ctrl-C is raised in the main thread only, so no message is cut in two: an answer is read even if its caller no
    longer waits, and a queued call is sent exactly once.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # Both change only by single calls of C code, which are atomic under Ctrl-C. Waking too often does no harm.
        self._waiting: deque[Change | tuple[str, dict[str, Any], Future[Any]]] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        Thread(target=self._talk, daemon=True).start()

    def queue(self, change: Change) -> None:
        """Send a sequence call along with the next request."""
        self._waiting.append(change)

    def post(self, name: str, arguments: dict[str, Any]) -> Future[Any]:
        """Send a request and return its future answer.

        Its `result` raises EOFError if the other end is gone or sends what is no answer.
        """
        answer: Future[Any] = Future()
        self._waiting.append((name, arguments, answer))
        self._wake.put(True)
        return answer

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._wake.put(False)

    def _talk(self) -> None:
        changes: list[Change] = []
        # Closing the file flushes it, which fails if the other end is gone.
        with suppress(OSError), self._connection, self._connection.makefile("rwb") as file:
            while self._wake.get():
                while self._waiting:
                    item = self._waiting.popleft()
                    if len(item) == 2:
                        changes.append(item)
                        continue
                    name, arguments, answer = item
                    # Where the caller was interrupted it waits no more.
                    with suppress(InvalidStateError):
                        try:
                            send(file, Request(changes, name, arguments))
                            changes = []
                            reply: Reply = pickle.load(file)
                            answer.set_result(reply.result)
                        except Exception as error:  # bytes that are no reply raise nearly anything
                            answer.set_exception(EOFError(str(error)))


def send(file: BufferedRWPair, message: object) -> None:
    """Send a message over a connection; `pickle.load` reads it at the other end."""
    file.write(pickle.dumps(message, protocol=5))
    file.flush()


MOMENT_S = 2.0
"""Seconds for a process to end by itself; freeing its context and weights takes less than one."""

KILLED_S = 10.0
"""Seconds to wait for a killed process; one that waits for a driver may never end."""

KEPT = 8192
"""Bytes of standard error that are kept, from its end: more than llama.cpp's last message has."""


class Child(Closing):
    """A child process at the other end of `wire`; closing it ends the process. Raises OSError if it does not start."""

    def __init__(self, command: Sequence[str] = COMMAND, *, heard: bool = False) -> None:
        """`heard`: pass its standard error on to this process's."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _started(command, theirs)
            except BaseException:
                ours.close()
                raise
        self.wire = Wire(ours)
        self.process_id = self._process.pid
        self._said, self._heard = b"", heard
        assert self._process.stderr
        self._ear = Thread(target=self._listen, args=(self._process.stderr,), daemon=True)
        self._ear.start()

    @property
    def has_ended(self) -> bool:
        """True once the process has ended, by itself or killed."""
        return self._process.poll() is not None

    def end(self) -> str:
        """Return how it ended after its connection broke; kill it if it still runs."""
        code = self._waited(MOMENT_S)
        self.close()
        return "it sends no more answers" if code is None else _ending(code, self._said)

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._waited(KILLED_S)
        self.close()

    def close(self) -> None:
        """Close the connection, at which the process ends by itself; kill it if it does not."""
        self.wire.close()
        if self._waited(MOMENT_S) is None:
            self._process.kill()
            self._waited(KILLED_S)
        if self._process.stdin:
            self._process.stdin.close()
        self._ear.join(MOMENT_S)

    def _waited(self, limit_s: float) -> int | None:
        """The exit code; None if the process runs for longer than `limit_s` seconds."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit_s)
        return None

    def _listen(self, said: IO[bytes]) -> None:
        """Read all of its standard error, so that it never blocks, and keep the end."""
        with said:
            while piece := os.read(said.fileno(), KEPT):
                self._said = (self._said + piece)[-KEPT:]
                if self._heard and sys.stderr:
                    with suppress(OSError):
                        sys.stderr.write(printable(piece.decode("utf-8", "replace"), lines=True))


def _started(command: Sequence[str], connection: socket.socket) -> subprocess.Popen[bytes]:
    """Start the process in a group of its own, away from Ctrl-C; its standard input closes when this process ends."""
    # Imported here: the child imports this module too, and need not load the probe.
    from lacli.llamacpp.probe import python_environment

    if sys.platform == "win32":
        raise OSError("lacli runs no copies in other processes on Windows")
    number = connection.fileno()
    return subprocess.Popen(
        [*command, str(number)],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=python_environment(),
        pass_fds=[number],
        process_group=0,
    )


def _ending(code: int, said: bytes) -> str:
    """The last line of a process that ended by itself, or the signal that ended it. `code`: negative for a signal."""
    # C++ puts what(): in front of an exception's message.
    lines = [line.strip().removeprefix("what():").lstrip() for line in said.decode("utf-8", "replace").splitlines()]
    words = next(filter(None, reversed(lines)), "") if code >= 0 or -code == signal.SIGABRT else ""
    if words or code >= 0:
        return words or f"exit code {code}"
    # Imported here for the reason that `_started` gives.
    from lacli.llamacpp.probe import signal_name

    name = signal_name(-code)
    return f"killed by {name}" + (", as the system does when memory is short" if name == "SIGKILL" else "")

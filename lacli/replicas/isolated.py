"""A context in a child process: the messages, the process, and the engine that represents it in this process."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedRWPair
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, NamedTuple

import numpy as np

from lacli.batch import Batch, Ints
from lacli.engine import Floats, Successors
from lacli.errors import LacliError, ReplicaLost
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.files import Closing
from lacli.text.format import printable

COMMAND = (sys.executable, "-P", "-m", "lacli.replicas.child")

LENGTH = 4
"""Bytes of the length in front of a socket's description, which a process on Windows reads."""


@dataclass(frozen=True)
class ChildSettings:
    """The context that a child process opens.

    `model_settings.placement` has the devices' names as they are called in the child. `backend_greedy`: as LlamaEngine
    takes it. `rpc`: addresses of the RPC servers that this placement needs. `limit_s`: seconds that a call may take.
    `name`: of the replica, for messages. `verbose`: llama.cpp's log goes to standard error.
    """

    path: Path
    model_settings: ModelSettings
    decode_settings: DecodeSettings | Capacity
    backend_greedy: bool | None
    rpc: tuple[str, ...] = ()
    limit_s: float = 60.0
    name: str = ""
    verbose: bool = False


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
        """Start the process, which reads a description of its socket from standard input: it inherits no descriptor."""
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


LOADING = 10
"""Loading the model may take this many times a call's limit, because it reads the file from disk."""

SERVER_GONE = "Remote RPC server crashed"
"""In ggml's last message, if a server no longer answers."""

ATTRIBUTES = (
    *("cells", "batch_rows", "prefill_rows", "trained_context", "sequences", "vocabulary"),
    *("can_lend", "can_shift", "memory", "max_rollback"),
)
"""Attributes of Engine and LlamaEngine that the child sends once, when its context is open."""


class RemoteEngine(Closing):
    """A context in a child process as an Engine, for one thread at a time; close it, or use it in `with`.

    The cache's sequence calls are queued and sent with the next decode. `memory`, `calls`, `max_rollback`: as
    LlamaEngine has them. `process_id`: the system's number of the process. Raises ModelLoadError as LlamaEngine does,
    and ReplicaLost if the process ends or does not answer in time: then it is killed, and every further call raises
    the same error.
    """

    cells: int
    batch_rows: int
    prefill_rows: int
    trained_context: int
    sequences: int
    vocabulary: int
    can_lend: bool
    can_shift: bool
    saver: None = None
    memory: float
    max_rollback: int

    def __init__(self, settings: ChildSettings, command: Sequence[str] = COMMAND) -> None:
        """`command`: starts the child, with the file descriptor of its end of the connection as the last argument."""
        self._settings = settings
        self._lost: ReplicaLost | None = None
        self._choices: Ints = np.zeros(0, np.int32)
        self.calls = 0
        try:
            self._child: Child | None = Child(command, heard=settings.verbose)
        except OSError as error:
            raise ReplicaLost(f"the process of {self._name} cannot be started: {error}") from error
        self.process_id = self._child.process_id
        # The threads that read from the process keep it alive when this engine is dropped without `close`.
        weakref.finalize(self, self._child.close)
        try:
            opened = self._exchange("open", {"settings": settings}, LOADING * settings.limit_s)
        except BaseException:
            self._child.kill()
            raise
        self._ends = frozenset(opened.pop("ends"))
        for name in ATTRIBUTES:
            setattr(self, name, opened[name])

    @property
    def lost(self) -> bool:
        """True if the process has ended, or did not answer in time."""
        return self._lost is not None

    def suits(self, decode: DecodeSettings, *, raw_logits: bool) -> bool:
        """True if these settings can decode in this context; False if it is closed or lost."""
        if self._lost or not self._child:
            return False
        try:
            return bool(self._ask("suits", decode=decode, raw_logits=raw_logits))
        except ReplicaLost:
            return False

    def decode(self, batch: Batch) -> bool:
        rows = batch.rows
        counts = batch.sequence_counts[:rows]
        ids = batch.sequence_ids[: int(counts.sum())]
        self.calls += 1
        fits, self._choices = self._ask(
            "decode",
            rows=rows,
            columns=[batch.tokens[:rows], batch.positions[:rows], counts, ids, batch.outputs[:rows]],
        )
        return bool(fits)

    def greedy(self) -> Ints:
        self._check()
        return self._choices

    def logits(self) -> Floats:
        logits: Floats = self._ask("logits")
        return logits

    def row_logits(self, row: int) -> Floats:
        logits: Floats = self._ask("row_logits", row=row)
        return logits

    def successors(self, count: int) -> Successors:
        found: Successors = self._ask("successors", count=count)
        return found

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._queue("copy", source, target, start, end)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        # An attention cache can remove any positions; how far a recurrent state can roll back only the child knows.
        if self.max_rollback >= 0 and self._child:
            return bool(self._ask("remove", sequence=sequence, start=start, end=end))
        self._queue("remove", sequence, start, end)
        return True

    def shift(self, sequence: int, start: int, end: int, by: int) -> None:
        self._queue("shift", sequence, start, end, by)

    def clear(self) -> None:
        self._queue("clear")

    def is_end(self, token: int) -> bool:
        return token in self._ends

    def interrupt(self) -> None:
        """Let a call that waits for its answer in another thread raise KeyboardInterrupt; the answer is read later."""
        with suppress(InvalidStateError):
            self._answer.set_exception(KeyboardInterrupt())

    def close(self) -> None:
        child, self._child = self._child, None
        if child:
            child.close()

    def _check(self) -> None:
        """Raise again the error that made this replica unusable."""
        if self._lost:
            raise ReplicaLost(self._lost.what, self._lost.hint)

    def _queue(self, name: str, *arguments: int) -> None:
        self._check()
        # A generator may be closed after its engine: there is no cache left to change.
        if self._child:
            self._child.wire.queue((name, arguments))

    def _ask(self, name: str, **arguments: Any) -> Any:
        return self._exchange(name, arguments, self._settings.limit_s)

    def _exchange(self, name: str, arguments: dict[str, Any], limit_s: float) -> Any:
        """Return the context's result for one call, or raise its error."""
        self._check()
        if not self._child:
            raise LacliError("there is no context: it is closed, or memory was too short for it", "open another one")
        try:
            self._answer = self._child.wire.post(name, arguments)
            answer = self._answer.result(limit_s)
        except TimeoutError:
            self._lost = self._late(limit_s)
            self._child.kill()
        except EOFError:
            self._lost = self._ended(self._child.end())
        self._check()
        if isinstance(answer, LacliError):
            raise answer
        return answer

    @property
    def _name(self) -> str:
        return f"replica {self._settings.name}" if self._settings.name else "the replica"

    def _late(self, limit_s: float) -> ReplicaLost:
        who = _servers(self._settings.rpc) or self._name
        return ReplicaLost(f"no answer of {who} within {limit_s:g} s", "--replica-timeout allows more")

    def _ended(self, words: str) -> ReplicaLost:
        """The error for a process that ended by itself or with its RPC server, from the last `words` it wrote."""
        if (servers := self._settings.rpc) and SERVER_GONE in words:
            there = "start it again there" if len(servers) == 1 else "see which of them has ended, start it again"
            return ReplicaLost(f"{_servers(servers)} went away", f"{there}, and ask again")
        hint = f"see what {_servers(servers)} says" if servers else ""
        if "memory is short" in words:
            hint = "a smaller -c or fewer --replicas need less of it"
        return ReplicaLost(f"the process of {self._name} ended: {words}", hint)


def _servers(endpoints: Sequence[str]) -> str:
    """The RPC servers of a context, in words; empty for none."""
    if not endpoints:
        return ""
    return f"the RPC server at {endpoints[0]}" if len(endpoints) == 1 else f"an RPC server of {', '.join(endpoints)}"

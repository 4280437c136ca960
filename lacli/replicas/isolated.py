"""A replica in a process of its own: its messages, its life, and the engine that stands for it here."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from threading import Thread
from time import monotonic
from typing import IO, Any, NamedTuple

import numpy as np

from lacli.batch import Batch, Ints
from lacli.engine import Floats, Successors
from lacli.errors import LacliError, ReplicaLost
from lacli.llamacpp.probe import python_environment
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.files import Closing
from lacli.text.format import printable


@dataclass(frozen=True)
class ChildSettings:
    """The context that a child process opens.

    loading.placement has the devices' names as they are called in the child. backend_greedy: as LlamaEngine takes it.
    rpc: addresses of the RPC servers that this placement needs. limit_s: seconds that a call may take. name: of the
    replica, for messages. verbose: llama.cpp's log goes to standard error.
    """

    path: Path
    loading: ModelSettings
    decoding: DecodeSettings | Capacity
    backend_greedy: bool | None
    rpc: tuple[str, ...] = ()
    limit_s: float = 60.0
    name: str = ""
    verbose: bool = False


@dataclass(frozen=True)
class Opened:
    """What a context is, in the words of Engine and LlamaEngine. ends: the tokens that end a generation."""

    cells: int
    batch_rows: int
    sequences: int
    vocabulary: int
    can_shift: bool
    memory: float
    max_rollback: int
    ends: tuple[int, ...]


FRAME = struct.Struct("<QQ")
"""A message's number and its bytes."""

LENGTH = 4
"""Bytes of a length, before what tells a process on Windows of its socket."""

PIECE = 1 << 16
"""Bytes of one call of the system: more than a socket takes at once."""


Change = tuple[int, str, tuple[int, ...]]
"""A sequence call of the cache, which has no answer: its serial number, by which it is made once though it may be sent
twice, its name and its arguments."""


class Request(NamedTuple):
    """A call of the engine, and the sequence calls that come before it."""

    before: list[Change]
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Refusal:
    """A LacliError as an answer."""

    kind: type[LacliError]
    what: str
    hint: str

    @classmethod
    def of(cls, error: LacliError) -> Refusal:
        """What is left of an error on its way."""
        return cls(type(error), error.what, error.hint)

    def error(self) -> LacliError:
        """The same error again."""
        return self.kind(self.what, self.hint)


@dataclass
class Outgoing:
    """Frames on their way, and how many bytes each call of the system has taken of them."""

    frames: list[bytes] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


class Wire(Closing):
    """One end of a connection.

    Ctrl-C may interrupt any call: no byte is lost or sent twice, and the next call goes on where it came. For that,
    bytes and what is noted of them change in one call of C code, or one assignment.
    Every wait has a deadline in seconds of `monotonic`. Raises TimeoutError behind it, EOFError where the other end
    is gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._for_reading, self._for_both = DefaultSelector(), DefaultSelector()
        self._for_reading.register(connection, EVENT_READ)
        self._for_both.register(connection, EVENT_READ | EVENT_WRITE)
        self._incoming: list[bytes] = []
        self._outgoing = Outgoing()

    def post(self, number: int, message: object) -> None:
        """Send a message, as much of it as goes without waiting."""
        body = pickle.dumps(message, protocol=5)
        self._outgoing.frames.append(FRAME.pack(number, len(body)) + body)
        self._send()

    def flush(self, deadline: float = inf) -> None:
        """Wait until all is sent."""
        while self._outgoing.frames:
            self._move(deadline)

    def receive(self, deadline: float = inf) -> tuple[int, Any]:
        """The next message and its number, while what is still to be sent goes out."""
        while (frame := self._frame()) is None:
            self._move(deadline)
        number, body = frame
        return number, pickle.loads(body)

    def close(self) -> None:
        self._for_reading.close()
        self._for_both.close()
        self._socket.close()

    def _frame(self) -> tuple[int, memoryview] | None:
        """The first message that came, taken off, or None while it is not whole."""
        if not self._incoming or (there := sum(map(len, self._incoming))) < FRAME.size:
            return None
        if len(self._incoming[0]) < FRAME.size:
            self._incoming = [b"".join(self._incoming)]
        number, size = FRAME.unpack_from(self._incoming[0])
        end = FRAME.size + size
        if there < end:
            return None
        whole = self._incoming[0] if len(self._incoming) == 1 else b"".join(self._incoming)
        self._incoming = [whole[end:]] if there > end else []
        return number, memoryview(whole)[FRAME.size : end]

    def _move(self, deadline: float) -> None:
        """Wait until something can be read or, where there is something to send, written, and do that."""
        selector = self._for_both if self._outgoing.frames else self._for_reading
        ready = selector.select(None if deadline == inf else max(deadline - monotonic(), 0.0))
        if not ready:
            raise TimeoutError
        if ready[0][1] & EVENT_READ:
            self._receive()
        if self._outgoing.frames:
            self._send()

    def _receive(self) -> None:
        try:
            self._incoming.extend(map(self._socket.recv, (PIECE,)))
        except BlockingIOError:
            return
        except OSError as error:
            raise EOFError from error
        if not self._incoming[-1]:
            raise EOFError

    def _send(self) -> None:
        outgoing = self._outgoing
        whole = memoryview(b"".join(outgoing.frames))
        try:
            while (done := sum(outgoing.sent)) < len(whole):
                outgoing.sent.extend(map(self._socket.send, (whole[done:],)))
        except BlockingIOError:
            return
        except OSError as error:
            raise EOFError from error
        self._outgoing = Outgoing()


COMMAND = (sys.executable, "-P", "-m", "lacli.replicas.child")

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


LOADING = 10
"""Calls' time limits that loading the model may take."""


SERVER_GONE = "Remote RPC server crashed"
"""Of ggml's last words, when a server gives no answer any more."""


class RemoteEngine(Closing):
    """A context in a process of its own as an Engine; close it, or use it in `with`. One thread at a time asks it.

    The cache's sequence calls wait for the next decode and travel with it. memory, calls, back: as LlamaEngine has
    them. process_id: the system's number of the process. Raises ModelLoadError as LlamaEngine does, and ReplicaLost
    when the process ends or gives no answer in time: then it is killed, and every further call raises that again.
    """

    def __init__(self, settings: ChildSettings, command: Sequence[str] = COMMAND) -> None:
        """command: what starts the child; it gets its end of the connection as the last argument."""
        self._settings = settings
        self._lost: ReplicaLost | None = None
        self._numbers, self._serials = count(1), count(1)
        self._waiting: list[Change] = []
        self._choices: Ints = np.zeros(0, np.int32)
        self.calls = 0
        try:
            self._child: Child | None = Child(command, heard=settings.verbose)
        except OSError as error:
            raise ReplicaLost(f"the process of {self._name} cannot be started: {error}") from error
        self.process_id = self._child.process_id
        # The thread that hears the process would keep it where this is dropped.
        weakref.finalize(self, self._child.close)
        try:
            opened = self._exchange(settings, LOADING * settings.limit_s)
        except BaseException:
            self._child.kill()
            raise
        self._take(opened)

    @property
    def _name(self) -> str:
        return f"replica {self._settings.name}" if self._settings.name else "the replica"

    @property
    def lost(self) -> bool:
        """Whether its process is gone, or gave no answer in time."""
        return self._lost is not None

    def _late(self, limit_s: float) -> ReplicaLost:
        who = _servers(self._settings.rpc) or self._name
        return ReplicaLost(f"no answer of {who} within {limit_s:g} s", "--replica-timeout allows more")

    def _ended(self, words: str) -> ReplicaLost:
        """What its process said last, or what ended it, for a user; a server's end is the end of the process."""
        if (servers := self._settings.rpc) and SERVER_GONE in words:
            there = "start it again there" if len(servers) == 1 else "see which of them has ended, start it again"
            return ReplicaLost(f"{_servers(servers)} went away", f"{there}, and ask again")
        hint = f"see what {_servers(servers)} says" if servers else ""
        if "memory is short" in words:
            hint = "a smaller -c or fewer --replicas need less of it"
        return ReplicaLost(f"the process of {self._name} ended: {words}", hint)

    def suits(self, decode: DecodeSettings, *, raw_logits: bool) -> bool:
        """Whether these settings can decode in this context, which one that is closed or lost cannot."""
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
        fits, choices = self._ask(
            "decode",
            rows=rows,
            tokens=batch.tokens[:rows].tobytes(),
            positions=batch.positions[:rows].tobytes(),
            counts=counts.tobytes(),
            ids=ids.tobytes(),
            outputs=batch.outputs[:rows].tobytes(),
        )
        self._choices = np.frombuffer(choices, np.int32)
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

    def successors(self, most: int) -> Successors:
        found: Successors = self._ask("successors", most=most)
        return found

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._queue("copy", source, target, start, end)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        # Attention can forget any part; what a recurrent state can forget only the context knows.
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

    def abandon(self) -> None:
        """End the process in the middle of a call, from any thread: the call raises ReplicaLost."""
        if child := self._child:
            child.strike()

    def close(self) -> None:
        child, self._child = self._child, None
        if child:
            child.close()

    def _take(self, opened: Opened) -> None:
        self.cells = opened.cells
        self.batch_rows = opened.batch_rows
        self.sequences = opened.sequences
        self.vocabulary = opened.vocabulary
        self.can_shift = opened.can_shift
        self.memory = opened.memory
        self.max_rollback = opened.max_rollback
        self._ends = frozenset(opened.ends)

    def _check(self) -> None:
        """Raise again what made this replica unusable."""
        if self._lost:
            raise ReplicaLost(self._lost.what, self._lost.hint)

    def _queue(self, name: str, *arguments: int) -> None:
        self._check()
        # A generator that is closed after its engine has nothing left to forget.
        if self._child:
            self._waiting.append((next(self._serials), name, arguments))

    def _ask(self, name: str, **arguments: Any) -> Any:
        """What the context says to one call; it hears the waiting sequence calls before that."""
        return self._exchange(Request(self._waiting, name, arguments), self._settings.limit_s)

    def _exchange(self, message: object, limit_s: float) -> Any:
        self._check()
        if not self._child:
            raise LacliError("there is no context: it is closed, or memory was too short for it", "open another one")
        deadline = monotonic() + limit_s
        number = next(self._numbers)
        try:
            self._child.wire.post(number, message)
            # What an interrupt leaves in here is sent again, and made once.
            self._waiting = []
            answered, answer = self._child.wire.receive(deadline)
            while answered != number:  # one that an interrupt has left unheard
                answered, answer = self._child.wire.receive(deadline)
        except TimeoutError:
            self._lost = self._late(limit_s)
            self._child.kill()
        except EOFError:
            self._lost = self._ended(self._child.end())
        self._check()
        if isinstance(answer, Refusal):
            raise answer.error()
        return answer


def _servers(endpoints: Sequence[str]) -> str:
    """The RPC servers that a context computes on, in words; empty for none."""
    if not endpoints:
        return ""
    return f"the RPC server at {endpoints[0]}" if len(endpoints) == 1 else f"an RPC server of {', '.join(endpoints)}"

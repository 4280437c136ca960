"""Messages between a child process and ours over one socket: framed, numbered, and whole after an interrupt.

What the messages say is told in `remote.py`, which asks, and `child.py`, which answers. Both ends are ours, so they
are pickled.
"""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass, field
from math import inf
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from time import monotonic
from typing import Any, NamedTuple

from lacli.closing import Closing
from lacli.errors import LacliError

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

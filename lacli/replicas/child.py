"""What runs in a child process: it opens a context and answers requests until nobody asks any more.

Who starts it and asks is `lifetime.py` and `remote.py`. Its standard error is read for last words when it dies.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from lacli.batch import Batch
from lacli.errors import LacliError
from lacli.replicas.isolated import (
    LENGTH,
    Change,
    ChildSettings,
    Opened,
    Refusal,
    Request,
    Wire,
)

if TYPE_CHECKING:
    from lacli.llamacpp.context import Context


FAILED = 1

PLACE = re.compile(r"^.*?:\d+: ")
"""Where in ggml's sources a message comes from."""


Open = Callable[[ChildSettings], "Context"]


class ReceivedBatch(Batch):
    """A batch whose rows come as another batch's bytes."""

    def fill(self, rows: int, tokens: bytes, positions: bytes, counts: bytes, ids: bytes, outputs: bytes) -> Batch:
        """Take over the used rows of a batch, as `remote.py` sends them."""
        needed = len(ids) // self.sequence_ids.itemsize
        if needed > len(self.sequence_ids):
            self._make_room(2 * needed)
        self.rows = rows
        self.tokens[:rows] = np.frombuffer(tokens, np.int32)
        self.positions[:rows] = np.frombuffer(positions, np.int32)
        self.sequence_counts[:rows] = np.frombuffer(counts, np.int32)
        self.sequence_ids[:needed] = np.frombuffer(ids, np.int32)
        self.outputs[:rows] = np.frombuffer(outputs, np.int8)
        ends = np.cumsum(self.sequence_counts[:rows])
        self.sequence_pointers[:rows] = self._ids_address + self._id_size * (ends - self.sequence_counts[:rows])
        self.wanted = int(self.outputs[:rows].sum())
        return self


class Answers:
    """Answers what is asked of one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._batch = ReceivedBatch(context.batch_rows)
        self._made = 0

    def opened(self) -> Opened:
        """What the context is."""
        context = self._context
        return Opened(
            cells=context.cells,
            batch_rows=context.batch_rows,
            sequences=context.sequences,
            vocabulary=context.vocabulary,
            can_shift=context.can_shift,
            memory=context.memory,
            max_rollback=context.max_rollback,
            ends=tuple(token for token in range(context.vocabulary) if context.is_end(token)),
        )

    def to(self, request: Request) -> object:
        """What the engine says, or why it refuses."""
        try:
            for change in request.before:
                self._make(change)
            if request.name == "decode":
                return self._decode(**request.arguments)
            return getattr(self._context, request.name)(**request.arguments)
        except LacliError as error:
            return Refusal.of(error)

    def _make(self, change: Change) -> None:
        serial, name, arguments = change
        if serial > self._made:
            self._made = serial
            done = getattr(self._context, name)(*arguments)
            assert done is not False, f"{name}{arguments} was taken for granted"

    def _decode(self, **rows: Any) -> tuple[bool, bytes]:
        """Whether the batch fits, and the greedy choices, (outputs,) int32."""
        batch = self._batch.fill(**rows)
        if not self._context.decode(batch):
            return False, b""
        return True, self._context.greedy().astype(np.int32).tobytes() if batch.wanted else b""


def open_context(settings: ChildSettings) -> Context:
    """Load the model and make the context; both live as long as the process. Raises ModelLoadError."""
    from lacli.llamacpp.context import LlamaEngine
    from lacli.llamacpp.library import on_abort
    from lacli.llamacpp.model import LlamaModel

    on_abort(_say_and_end)
    if settings.rpc:
        from lacli.llamacpp.rpc import register

        register(settings.rpc)
    model = LlamaModel(settings.path, settings.loading, verbose=settings.verbose)
    return LlamaEngine(model, settings.loading, settings.decoding, backend_greedy=settings.backend_greedy)


def serve(wire: Wire, opens: Open) -> None:
    """Answer until the other end closes, which raises EOFError."""
    number, settings = wire.receive()
    try:
        answers = Answers(opens(settings))
    except LacliError as error:
        _reply(wire, number, Refusal.of(error))
        return
    _reply(wire, number, answers.opened())
    while True:
        number, request = wire.receive()
        _reply(wire, number, answers.to(request))


def run(opens: Open = open_context) -> NoReturn:
    """The whole life of a child process; the system takes back what it holds."""
    # Ctrl-C goes to all processes of a terminal, and the one that asks decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = _connection(sys.argv[1])
    Thread(target=_end_with_parent, daemon=True).start()
    wire = Wire(connection)
    try:
        with suppress(EOFError):
            serve(wire, opens)
    except Exception:
        # The connection breaks behind the last words only: whoever asks does not wait for them.
        traceback.print_exc()
        os._exit(FAILED)
    os._exit(0)


def _reply(wire: Wire, number: int, answer: object) -> None:
    wire.post(number, answer)
    wire.flush()


def _connection(address: str) -> socket.socket:
    """Our end of the connection: an open file's number, or on Windows what standard input says of it."""
    if sys.platform == "win32":
        return socket.fromshare(os.read(0, int.from_bytes(os.read(0, LENGTH), "little")))
    connection = socket.socket(fileno=int(address))
    connection.set_inheritable(False)
    return connection


def _end_with_parent() -> None:
    """Standard input ends when whoever started this process does, also in the middle of a call of llama.cpp's."""
    while os.read(0, 1):
        pass
    os._exit(FAILED)


def _say_and_end(message: str) -> None:
    """ggml's last words on one line, and no core dump."""
    os.write(2, f"{PLACE.sub('', ' '.join(message.split()))}\n".encode())
    os._exit(FAILED)


if __name__ == "__main__":
    run()

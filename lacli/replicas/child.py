"""What runs in a child process: it opens a context and answers requests until the other end closes.

`isolated.py` starts it and asks. Its standard error is read for last words when it dies.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BufferedRWPair
from threading import Thread
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from lacli.batch import Batch, Ints
from lacli.errors import LacliError
from lacli.replicas.isolated import ATTRIBUTES, LENGTH, ChildSettings, Request, send

if TYPE_CHECKING:
    from lacli.llamacpp.context import Context

FAILED = 1

PLACE = re.compile(r"^.*?:\d+: ")
"""Where in ggml's sources a message comes from."""

Open = Callable[[ChildSettings], "Context"]


class ReceivedBatch(Batch):
    """A batch whose rows come as another batch's columns."""

    def fill(self, rows: int, columns: Sequence[Ints]) -> Batch:
        """Take over the used rows: tokens, positions, sequence counts, sequence ids and outputs."""
        tokens, positions, counts, ids, outputs = columns
        if len(ids) > len(self.sequence_ids):
            self._make_room(2 * len(ids))
        self.rows = rows
        self.tokens[:rows] = tokens
        self.positions[:rows] = positions
        self.sequence_counts[:rows] = counts
        self.sequence_ids[: len(ids)] = ids
        self.outputs[:rows] = outputs
        self.sequence_pointers[:rows] = self._ids_address + self._id_size * (np.cumsum(counts) - counts)
        self.wanted = int(outputs.sum())
        return self


class Answers:
    """Answers what is asked of one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._batch = ReceivedBatch(context.batch_rows)

    def opened(self) -> dict[str, Any]:
        """What the context is, and the tokens that end a generation."""
        context = self._context
        ends = [token for token in range(context.vocabulary) if context.is_end(token)]
        return {"ends": ends, **{name: getattr(context, name) for name in ATTRIBUTES}}

    def to(self, request: Request) -> object:
        """What the context says, or why it refuses."""
        try:
            for name, arguments in request.changes:
                done = getattr(self._context, name)(*arguments)
                assert done is not False, f"{name}{arguments} was taken for granted"
            if request.name == "decode":
                return self._decode(**request.arguments)
            return getattr(self._context, request.name)(**request.arguments)
        except LacliError as error:
            return error

    def _decode(self, rows: int, columns: Sequence[Ints]) -> tuple[bool, Ints]:
        """Whether the batch fits, and the greedy choices, (outputs,) int32."""
        batch = self._batch.fill(rows, columns)
        fits = self._context.decode(batch)
        return fits, self._context.greedy().astype(np.int32) if fits and batch.wanted else np.zeros(0, np.int32)


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


def serve(file: BufferedRWPair, opens: Open) -> None:
    """Answer until the other end closes, which raises EOFError."""
    try:
        answers = Answers(opens(pickle.load(file).arguments["settings"]))
    except LacliError as error:
        send(file, error)
        return
    send(file, answers.opened())
    while True:
        send(file, answers.to(pickle.load(file)))


def run(opens: Open = open_context) -> NoReturn:
    """Live a child process's whole life; the system takes back what it holds."""
    # Ctrl-C goes to all processes of a terminal, and the one that asks decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = _connection(sys.argv[1])
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        with suppress(EOFError, ConnectionError):
            serve(connection.makefile("rwb"), opens)
    except Exception:
        # The connection breaks behind the last words only: they are not waited for.
        traceback.print_exc()
        os._exit(FAILED)
    os._exit(0)


def _connection(address: str) -> socket.socket:
    """Our end of the connection: an open file's number, or on Windows what standard input says of it."""
    if sys.platform == "win32":
        return socket.fromshare(os.read(0, int.from_bytes(os.read(0, LENGTH), "little")))
    connection = socket.socket(fileno=int(address))
    connection.set_inheritable(False)
    return connection


def _end_with_parent() -> None:
    """End when standard input does, as its starter has, also in the middle of a call of llama.cpp's."""
    while os.read(0, 1):
        pass
    os._exit(FAILED)


def _say_and_end(message: str) -> None:
    """Say ggml's last words on one line and end without a core dump."""
    os.write(2, f"{PLACE.sub('', ' '.join(message.split()))}\n".encode())
    os._exit(FAILED)


if __name__ == "__main__":
    run()

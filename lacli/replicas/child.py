"""The program of a child process: open a context and answer requests until the other end closes.

`process.py` starts it, sends the requests, and reads its standard error for the reason if it dies.
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
from lacli.replicas.isolated import ATTRIBUTES, ChildSettings
from lacli.replicas.process import Reply, Request, send

if TYPE_CHECKING:
    from lacli.llamacpp.context import Context

FAILED = 1

PLACE = re.compile(r"^.*?:\d+: ")
"""The file and line of ggml's sources in front of a message."""

Open = Callable[[ChildSettings], "Context"]


class ReceivedBatch(Batch):
    """A batch that is filled from the columns of another process's batch."""

    def fill(self, rows: int, columns: Sequence[Ints]) -> Batch:
        """Copy in `rows` rows from `columns`: tokens, positions, sequence counts, sequence ids and outputs."""
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
    """Answers the requests to one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._batch = ReceivedBatch(context.batch_rows)

    def opened(self) -> dict[str, Any]:
        """The context's `ATTRIBUTES`, and the tokens that end a generation."""
        context = self._context
        ends = [token for token in range(context.vocabulary) if context.is_end(token)]
        return {"ends": ends, **{name: getattr(context, name) for name in ATTRIBUTES}}

    def to(self, request: Request) -> object:
        """The context's result for a request, or the LacliError that it raised."""
        try:
            for name, arguments in request.changes:
                done = getattr(self._context, name)(*arguments)
                assert done is not False, f"{name}{arguments} must not be refused"
            if request.name == "decode":
                return self._decode(**request.arguments)
            return getattr(self._context, request.name)(**request.arguments)
        except LacliError as error:
            return error

    def _decode(self, rows: int, columns: Sequence[Ints]) -> tuple[bool, Ints]:
        """True if the batch fits, and the greedy choices, (outputs,) int32."""
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
    model = LlamaModel(settings.path, settings.model_settings, verbose=settings.verbose)
    return LlamaEngine(model, settings.model_settings, settings.decode_settings, backend_greedy=settings.backend_greedy)


def serve(file: BufferedRWPair, opens: Open) -> None:
    """Answer until the other end closes, which raises EOFError."""
    try:
        answers = Answers(opens(pickle.load(file).arguments["settings"]))
    except LacliError as error:
        send(file, Reply(error))
        return
    send(file, Reply(answers.opened()))
    while True:
        send(file, Reply(answers.to(pickle.load(file))))


def run(opens: Open = open_context) -> NoReturn:
    """Run the child process to its end; the system frees its memory."""
    # Ctrl-C goes to all processes of a terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        with suppress(EOFError, ConnectionError):
            serve(connection.makefile("rwb"), opens)
    except Exception:
        # The parent reads standard error after the connection breaks, so the traceback comes first.
        traceback.print_exc()
        os._exit(FAILED)
    os._exit(0)


def _end_with_parent() -> None:
    """End when standard input closes because the parent has ended, even in the middle of a call of llama.cpp."""
    while os.read(0, 1):
        pass
    os._exit(FAILED)


def _say_and_end(message: str) -> None:
    """Write ggml's abort message on one line and end without a core dump."""
    os.write(2, f"{PLACE.sub('', ' '.join(message.split()))}\n".encode())
    os._exit(FAILED)


if __name__ == "__main__":
    run()

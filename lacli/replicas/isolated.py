"""A context in a child process, and the engine that represents it in this one."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lacli.batch import Batch, Ints
from lacli.engine import Floats, Successors
from lacli.errors import LacliError, ReplicaLost
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.replicas.process import COMMAND, Child
from lacli.settings import DecodeSettings
from lacli.text.files import Closing


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


LOADING = 10
"""Loading the model may take this many times a call's limit, because it reads the file from disk."""

SERVER_GONE = "Remote RPC server crashed"
"""In ggml's last message, if a server no longer answers."""

ATTRIBUTES = (
    *("cells", "batch_rows", "prefill_rows", "mixed_rows", "trained_context", "sequences"),
    *("vocabulary", "can_lend", "memory", "max_rollback"),
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
    mixed_rows: int
    trained_context: int
    sequences: int
    vocabulary: int
    can_lend: bool
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
        return self._lost is not None or bool(self._child and self._child.has_ended)

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
            hint = "a smaller -c or fewer copies need less of it"
        return ReplicaLost(f"the process of {self._name} ended: {words}", hint)


def _servers(endpoints: Sequence[str]) -> str:
    """The RPC servers of a context, in words; empty for none."""
    if not endpoints:
        return ""
    return f"the RPC server at {endpoints[0]}" if len(endpoints) == 1 else f"an RPC server of {', '.join(endpoints)}"

"""A context of a child process behind the Engine protocol: one message a step, and a time limit on every answer.

Which replicas there are and what a lost one means for the answer is decided above.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import count
from time import monotonic
from typing import Any

import numpy as np

from lacli.batch import Batch, Ints
from lacli.closing import Closing
from lacli.engine import Floats, Successors
from lacli.errors import LacliError, ReplicaLost
from lacli.isolated.lifetime import COMMAND, Child
from lacli.isolated.settings import ChildSettings, Opened
from lacli.isolated.wire import Change, Refusal, Request
from lacli.settings import DecodeSettings

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
        if self.back >= 0 and self._child:
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
        self.back = opened.back
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

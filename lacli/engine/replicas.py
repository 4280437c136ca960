"""Contexts of one model on several devices as one context: the branches of each step are dealt evenly among them.

A branch is a sequence id: a window column or a candidate. What branches share (the input, row 0 of the window, the
beginning of candidates) goes to every replica with one of those branches, as in Figure 3 of the paper. Accepted tokens
that a replica has not decoded are decoded in front of its next rows. Steps without branches are the first replica's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from lacli.batch import Batch, Ints
from lacli.context import Floats, Successors
from lacli.settings import DecodeSettings
from lacli.text.files import Closing

WHOLE_SEQUENCES = 2
"""Sequence ids of a step that cannot be divided: the sequence's own and one branch's."""

AGAIN_S = 0.05
"""Seconds after which replicas are interrupted once more: one may have been between two pieces of a prompt."""


class Row:
    """A row of a batch. `ids`: the sequences that own its cell; `output`: its choice is read."""

    def __init__(self, token: int, position: int, ids: Iterable[int], *, output: bool) -> None:
        self.token, self.position, self.ids, self.output = token, position, {*ids}, output


class Replica:
    """One of the contexts, and the rows that only others have decoded, in the order of their positions."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.missing: list[Row] = []
        self._batch = Batch(context.batch_rows)

    def decode(self, rows: Sequence[Row]) -> bool:
        """Decode `rows` behind the missing ones; False, with nothing changed, if there are no cells."""
        if len(self.missing) + len(rows) > self.context.batch_rows:
            if not self._decode(self.missing):
                return False
            self.missing = []
        return self._decode([*self.missing, *rows])

    def take_back(self, rows: Sequence[Row]) -> None:
        """Remove what an interrupted `decode` of these rows may have left."""
        self.context.remove(-1, min(each.position for each in [*self.missing, *rows]), -1)

    def _decode(self, rows: Sequence[Row]) -> bool:
        most = self.context.batch_rows
        for begin in range(0, len(rows), most):
            piece = rows[begin : begin + most]
            self._batch.set_rows(
                [each.token for each in piece],
                [each.position for each in piece],
                [sorted(each.ids) for each in piece],
                [each.output for each in piece],
            )
            if not self.context.decode(self._batch):
                return False
        return True


class ReplicaContext(Closing):
    """Decodes one sequence on several contexts; the first in the caller's thread, each other one in its own."""

    def __init__(self, contexts: Sequence[Any]) -> None:
        """`contexts`: of one model, each a `Context` that can be closed and asked what it `suits`."""
        first = contexts[0]
        self._replicas = [Replica(context) for context in contexts]
        # llama.cpp's own threads belong to the one that calls it, so each replica keeps to one.
        self._threads = [ThreadPoolExecutor(1) for _ in contexts[1:]]
        # The replica of each output row of the last batch, and its output row there.
        self._outputs: list[tuple[Replica, int]] = []
        self.cells = min(context.cells for context in contexts)
        self.batch_rows = min(context.batch_rows for context in contexts)
        self.prefill_rows, self.mixed_rows = first.prefill_rows, first.mixed_rows
        self.trained_context, self.vocabulary = first.trained_context, first.vocabulary
        self.sequences = min(context.sequences for context in contexts)
        self.can_share, self.passes_all_cells = first.can_share, first.passes_all_cells
        self.is_end = first.is_end

    def decode(self, batch: Batch) -> bool:
        """Decode the rows where their branches are dealt to; those of a prompt on all replicas."""
        rows = rows_of(batch)
        parts = dealt(rows, len(self._replicas)) if batch.wanted else [rows for _ in self._replicas]
        used = self._replicas[: len(parts)]
        try:
            decoded = self._run([partial(each.decode, part) for each, part in zip(used, parts, strict=True)])
            if all(decoded):
                self._book(rows, parts)
                return True
        except BaseException:
            # The interrupt may have come before a call of another thread was noted.
            self._wait([thread.submit(bool) for thread in self._threads], pressed=True)
            for replica in used:
                replica.take_back(rows)
            raise
        # What other replicas have decoded of a step without cells is taken back; they keep what they had missed.
        for replica, done in zip(used, decoded, strict=True):
            if done:
                replica.missing = []
            replica.context.remove(-1, rows[0].position, -1)
        return False

    def _book(self, rows: Sequence[Row], parts: Sequence[Sequence[Row]]) -> None:
        """Note where each output row was decoded, and which rows each replica lacks."""
        places: dict[Row, tuple[Replica, int]] = {}
        lacking: list[list[Row]] = []
        for replica, part in zip(self._replicas, [*parts, *[()] * (len(self._replicas) - len(parts))], strict=True):
            inside = {*part}
            # Rows of its own: each replica's sequence calls are about what it lacks.
            others = [Row(row.token, row.position, row.ids, output=False) for row in rows if row not in inside]
            lacking.append([*(() if part else replica.missing), *others])
            for place, row in enumerate(row for row in part if row.output):
                places.setdefault(row, (replica, place))
        self._outputs = [places[row] for row in rows if row.output]
        for replica, missing in zip(self._replicas, lacking, strict=True):
            replica.missing = missing

    def greedy(self) -> Ints:
        found = {replica: replica.context.greedy() for replica, _ in self._outputs}
        return np.array([found[replica][place] for replica, place in self._outputs])

    def logits(self) -> Floats:
        return np.stack([replica.context.row_logits(place) for replica, place in self._outputs])

    def row_logits(self, row: int) -> Floats:
        replica, place = self._outputs[row]
        logits: Floats = replica.context.row_logits(place)
        return logits

    def successors(self, count: int) -> Successors:
        found = {replica: replica.context.successors(count) for replica, _ in self._outputs}
        width = min(each.tokens.shape[1] for each in found.values())
        return Successors(
            np.array([found[replica].tokens[place, :width] for replica, place in self._outputs]),
            np.array([found[replica].logits[place, :width] for replica, place in self._outputs]),
        )

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        for replica in self._replicas:
            replica.context.copy(source, target, start, end)
            for row in replica.missing:
                if source in row.ids and start <= row.position < end:
                    row.ids.add(target)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        for replica in self._replicas:
            for row in replica.missing:
                if start <= row.position and (end < 0 or row.position < end):
                    row.ids = set() if sequence < 0 else row.ids - {sequence}
            replica.missing = [row for row in replica.missing if row.ids]
        return all([replica.context.remove(sequence, start, end) for replica in self._replicas])

    def clear(self) -> None:
        for replica in self._replicas:
            replica.missing = []
            replica.context.clear()

    def suits(self, decode: DecodeSettings, *, raw_logits: bool) -> bool:
        """True if `decode` fits into all contexts, and has branches for them."""
        return decode.sequences > 1 and all(
            replica.context.suits(decode, raw_logits=raw_logits) for replica in self._replicas
        )

    def close(self) -> None:
        """Close all contexts."""
        for replica in self._replicas:
            replica.context.close()

    def interrupt(self) -> None:
        """End the calls of all replicas that can be left in the middle."""
        for replica in self._replicas:
            # Not every context can leave the call that another thread has made of it.
            getattr(replica.context, "interrupt", bool)()

    def _run(self, calls: Sequence[Callable[[], bool]]) -> list[bool]:
        """Make a call for each of the first replicas at the same time, and return the results."""
        futures: list[Future[bool]] = []
        pressed = False
        try:
            futures += [thread.submit(call) for thread, call in zip(self._threads, calls[1:], strict=False)]
            own = calls[0]()
        except KeyboardInterrupt:
            pressed = True
            raise
        finally:
            self._wait(futures, pressed=pressed)
        return [own, *(future.result() for future in futures)]

    def _wait(self, futures: Sequence[Future[bool]], *, pressed: bool) -> None:
        """Wait until all are done, even after Ctrl-C: no cache may change while its replica decodes.

        `pressed`: Ctrl-C came before. Behind it the replicas are interrupted again and again.
        """
        raised: list[KeyboardInterrupt] = []
        for future in futures:
            while not future.done():
                try:
                    if pressed:
                        self.interrupt()
                    future.exception(AGAIN_S if pressed else None)
                except TimeoutError:
                    continue
                except KeyboardInterrupt as error:
                    raised.append(error)
                    pressed = True
        if raised:
            raise raised[-1]


def rows_of(batch: Batch) -> list[Row]:
    """The rows of a batch one by one."""
    rows = batch.rows
    counts = batch.sequence_counts[:rows].tolist()
    ids = batch.sequence_ids[: sum(counts)].tolist()
    spans = pairwise(accumulate(counts, initial=0))
    columns = (batch.tokens[:rows].tolist(), batch.positions[:rows].tolist(), batch.outputs[:rows].tolist(), spans)
    return [
        Row(token, position, ids[begin:end], output=bool(output))
        for token, position, output, (begin, end) in zip(*columns, strict=True)
    ]


def dealt(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """At most `count` parts of a step's rows with as many branches each; neighbours, which share most rows, together.

    The input, which is the first row whose choice is read, and the rows before it belong to every part.
    """
    root = next(place for place, row in enumerate(rows) if row.output)
    if len(rows[root].ids) <= WHOLE_SEQUENCES:
        return [[*rows]]
    paths: dict[int, list[int]] = {}
    for place, row in enumerate(rows[root + 1 :], start=root + 1):
        for branch in row.ids:
            paths.setdefault(branch, []).append(place)
    branches = sorted(paths, key=paths.__getitem__)
    bounds = [round(len(branches) * part / count) for part in range(count + 1)]
    parts = []
    for begin, end in pairwise(bounds):
        if begin < end:
            wanted = {*range(root + 1)}.union(*(paths[branch] for branch in branches[begin:end]))
            parts.append([row for place, row in enumerate(rows) if place in wanted])
    return parts or [[*rows]]

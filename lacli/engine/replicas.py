"""Lookahead parallelism: replicas of a model on several devices, and their contexts as one.

A branch is a sequence id: a window column or a candidate. Each step's branches are dealt evenly among the replicas. A
row goes to every replica with a branch through this row, such as the input or row 0 of the window (Figure 3 of the
paper). Before its next rows a replica decodes the accepted tokens that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lacli.batch import Batch, Ints
from lacli.context import Closing, Floats
from lacli.engine.libraries import model_class, open_context
from lacli.errors import UsageError
from lacli.llamacpp.context import DecodingContext
from lacli.llamacpp.devices import deal_devices, devices
from lacli.llamacpp.machine import with_threads
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import CPU, RPC, ContextSize, ModelSettings
from lacli.settings import DecodeSettings

AGAIN_S = 0.05
"""Seconds after which a context is interrupted once more: the first may have come between two prompt chunks."""


class Row:
    """A row of a batch. `ids`: the sequence ids that own its cell. `output`: whether the choice after it is read."""

    def __init__(self, token: int, position: int, ids: Iterable[int], output: bool) -> None:
        self.token, self.position, self.ids, self.output = token, position, {*ids}, output


class Replica:
    """One context. `missing`: accepted rows that only other replicas have decoded, in the order of their positions."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.missing: list[Row] = []
        self._batch = Batch(context.batch_rows)

    def decode(self, rows: Sequence[Row]) -> bool:
        """Decode rows that only other replicas have decoded, then `rows`. Return False if too few cells are free."""
        if len(self.missing) + len(rows) > self.context.batch_rows:
            if not self._decode(self.missing):
                return False
            self.missing = []
        return self._decode([*self.missing, *rows])

    def _decode(self, rows: Sequence[Row]) -> bool:
        columns = zip(*((each.token, each.position, sorted(each.ids), each.output) for each in rows), strict=True)
        decoded: bool = self.context.decode(self._batch.set_rows(*map(list, columns)))
        return decoded


class ReplicaContext(Closing):
    """Decodes one sequence on several contexts: the first in the caller's thread, each further one in its own."""

    def __init__(self, contexts: Sequence[Any]) -> None:
        """`contexts`: of one model; each is a `Context` that has the methods `close` and `suits` too."""
        first = contexts[0]
        self._replicas = [Replica(context) for context in contexts]
        # llama.cpp's threads belong to the calling thread, so each replica keeps one.
        self._threads = [ThreadPoolExecutor(1) for _ in contexts[1:]]
        # The replica of each output row of the last batch, and its output row there.
        self._outputs: list[tuple[Replica, int]] = []
        self.cells = min(context.cells for context in contexts)
        self.batch_rows = min(context.batch_rows for context in contexts)
        self.prefill_rows, self.mixed_rows = first.prefill_rows, first.mixed_rows
        self.max_outputs = min(context.max_outputs for context in contexts)
        self.trained_tokens = first.trained_tokens
        self.ids = min(context.ids for context in contexts)
        self.can_share, self.passes_all_cells = first.can_share, first.passes_all_cells
        self.is_end = first.is_end

    def decode(self, batch: Batch) -> bool:
        """Decode each row on the replicas of its branches, and a prompt chunk on all; False if cells are too few."""
        rows = [Row(*row) for row in batch.read()]
        parts = deal_rows(rows, len(self._replicas)) if batch.wanted else [rows for _ in self._replicas]
        first, *others = self._replicas
        try:
            calls = zip(self._threads, others, parts[1:], strict=True)
            futures = [thread.submit(each.decode, part) for thread, each, part in calls]
            decoded = [first.decode(parts[0]), *[future.result() for future in futures]]
            if all(decoded):
                self._note(rows, parts)
                return True
        except BaseException:
            self._settle()
            for replica in self._replicas:
                # An interrupted call may have left rows.
                replica.context.remove(-1, min(each.position for each in [*replica.missing, *rows]), -1)
            raise
        # If a replica has too few cells, all remove the rows of the step, but keep missing rows that they decoded.
        for replica, done in zip(self._replicas, decoded, strict=True):
            if done:
                replica.missing = []
            replica.context.remove(-1, rows[0].position, -1)
        return False

    def _note(self, rows: Sequence[Row], parts: Sequence[Sequence[Row]]) -> None:
        places: dict[Row, tuple[Replica, int]] = {}
        for replica, part in zip(self._replicas, parts, strict=True):
            for place, row in enumerate(row for row in part if row.output):
                places.setdefault(row, (replica, place))
            inside = {*part}
            # New rows: each replica's sequence calls change its own missing rows.
            replica.missing = [Row(row.token, row.position, row.ids, output=False) for row in rows if row not in inside]
        self._outputs = [places[row] for row in rows if row.output]

    def greedy(self) -> Ints:
        found = {replica: replica.context.greedy() for replica, _ in self._outputs}
        return np.array([found[replica][place] for replica, place in self._outputs])

    def row_logits(self, row: int) -> Floats:
        replica, place = self._outputs[row]
        logits: Floats = replica.context.row_logits(place)
        return logits

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
        """Return whether steps of `decode` have branches to deal, and each context is large enough for the steps.

        `raw_logits`: whether `row_logits` will be called too.
        """
        fits = (replica.context.suits(decode, raw_logits=raw_logits) for replica in self._replicas)
        return decode.ids > 1 and all(fits)

    def close(self) -> None:
        for replica in self._replicas:
            replica.context.close()

    def interrupt(self) -> None:
        """Interrupt the `decode` calls of all replicas whose contexts can be interrupted."""
        for replica in self._replicas:
            getattr(replica.context, "interrupt", bool)()

    def _settle(self) -> None:
        """Interrupt all replicas, and wait until none decodes and caches can change, despite further Ctrl-C."""
        left = {thread.submit(bool) for thread in self._threads}
        while left:
            with suppress(KeyboardInterrupt):
                self.interrupt()
                left = wait(left, AGAIN_S).not_done


def deal_rows(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """Return `count` parts of a step's rows with about equally many branches. Branches that share rows stay together.

    The input (the first row whose choice is read) and the rows before it are in every part, and so is an only branch.
    """
    root = next(place for place, row in enumerate(rows) if row.output)
    # A step with the sequence's own id and one branch's cannot be divided.
    if len(rows[root].ids) <= 2:
        return [[*rows] for _ in range(count)]
    paths: dict[int, list[int]] = {}
    for place, row in enumerate(rows[root + 1 :], start=root + 1):
        for branch in row.ids:
            paths.setdefault(branch, []).append(place)
    branches = sorted(paths, key=paths.__getitem__)
    bounds = [round(len(branches) * part / count) for part in range(count + 1)]
    parts = []
    for begin, end in pairwise(bounds):
        # A part has a branch in any case: --strict reads no single row.
        own = branches[begin:end] or branches[-1:]
        wanted = {*range(root + 1)}.union(*(paths[branch] for branch in own))
        parts.append([row for place, row in enumerate(rows) if place in wanted])
    return parts


def plan_replicas(model_settings: ModelSettings) -> list[ModelSettings]:
    """Return the settings of each replica with its devices; without --replicas and --rpc, only `model_settings`.

    Raises UsageError for unknown devices, LacliError for servers that do not answer.
    """
    if model_settings.replicas == 1 and not model_settings.rpc:
        return [model_settings]
    if model_settings.rpc:
        from lacli.llamacpp.rpc import check_servers, register

        # A child process asks first: here ggml would abort if a server is absent or of another version.
        check_servers(model_settings.rpc)
        for server in model_settings.rpc:
            register(server)
    there = devices()
    groups = deal_devices(model_settings, there)
    # The description of a server's device is the server's address.
    servers = {each.name: each.description for each in there if each.name.startswith(RPC)}
    used = [server for group in groups for server in {servers[name] for name in group if name in servers}]
    if twice := [server for server in model_settings.rpc if used.count(server) > 1]:
        what = f"several copies need the RPC server at {twice[0]}, which does one thing at a time"
        raise UsageError(what, "start a server for each: lacli rpc-server --device NAME -p PORT")
    settings = with_threads(model_settings, groups.count((CPU,)))
    return [replace(settings, devices=group) for group in groups]


AnyContext = DecodingContext | ReplicaContext


class Weights(Closing):
    """The weights of a model's replicas, one by default. `open` opens a context with all of them.

    `plans`: the settings of each replica. `model`: the first replica's weights and vocabulary.
    """

    def __init__(
        self,
        path: Path,
        model_settings: ModelSettings,
        *,
        verbose: bool = False,
        loading: Callable[[float], None] | None = None,
    ) -> None:
        """Load the first replica's weights. `loading`: called with the loaded share, 0 to 1.

        Raises ModelLoadError if this fails, UsageError for unknown devices, LacliError if a server does not answer.
        """
        self._open_model = partial(model_class(model_settings), path, verbose=verbose, loading=loading)
        self.plans = plan_replicas(model_settings)
        self._models: dict[tuple[str, ...], LlamaModel] = {}
        self.model = self._model(self.plans[0])

    @property
    def names(self) -> list[str]:
        """The devices of each replica, as a text like "CUDA0+CUDA1"; empty for a single replica."""
        return ["+".join(plan.devices) for plan in self.plans] if len(self.plans) > 1 else []

    def open(self, size: ContextSize, *, backend_greedy: bool | None) -> AnyContext:
        """Open a context of all replicas, or of the first if `size.ids` is 1.

        `backend_greedy`: whether llama.cpp chooses the most probable tokens; None: only on a GPU.
        """
        plans = self.plans if size.ids > 1 else self.plans[:1]
        with ExitStack() as stack:
            opened = []
            for plan in plans:
                # llama.cpp fetches choices from a server row by row, but all rows' logits at once.
                chosen = False if any(name.startswith(RPC) for name in plan.devices) else backend_greedy
                context = open_context(self._model(plan), plan, size, backend_greedy=chosen)
                opened.append(stack.enter_context(context))
            stack.pop_all()
        return ReplicaContext(opened) if len(opened) > 1 else opened[0]

    def close(self) -> None:
        for model in self._models.values():
            model.close()

    def _model(self, model_settings: ModelSettings) -> LlamaModel:
        if model_settings.devices not in self._models:
            self._models[model_settings.devices] = self._open_model(model_settings)
        return self._models[model_settings.devices]

"""What contexts of llama.cpp and of ik_llama.cpp share: batches, logits by row, and Ctrl-C in a prompt chunk."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from math import isfinite
from time import perf_counter, process_time
from typing import Any

import numpy as np
import numpy.typing as npt

from lacli.batch import Batch, Ints
from lacli.context import Successors
from lacli.errors import BatchRefused, LacliError
from lacli.llamacpp.devices import CPU
from lacli.llamacpp.library import Log, ctrl_c_calls, devices, lib
from lacli.llamacpp.logits import LogitsView, ranked
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import PLAIN_CACHE_TYPES, Capacity, ModelSettings
from lacli.llamacpp.threads import ThreadsInUse
from lacli.settings import DecodeSettings
from lacli.text.files import Closing

CONTEXT_PAD = 256
"""Cells to whose multiple llama.cpp rounds a context up."""

PREFILL_ROWS = 512
"""Rows of a prefill call: llama.cpp computes no more at once anyway (n_ubatch)."""

PREFILL_ROWS_ON_CPU = 128
"""Rows of a prefill call where a CPU computes with all weights: as fast as 512, and Ctrl-C is heard more often.

The time of a prompt in chunks of 512 rows over that in chunks of 128 (processor seconds, Q4_0): 1.05 with 0.5B, 1.02
with 3B, 0.99 with -fa on. A GPU needs more rows, and so does each expert of a mixture.
"""

CHUNK_ROWS = 64
"""Rows without logits from which a step that has others too can be interrupted: they are a prompt chunk."""

REFUSED = -1
"""llama_decode's status for a batch that it does not begin."""


class DecodingContext(Closing):
    """Decodes batches in one llama_context, whose `_handle` a subclass opens.

    `max_rollback`: drafted tokens that can be rolled back after a step, -1 for any number and trees.
    """

    max_rollback = -1
    mixed_rows: int
    can_share: bool
    passes_all_cells: bool

    def __init__(
        self,
        api: Any,
        log: Log,
        model: LlamaModel,
        settings: ModelSettings,
        decode: DecodeSettings | Capacity,
    ) -> None:
        """`api`: the library's functions and structures by their names in C. `log`: what the library says."""
        self._api, self._log, self._model = api, log, model
        self._handle: Any = None
        self.sequences, self.vocabulary, self.trained_context = decode.sequences, model.vocabulary, model.context
        self.calls = self._snapshots = 0
        self._interrupted = False
        self._max_outputs = max(decode.sequences, decode.max_outputs)
        self._in_use = ThreadsInUse(settings.threads) if can_give_way(settings) else None
        self._threads_set = settings.threads
        self._batch: Batch | None = None
        self._logits = LogitsView(ctypes.c_float, self._max_outputs, self.vocabulary)

    def _parameters(self, settings: ModelSettings, decode: DecodeSettings | Capacity) -> Any:
        """Return the llama_context_params that are the same in both libraries."""
        parameters = self._api.llama_context_default_params()
        texts = decode.texts if isinstance(decode, Capacity) else 1
        # -b is cut to the context as it is asked for, so ask for what llama.cpp would round it up to.
        parameters.n_ctx = padded(settings.context or texts * self._model.default_context)
        parameters.n_batch = min(settings.batch, parameters.n_ctx)
        parameters.n_seq_max = decode.sequences
        parameters.n_threads = settings.threads
        parameters.n_threads_batch = settings.threads_batch or settings.threads
        parameters.type_k = cache_type(settings.cache_type_k)
        parameters.type_v = cache_type(settings.cache_type_v)
        return parameters

    def _note_sizes(self) -> None:
        """Note what the opened context has become: its cells, and rows of a call."""
        self.cells = int(self._api.llama_n_ctx(self._handle))
        self.batch_rows = int(self._api.llama_n_batch(self._handle))
        few = not self._model.offloaded and not self._model.has_experts
        self.prefill_rows = PREFILL_ROWS_ON_CPU if few else PREFILL_ROWS

    def suits(self, decode: DecodeSettings, *, raw_logits: bool) -> bool:
        return bool(self._handle) and decode.sequences <= self.sequences and decode.max_outputs <= self._max_outputs

    def decode(self, batch: Batch) -> bool:
        rows = batch.rows
        assert 0 < rows <= self.batch_rows, f"{rows} rows in a batch of at most {self.batch_rows}"
        assert batch.wanted <= self._max_outputs, f"{batch.wanted} outputs in a context for {self._max_outputs}"
        if not self._handle:
            self._model.check_open()
            raise LacliError("there is no context: memory was too short for it", "settings of fewer rows may fit")
        if batch is not self._batch:
            self._batch, self._struct = batch, _struct_over(self._api, batch)
        self._struct.n_tokens = rows
        self.calls += 1
        status = self._decoded(prefills=not batch.wanted or rows - batch.wanted >= CHUNK_ROWS)
        if status == 0:
            # llama.cpp has a state after each row, none from before the first one, and each for one rollback.
            self._snapshots = min(self.max_rollback, rows - 1)
            return True
        if status == 1:
            self._log.forget()
            return False
        self._snapshots = 0
        kind = BatchRefused if status == REFUSED else LacliError
        raise kind(f"llama_decode failed ({status}): {self._log.last_error()}", "see more with -v")

    def greedy(self) -> Ints:
        if (selected := self._candidates(1)) is not None:
            best, found = selected.tokens[:, 0], selected.logits[:, 0].tolist()
        else:
            logits = self.logits()
            best = self._chosen(logits)
            found = map(logits.item, range(len(best)), best.tolist())
        # The argmax of a row with a NaN is that NaN, so no other logit needs a look.
        if not all(map(isfinite, found)):
            raise LacliError(
                "the model's logits are NaN or infinite",
                "its file may be damaged: fetch it again; `lacli doctor` tries this build of llama.cpp",
            )
        return best

    def logits(self) -> npt.NDArray[np.float32]:
        """The last batch's logits, (outputs, vocabulary) float32, valid until the next decode; not with candidates."""
        assert self._batch is not None, "nothing is decoded yet"
        return self._logits.at(self._api.llama_get_logits(self._handle))[: self._batch.wanted]

    def row_logits(self, row: int) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self.logits()[row]
        return logits

    def successors(self, count: int) -> Successors:
        selected = self._candidates(count)
        return ranked(self.logits(), count) if selected is None else selected

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        raise NotImplementedError

    def remove(self, sequence: int, start: int, end: int) -> bool:
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError

    def is_end(self, token: int) -> bool:
        return self._model.is_end(token)

    def interrupt(self) -> None:
        """Let a prompt chunk raise KeyboardInterrupt at its next operation on the CPU; called by any thread."""
        self._interrupted = True

    def _candidates(self, count: int) -> Successors | None:
        """Return the best tokens of each output row if the device has selected some, else None."""
        return None

    def _chosen(self, logits: npt.NDArray[np.float32]) -> Ints:
        """Return the most probable token of each output row."""
        best: Ints = logits.argmax(axis=1)
        return best

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let Ctrl-C or `interrupt` end a prompt chunk, whose rows the caller removes from the cache."""
        self._interrupted = False
        callback = self._api.ggml_abort_callback(lambda _: self._muted_end())
        with ctrl_c_calls(self.interrupt):
            self._api.llama_set_abort_callback(self._handle, callback, None)
            try:
                yield
            finally:
                self._api.llama_set_abort_callback(self._handle, self._api.ggml_abort_callback(), None)
                self._log.muted = False
        if self._interrupted:
            raise KeyboardInterrupt

    def _decoded(self, *, prefills: bool) -> int:
        """Decode the batch and return llama.cpp's status. `prefills`: it is a prompt chunk, which Ctrl-C aborts."""
        if (in_use := self._in_use) and in_use.count != self._threads_set:
            self._threads_set = in_use.count
            self._api.llama_set_n_threads(self._handle, in_use.count, in_use.count)
        begin, core_begin = perf_counter(), process_time()
        with self._interruptible() if prefills else nullcontext():
            status = int(self._api.llama_decode(self._handle, self._struct))
        if in_use:
            end = perf_counter()
            in_use.note(end - begin, process_time() - core_begin, end)
        return status

    def _muted_end(self) -> bool:
        """Return whether to end a prompt chunk; mute the lines in which llama.cpp's log calls this a failure."""
        if self._interrupted:
            self._log.muted = True
        return self._interrupted


def _struct_over(api: Any, batch: Batch) -> Any:
    """Return a llama_batch over the arrays of `batch`, valid while that lives."""
    pointer = ctypes.POINTER
    return api.llama_batch(
        token=batch.tokens.ctypes.data_as(pointer(api.llama_token)),
        pos=batch.positions.ctypes.data_as(pointer(api.llama_pos)),
        n_seq_id=batch.sequence_counts.ctypes.data_as(pointer(ctypes.c_int32)),
        seq_id=batch.sequence_pointers.ctypes.data_as(pointer(pointer(api.llama_seq_id))),
        logits=batch.outputs.ctypes.data_as(pointer(ctypes.c_int8)),
    )


def can_give_way(settings: ModelSettings) -> bool:
    """Return whether fewer threads may decode: the bits of the logits stay the same, and nothing but the CPU computes.

    Flash attention over plain cells adds up in another order with each number of threads, over Q8_0 cells it does not.
    A GPU or BLAS computes large batches with -ngl 0 too, and then the threads only seem to wait for a core.
    """
    has_plain_cells = not {settings.cache_type_k, settings.cache_type_v}.isdisjoint(PLAIN_CACHE_TYPES)
    is_split = settings.attention(on_gpu=False) != "off" and has_plain_cells
    is_cpu_alone = all(device.name == CPU for device in devices(memory=False))
    return settings.gives_way and settings.threads > 1 and is_cpu_alone and not is_split


def padded(cells: int) -> int:
    """Return the cells that a context of this size gets."""
    return -(-cells // CONTEXT_PAD) * CONTEXT_PAD


def cache_type(name: str) -> int:
    """ggml's number of a type of keys or values; llama_cpp lacks GGML_TYPE_BF16."""
    number: int = 30 if name == "bf16" else getattr(lib, f"GGML_TYPE_{name.upper()}")
    return number

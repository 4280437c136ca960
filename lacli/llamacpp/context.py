"""One llama_context as a `lacli.context.Context`, and what contexts of llama.cpp and of ik_llama.cpp share."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import isfinite
from time import perf_counter, process_time
from typing import Any

import numpy as np
import numpy.typing as npt

from lacli.batch import Batch, Ints
from lacli.context import Closing
from lacli.errors import BatchRefused, LacliError, ModelLoadError, NumbersError
from lacli.interrupts import ctrl_c_calls, late_ctrl_c
from lacli.llamacpp.devices import devices
from lacli.llamacpp.library import Log, free_with, lib, start
from lacli.llamacpp.machine import ThreadsInUse, bounded_by_free_memory
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import CPU, PLAIN_CACHE_TYPES, ContextSize, ModelSettings
from lacli.settings import DecodeSettings

CONTEXT_PAD = 256
"""llama.cpp rounds the cells of a context up to a multiple of this."""

PREFILL_ROWS = 512
"""Rows of a prefill call: llama.cpp computes no more at once anyway (n_ubatch)."""

PREFILL_ROWS_ON_CPU = 128
"""Rows of a prefill call on a CPU, for models without experts: as fast as 512, and Ctrl-C acts sooner."""

CHUNK_ROWS = 64
"""A step with at least this many rows without logits is a prompt chunk, which can be interrupted."""

BF16 = 30
"""ggml's GGML_TYPE_BF16, which llama_cpp lacks."""

MAX_ROLLBACK = 8
"""A recurrent state is rolled back by at most this many tokens: each costs a copy of the state."""

MIXED_ROWS_ON_CPU = 63
"""Rows of a shared step on a CPU: from 64 on llama.cpp's attention takes tiles, which read the cells of all rows."""


class DecodingContext(Closing):
    """A Context that decodes with one llama_context. A subclass fills in the parameters and calls `_open` with them.

    `max_rollback`: most drafted tokens that can be removed after a step. -1: any number, and drafts can be trees.
    """

    max_rollback = -1
    can_share = True

    def __init__(self, api: Any, log: Log, model: LlamaModel, settings: ModelSettings, size: ContextSize) -> None:
        """`api`: the library's functions and structures by their names in C. `log`: the library's log."""
        self._api, self._log, self._model = api, log, model
        self._handle: Any = None
        self._memory: Any = None
        self.ids, self.vocabulary, self.trained_tokens = size.ids, model.vocabulary, model.trained_tokens
        self.passes_all_cells = not model.offloaded
        self.calls = self._snapshots = 0
        self._interrupted = self._is_spoilt = False
        self.max_outputs = max(size.ids, size.max_outputs)
        self._in_use = ThreadsInUse(settings.threads) if can_give_way(settings) else None
        self._threads_set = settings.threads
        self._batch: Batch | None = None
        self._views: dict[int, npt.NDArray[np.float32]] = {}

    def _parameters(self, settings: ModelSettings, size: ContextSize) -> Any:
        """Return llama_context_params with the fields filled in that both libraries share."""
        parameters = self._api.llama_context_default_params()
        # llama.cpp cuts -b to the requested cells, so request the rounded-up number.
        parameters.n_ctx = padded(settings.context or size.slots * self._model.default_limit)
        self._fewest_cells = parameters.n_ctx if settings.context else padded(self._model.default_limit)
        parameters.n_batch = min(settings.batch, parameters.n_ctx)
        parameters.n_seq_max = size.ids
        parameters.n_threads = settings.threads
        parameters.n_threads_batch = settings.threads_batch or settings.threads
        for name in ("k", "v"):
            kind: str = getattr(settings, f"cache_type_{name}")
            setattr(parameters, f"type_{name}", BF16 if kind == "bf16" else getattr(lib, f"GGML_TYPE_{kind.upper()}"))
        return parameters

    def _open(self, weights: Any, parameters: Any, samplers: Sequence[Any] = ()) -> None:
        """Open a context of `weights` (llama_model), or raise ModelLoadError. `samplers`: freed with the context."""
        while True:
            self._log.forget()
            # A GPU's driver reserves more addresses than memory. Ctrl-C in the log's callback would be lost.
            with late_ctrl_c() as is_stopped, nullcontext() if self._model.offloaded else bounded_by_free_memory():
                self._handle = self._api.llama_init_from_model(weights, parameters)
                if is_stopped():
                    _free_context(self._api, self._handle, samplers, self._model)
            if self._handle or parameters.n_ctx <= self._fewest_cells:
                break
            # With fewer cells, some sequences start only after others end.
            parameters.n_ctx = max(parameters.n_ctx // 2, self._fewest_cells)
        # The model is an argument, so that it outlives the context when both are dropped at once.
        self._free = free_with(self, _free_context, self._api, self._handle, samplers, self._model)
        if not self._handle:
            self.close()
            hint = "a smaller one may fit: -c 4096, or -ctk q8_0; see more with -v"
            what = f"cannot open a context of {parameters.n_ctx:,} tokens"
            raise ModelLoadError(f"{what}: {self._log.last_error()}", hint)
        self._memory = self._api.llama_get_memory(self._handle)
        self.cells = int(self._api.llama_n_ctx(self._handle))
        self.batch_rows = self.mixed_rows = int(self._api.llama_n_batch(self._handle))
        few = not self._model.offloaded and not self._model.has_experts
        self.prefill_rows = PREFILL_ROWS_ON_CPU if few else PREFILL_ROWS

    def suits(self, decode: DecodeSettings, *, raw_logits: bool) -> bool:
        """Return whether this context is open and can use `decode`. `raw_logits`: whether `row_logits` must work."""
        return bool(self._handle) and decode.ids <= self.ids and decode.max_outputs <= self.max_outputs

    def decode(self, batch: Batch) -> bool:
        rows = batch.rows
        assert 0 < rows <= self.batch_rows, f"{rows} rows in a batch of at most {self.batch_rows}"
        assert batch.wanted <= self.max_outputs, f"{batch.wanted} outputs in a context for {self.max_outputs}"
        if not self._handle:
            self._model.check_open()
            raise LacliError("the context was closed: a larger one does not fit", "choose another mode or smaller -W")
        if batch is not self._batch:
            self._batch, self._struct = batch, _struct_over(self._api, batch)
        self._struct.n_tokens = rows
        self.calls += 1
        status = self._decoded(prefills=not batch.wanted or rows - batch.wanted >= CHUNK_ROWS)
        if status == 0:
            # llama.cpp keeps the state after each row, but none before the first row. The states serve one rollback.
            self._snapshots = min(self.max_rollback, rows - 1)
            return True
        if status == 1:
            self._log.forget()
            return False
        self._snapshots = 0
        # -1: the batch was not begun.
        kind = BatchRefused if status == -1 else LacliError
        raise kind(f"llama_decode failed ({status}): {self._log.last_error()}", "see more with -v")

    def greedy(self) -> Ints:
        best, found = self._best()
        # The argmax of a row with a NaN is that NaN, so no other logit needs a look.
        if not all(map(isfinite, found)):
            hint = "its file may be damaged: fetch it again; `lacli doctor` tries this build of llama.cpp"
            self._is_spoilt = True
            raise NumbersError("the model's logits are NaN or infinite", hint)
        return best

    def logits(self) -> npt.NDArray[np.float32]:
        return self._rows_at(self._api.llama_get_logits(self._handle))

    def row_logits(self, row: int) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self.logits()[row]
        return logits

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._api.llama_memory_seq_cp(self._memory, source, target, start, end)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return bool(self._api.llama_memory_seq_rm(self._memory, sequence, start, end))

    def state(self, sequence: int) -> Any:
        """Return a copy of the cells of the sequence id `sequence`: a ctypes array of bytes, for `set_state`."""
        state = (ctypes.c_uint8 * self._api.llama_state_seq_get_size_ext(self._handle, sequence, 0))()
        self._api.llama_state_seq_get_data_ext(self._handle, state, len(state), sequence, 0)
        return state

    def set_state(self, sequence: int, state: Any) -> bool:
        """Write `state` as the cells of the id `sequence`, which has no cells. Returns False unless all are written."""
        self._snapshots = 0
        return bool(self._api.llama_state_seq_set_data_ext(self._handle, state, len(state), sequence, 0))

    def clear(self) -> None:
        # NaN in free cells would spoil later sequences. Clearing the values takes time, so it is done only then.
        self._api.llama_memory_clear(self._memory, self._is_spoilt)
        self._is_spoilt = False

    def close(self) -> None:
        # A generator that is closed later passes None as the memory, and llama.cpp does nothing.
        self._handle = self._memory = self._batch = None
        self._free()

    def is_end(self, token: int) -> bool:
        return self._model.is_end(token)

    def interrupt(self) -> None:
        """End a prompt chunk, if one runs, with KeyboardInterrupt at its next CPU operation. Any thread may call it."""
        self._interrupted = True

    def _best(self) -> tuple[Ints, Iterable[float]]:
        """Return the most probable token of each output row, (outputs,), and the logits of these tokens."""
        logits = self.logits()
        best: Ints = logits.argmax(axis=1)
        return best, map(logits.item, range(len(best)), best.tolist())

    def _rows_at(self, pointer: Any) -> npt.NDArray[np.float32]:
        """Return a view of `pointer`, (outputs, vocabulary), cached: making one takes as long as reading a row."""
        assert self._batch is not None, "nothing is decoded yet"
        address = ctypes.addressof(pointer.contents)
        if address not in self._views:
            memory = memoryview((ctypes.c_float * (self.max_outputs * self.vocabulary)).from_address(address))
            self._views[address] = np.asarray(memory).reshape(self.max_outputs, self.vocabulary)
        return self._views[address][: self._batch.wanted]

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Raise KeyboardInterrupt if Ctrl-C or `interrupt` stops the block's decode; its rows must then be removed."""
        self._interrupted = False
        callback = self._api.ggml_abort_callback(lambda _: self._interrupted)
        with ctrl_c_calls(self.interrupt):
            self._api.llama_set_abort_callback(self._handle, callback, None)
            try:
                yield
            finally:
                self._api.llama_set_abort_callback(self._handle, self._api.ggml_abort_callback(), None)
        if self._interrupted:
            raise KeyboardInterrupt

    def _decoded(self, *, prefills: bool) -> int:
        """Decode the batch and return llama_decode's status. `prefills`: as a prompt chunk, which Ctrl-C can stop."""
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


class LlamaContext(DecodingContext):
    """One llama_context as a Context; close it before its model, or use it in `with`.

    `backend_greedy`: let llama.cpp choose the greedy tokens. None: only on a GPU, to save the transfer of logits; on
    the CPU, numpy's argmax is faster (docs/internals/measured.md). Raises ModelLoadError if the context does not fit
    into memory, if its options contradict each other, and for an embedding model.
    """

    def __init__(
        self, model: LlamaModel, settings: ModelSettings, size: ContextSize, *, backend_greedy: bool | None = None
    ) -> None:
        super().__init__(lib, start(), model, settings, size)
        parameters = self._parameters(settings, size)
        self._samplers: list[Any] = []
        if model.chooses if backend_greedy is None else backend_greedy:
            self._add_samplers(parameters)
        self._open(model.handle, parameters, self._samplers)
        if not model.offloaded:
            self.mixed_rows = MIXED_ROWS_ON_CPU
        self.can_share = not model.chain_only
        self.max_rollback = int(lib.llama_n_rs_seq(self._handle)) if model.chain_only else -1
        if not self._memory or lib.llama_pooling_type(self._handle) != lib.LLAMA_POOLING_TYPE_NONE:
            self.close()
            raise ModelLoadError(f"{model.path.name} is an embedding model", "lacli decodes causal text models only")

    def suits(self, decode: DecodeSettings, *, raw_logits: bool) -> bool:
        fits = self.max_rollback < 0 or decode.constraints.max_rollback <= self.max_rollback
        return fits and not (raw_logits and self._samplers) and super().suits(decode, raw_logits=raw_logits)

    def logits(self) -> npt.NDArray[np.float32]:
        if not self._samplers:
            return super().logits()
        # If the device cannot run a sampler, the sampled logits are the unchanged ones; raw logits are never copied.
        there = lib.llama_get_sampled_logits_count_ith(self._handle, self._first)
        assert there == self.vocabulary, "only the best tokens were copied"
        return self._rows_at(lib.llama_get_sampled_logits_ith(self._handle, self._first))

    def remove(self, sequence: int, start: int, end: int) -> bool:
        if self.max_rollback >= 0 and start > 0:
            last = lib.llama_memory_seq_pos_max(self._memory, sequence)
            if start <= last and not 0 <= end <= last:
                # llama.cpp would also restore a snapshot of an earlier step.
                if last + 1 - start > self._snapshots:
                    return False
                self._snapshots = 0
        return super().remove(sequence, start, end)

    def _parameters(self, settings: ModelSettings, size: ContextSize) -> Any:
        parameters = super()._parameters(settings, size)
        parameters.n_rs_seq = max(size.max_rollback, 0)
        parameters.kv_unified = True
        parameters.swa_full = True
        parameters.n_outputs_max = self.max_outputs
        names = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
        attention = names[settings.attention(on_gpu=self._model.offloaded)]
        parameters.flash_attn_type = getattr(lib, f"LLAMA_FLASH_ATTN_TYPE_{attention}")
        if size.ordered:
            # Even without a layer, a GPU would compute large batches in its own way.
            parameters.op_offload = parameters.offload_kqv = False
        return parameters

    @property
    def _first(self) -> int:
        assert self._batch is not None, "nothing is decoded yet"
        return int(self._batch.outputs.argmax())

    def _best(self) -> tuple[Ints, Iterable[float]]:
        if not self._samplers or lib.llama_get_sampled_candidates_count_ith(self._handle, self._first) != 1:
            return super()._best()
        # The first row's address is enough: llama.cpp puts the rows one vocabulary apart.
        tokens = self._rows_at(lib.llama_get_sampled_candidates_ith(self._handle, self._first)).view(np.int32)
        logits = self._rows_at(lib.llama_get_sampled_logits_ith(self._handle, self._first))
        # The argmax of nothing but NaN is -1 on a GPU.
        return tokens[:, 0], np.where(tokens[:, 0] < 0, np.nan, logits[:, 0]).tolist()

    def _add_samplers(self, parameters: Any) -> None:
        """Add a sampler chain for each id to `parameters`: the GPU then returns a row's best token and its logit only.

        The only sampler of a chain has temperature 0. An empty chain or llama.cpp's greedy sampler copies all logits.
        """
        configs = (lib.llama_sampler_seq_config * self.ids)()
        for sequence, config in enumerate(configs):
            sampler_chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
            lib.llama_sampler_chain_add(sampler_chain, lib.llama_sampler_init_temp(0.0))
            self._samplers.append(sampler_chain)
            config.seq_id, config.sampler = sequence, ctypes.cast(sampler_chain, ctypes.c_void_p)
        self._sampler_configs = configs
        parameters.samplers, parameters.n_samplers = configs, self.ids
        parameters.n_outputs_max_per_seq = parameters.n_outputs_max


def max_rollback(model: LlamaModel, model_settings: ModelSettings) -> int:
    """Return how many drafted tokens can be removed after a step. 0: none. -1: any number, and drafts can be trees."""
    if not model.chain_only:
        return -1
    # llama.cpp needs the rows of a rollback and one more in one ubatch, and aborts otherwise.
    most = min(MAX_ROLLBACK, model_settings.batch - 2)
    if most <= 0:
        return 0
    # Only an open context tells whether llama.cpp supports rollbacks for this architecture.
    smallest = replace(model_settings, context=CONTEXT_PAD, batch=min(model_settings.batch, CONTEXT_PAD))
    with LlamaContext(
        model, smallest, ContextSize.of(DecodeSettings(mode="lookup").constrained(max_rollback=1)), backend_greedy=False
    ) as engine:
        return most if engine.max_rollback else 0


def can_give_way(settings: ModelSettings) -> bool:
    """Return whether decodes may use fewer threads while other programs are busy (`ThreadsInUse`).

    True only if `settings.gives_way` is set and there are several threads. False if flash attention reads unquantised
    cells: its sums then depend on the number of threads (with Q8_0 they do not). False if this build has a GPU or BLAS:
    these compute large batches even with -ngl 0, and CPU threads that idle meanwhile would look slowed down.
    """
    has_plain_cells = not {settings.cache_type_k, settings.cache_type_v}.isdisjoint(PLAIN_CACHE_TYPES)
    is_split = settings.attention(on_gpu=False) != "off" and has_plain_cells
    is_cpu_alone = all(device.name == CPU for device in devices(memory=False))
    return settings.gives_way and settings.threads > 1 and is_cpu_alone and not is_split


def padded(cells: int) -> int:
    return -(-cells // CONTEXT_PAD) * CONTEXT_PAD


def _free_context(api: Any, handle: Any, samplers: Sequence[Any], _: LlamaModel) -> None:
    if handle:
        api.llama_free(handle)
    for sampler in samplers:
        api.llama_sampler_free(sampler)


def _struct_over(api: Any, batch: Batch) -> Any:
    """Return a llama_batch that points to the arrays of `batch`; use it only as long as `batch` exists."""
    pointer = ctypes.POINTER
    return api.llama_batch(
        token=batch.tokens.ctypes.data_as(pointer(api.llama_token)),
        pos=batch.positions.ctypes.data_as(pointer(api.llama_pos)),
        n_seq_id=batch.sequence_counts.ctypes.data_as(pointer(ctypes.c_int32)),
        seq_id=batch.sequence_pointers.ctypes.data_as(pointer(pointer(api.llama_seq_id))),
        logits=batch.outputs.ctypes.data_as(pointer(ctypes.c_int8)),
    )

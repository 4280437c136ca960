"""One llama_context as the loop's engine: batches, logits, the cache's calls, and the memory it takes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import isfinite
from time import perf_counter, process_time
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lacli.batch import Batch, Ints
from lacli.engine import Engine, Successors
from lacli.errors import BatchRefused, LacliError, ModelLoadError
from lacli.llamacpp.devices import bounded_by_free_memory
from lacli.llamacpp.library import ctrl_c_calls, free_with, late_ctrl_c, lib, library
from lacli.llamacpp.logits import LogitsView, in_order, ranked
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.llamacpp.threads import ThreadsInUse
from lacli.settings import DecodeSettings
from lacli.text.files import Closing

CONTEXT_PAD = 256
"""Cells to whose multiple llama.cpp rounds a context up."""

MAX_ROLLBACK = 8
"""Guesses by which a recurrent state can be taken back, at most: each costs the memory of a copy of that state."""

PREFILL_ROWS = 512
"""Rows of a prefill call: llama.cpp computes no more at once anyway (n_ubatch)."""

PREFILL_ROWS_ON_CPU = 128
"""Rows of a prefill call where a CPU computes with all weights: as fast as 512, and heard and seen more often.

The time of a prompt in pieces of 512 rows over that in pieces of 128 (processor seconds, Q4_0): 1.05 with 0.5B, 1.02
with 3B, 1.09 with the bundled model, 0.99 with -fa on, 1.04 with --no-repack. A GPU needs more rows, and so does each
expert of a mixture.
"""

MIXED_ROWS_ON_CPU = 63
"""Rows of a step in which a CPU takes those of prompts and of other texts together without loss.

From 64 rows on llama.cpp's attention takes 64 at once, and all of them read each cell that one of them needs. A
prompt's 128 rows and a row of each of eight texts of 100, 400 and 1,200 tokens take 452, 720 and 1,454 ms together, and
409, 463 and 647 one after the other (docs/measured.md).
"""

REFUSED = -1
"""llama_decode's status for a batch that it does not begin."""

PIECE_ROWS = 64
"""Rows without logits from which a step that has others too can be interrupted: they are a piece of a prompt."""

CANDIDATES = 8
"""Tokens of a row that a GPU selects for mode auto and copies to the host in place of the whole vocabulary."""

FLASH_ATTENTION = {
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
}


class Context(Engine, Protocol):
    """An open context of llama.cpp, in this process or in another.

    `memory`: MiB of its buffers. `calls`: batches decoded so far. `max_rollback`: guesses that can be taken back
    after a step, -1 for any number and trees.
    """

    memory: float
    calls: int
    max_rollback: int

    def suits(self, decode: DecodeSettings, *, raw_logits: bool) -> bool:
        """True if `decode` fits into this context. `raw_logits`: it samples from all logits of a row."""

    def close(self) -> None:
        """Free the context."""


class LlamaEngine(Closing):
    """One llama_context as a Context; close it before its model, or use it in `with`.

    `backend_greedy`: choose greedy tokens where the logits are; None: only on a GPU, where it saves the logits' way to
    the host, while on the CPU one vectorised argmax is faster (docs/measured.md). Raises ModelLoadError when the
    context does not fit into memory or its options contradict each other.
    """

    def __init__(
        self,
        model: LlamaModel,
        settings: ModelSettings,
        decode: DecodeSettings | Capacity,
        *,
        backend_greedy: bool | None = None,
    ) -> None:
        self._model = model
        self._log = library()
        self._interrupted = False
        self.sequences = decode.sequences
        self.vocabulary = model.vocabulary
        self.calls = 0
        parameters = self._parameters(settings, decode)
        self._max_outputs = int(parameters.n_outputs_max)
        gives_way = settings.gives_way and settings.threads > 1 and not model.offloaded
        self._in_use = ThreadsInUse(settings.threads) if gives_way else None
        self._threads_set = settings.threads
        self._samplers: list[Any] = []
        self._selects_candidates = False
        if model.chooses if backend_greedy is None else backend_greedy:
            self._add_samplers(parameters, decode)
        least = parameters.n_ctx if settings.context else _padded(model.default_context)
        while True:
            self._log.forget()
            self._log.take_buffers()
            # A GPU's driver reserves addresses beyond the memory; it refuses a context without room itself.
            # Its log is told to a callback, in which Ctrl-C would be lost.
            with late_ctrl_c() as is_stopped, nullcontext() if model.offloaded else bounded_by_free_memory():
                self._handle = lib.llama_init_from_model(model.handle, parameters)
                if is_stopped():
                    _free_context(self._handle, self._samplers, model)
            if self._handle or parameters.n_ctx <= least:
                break
            # Texts that have less room together wait for each other.
            parameters.n_ctx = max(parameters.n_ctx // 2, least)
        # The model is an argument, so that it outlives the context when both are dropped at once.
        self._free = free_with(self, _free_context, self._handle, self._samplers, model)
        if not self._handle:
            self.close()
            reason = self._log.last_error()
            full = "alloc" in reason
            raise ModelLoadError(
                f"cannot make a context: {'not enough memory, ' if full else ''}{reason}",
                "a smaller one may fit: -c 4096, or -ctk q8_0" if full else "see more with -v",
            )
        self.memory = self._log.take_buffers()
        self.cells = int(lib.llama_n_ctx(self._handle))
        self.batch_rows = int(lib.llama_n_batch(self._handle))
        few = not model.offloaded and not model.has_experts
        self.trained_context = model.context
        self.prefill_rows = PREFILL_ROWS_ON_CPU if few else PREFILL_ROWS
        self.mixed_rows = self.batch_rows if model.offloaded else MIXED_ROWS_ON_CPU
        self.can_share = not model.chain_only
        self.passes_all_cells = not model.offloaded
        self.max_rollback = int(lib.llama_n_rs_seq(self._handle)) if model.chain_only else -1
        self._memory = lib.llama_get_memory(self._handle)
        if not self._memory or lib.llama_pooling_type(self._handle) != lib.LLAMA_POOLING_TYPE_NONE:
            self.close()
            raise ModelLoadError(f"{model.path.name} is an embedding model", "lacli decodes causal text models only")
        self._snapshots = 0
        self._batch: Batch | None = None
        self._logits = LogitsView(ctypes.c_float, self._max_outputs, self.vocabulary)
        self._selected_tokens = LogitsView(ctypes.c_int32, self._max_outputs, self.vocabulary)
        self._selected_logits = LogitsView(ctypes.c_float, self._max_outputs, self.vocabulary)

    def suits(self, decode: DecodeSettings, *, raw_logits: bool) -> bool:
        fits = bool(self._handle) and decode.sequences <= self.sequences and decode.max_outputs <= self._max_outputs
        fits = fits and (self.max_rollback < 0 or decode.max_rollback <= self.max_rollback)
        return fits and not (raw_logits and self._samplers)

    def decode(self, batch: Batch) -> bool:
        rows = batch.rows
        assert 0 < rows <= self.batch_rows, f"{rows} rows in a batch of at most {self.batch_rows}"
        assert batch.wanted <= self._max_outputs, f"{batch.wanted} outputs in a context for {self._max_outputs}"
        if not self._handle:
            self._model.check_open()
            raise LacliError("there is no context: memory was too short for it", "settings of fewer rows may fit")
        if batch is not self._batch:
            self._batch, self._struct = batch, _struct_over(batch)
        self._struct.n_tokens = rows
        self.calls += 1
        status = self._decoded(reads=not batch.wanted or rows - batch.wanted >= PIECE_ROWS)
        if status == 0:
            # A state is kept after each row, none from before the first one, and each for one way back.
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
        if not self._samplers:
            return self._logits.at(lib.llama_get_logits(self._handle))[: self._batch.wanted]
        # A sampler that chooses, or that the device cannot run, leaves the logits as they are; none are copied raw.
        first = int(self._batch.outputs.argmax())
        there = lib.llama_get_sampled_logits_count_ith(self._handle, first)
        assert there == self.vocabulary, "only candidates were copied"
        return self._selected_logits.at(lib.llama_get_sampled_logits_ith(self._handle, first))[: self._batch.wanted]

    def row_logits(self, row: int) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self.logits()[row]
        return logits

    def successors(self, count: int) -> Successors:
        selected = self._candidates(count)
        return ranked(self.logits(), count) if selected is None else selected

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        if self.max_rollback >= 0 and start > 0:
            last = lib.llama_memory_seq_pos_max(self._memory, sequence)
            if start <= last and not 0 <= end <= last:
                # llama.cpp would also take the snapshot of another step.
                if last + 1 - start > self._snapshots:
                    return False
                self._snapshots = 0
        return bool(lib.llama_memory_seq_rm(self._memory, sequence, start, end))

    def clear(self) -> None:
        lib.llama_memory_clear(self._memory, False)

    def is_end(self, token: int) -> bool:
        return self._model.is_end(token)

    def close(self) -> None:
        # A generator closed later finds no memory, which llama.cpp takes for an empty one.
        self._handle = self._memory = self._batch = None
        self._free()

    def interrupt(self) -> None:
        """Let a piece of the prefill raise KeyboardInterrupt at its next operation on the CPU; called by any thread."""
        self._interrupted = True

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let Ctrl-C or `interrupt` end a piece of the prefill, which may take seconds.

        The caller cuts the piece's rows from the cache.
        """
        self._interrupted = False
        callback = lib.ggml_abort_callback(lambda _: self._muted_end())
        with ctrl_c_calls(self.interrupt):
            lib.llama_set_abort_callback(self._handle, callback, None)
            try:
                yield
            finally:
                lib.llama_set_abort_callback(self._handle, lib.ggml_abort_callback(), None)
                self._log.muted = False
        if self._interrupted:
            raise KeyboardInterrupt

    def _decoded(self, *, reads: bool) -> int:
        """Decode the batch, and return llama.cpp's status. `reads`: it is a piece of a prompt, which Ctrl-C aborts."""
        in_use = self._in_use
        if not in_use:
            with self._interruptible() if reads else nullcontext():
                return int(lib.llama_decode(self._handle, self._struct))
        if in_use.count != self._threads_set:
            self._threads_set = in_use.count
            lib.llama_set_n_threads(self._handle, in_use.count, in_use.count)
        begin, core_begin = perf_counter(), process_time()
        with self._interruptible() if reads else nullcontext():
            status = int(lib.llama_decode(self._handle, self._struct))
        end = perf_counter()
        in_use.note(end - begin, process_time() - core_begin, end)
        return status

    def _muted_end(self) -> bool:
        """True to end a piece of a prompt; mutes the lines in which llama.cpp's log calls this a failure."""
        if self._interrupted:
            self._log.muted = True
        return self._interrupted

    def _parameters(self, settings: ModelSettings, decode: DecodeSettings | Capacity) -> Any:
        parameters = lib.llama_context_default_params()
        texts = decode.texts if isinstance(decode, Capacity) else 1
        # -b is cut to the context as it is asked for, so ask for what llama.cpp would round it up to.
        parameters.n_ctx = _padded(settings.context or texts * self._model.default_context)
        parameters.n_batch = min(settings.batch, parameters.n_ctx)
        parameters.n_seq_max = decode.sequences
        parameters.n_rs_seq = max(decode.max_rollback, 0)
        parameters.kv_unified = True
        parameters.swa_full = True
        parameters.n_outputs_max = max(decode.sequences, decode.max_outputs)
        parameters.n_threads = settings.threads
        parameters.n_threads_batch = settings.threads_batch or settings.threads
        parameters.flash_attn_type = FLASH_ATTENTION[settings.attention(on_gpu=self._model.offloaded)]
        if decode.ordered:
            # Also with no layer on a GPU one would compute large batches, in its own way.
            parameters.op_offload = parameters.offload_kqv = False
        parameters.type_k = _cache_type(settings.cache_type_k)
        parameters.type_v = _cache_type(settings.cache_type_v)
        return parameters

    def _candidates(self, count: int) -> Successors | None:
        """The best of the candidates that the GPU selected of each output row; None where it selects none."""
        if not self._selects_candidates:
            return None
        assert self._batch is not None, "nothing is decoded yet"
        first, wanted = int(self._batch.outputs.argmax()), self._batch.wanted
        there = lib.llama_get_sampled_candidates_count_ith(self._handle, first)
        if not 0 < there <= CANDIDATES:
            return None
        # One address is enough: llama.cpp lays the rows out a whole vocabulary apart.
        tokens = self._selected_tokens.at(lib.llama_get_sampled_candidates_ith(self._handle, first))[:wanted, :there]
        logits = self._selected_logits.at(lib.llama_get_sampled_logits_ith(self._handle, first))[:wanted, :there]
        found = in_order(Successors(tokens, logits))
        return Successors(found.tokens[:, :count], found.logits[:, :count])

    def _chosen(self, logits: npt.NDArray[np.float32]) -> Ints:
        """The most probable token of each output row: the backend's choice, or by the logits without one."""
        if self._samplers and not self._selects_candidates:
            assert self._batch is not None
            rows = np.flatnonzero(self._batch.outputs[: len(self._batch)]).tolist()
            tokens = np.fromiter((lib.llama_get_sampled_token_ith(self._handle, row) for row in rows), np.int32)
            if not np.any(tokens < 0):
                return tokens
        best: Ints = logits.argmax(axis=1)
        return best

    def _add_samplers(self, parameters: Any, decode: DecodeSettings | Capacity) -> None:
        """Give each sequence a sampler chain: an output row without one would bring all raw logits back.

        The best candidate is found on the host: llama.cpp's greedy sampler would give its index, not its token.
        """
        self._selects_candidates = decode.recycles
        configs = (lib.llama_sampler_seq_config * decode.sequences)()
        for sequence, config in enumerate(configs):
            sampler_chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
            chooser = lib.llama_sampler_init_top_k(CANDIDATES) if decode.recycles else lib.llama_sampler_init_greedy()
            lib.llama_sampler_chain_add(sampler_chain, chooser)
            self._samplers.append(sampler_chain)
            config.seq_id, config.sampler = sequence, ctypes.cast(sampler_chain, ctypes.c_void_p)
        self._sampler_configs = configs
        parameters.samplers, parameters.n_samplers = configs, decode.sequences
        parameters.n_outputs_max_per_seq = parameters.n_outputs_max


def _padded(cells: int) -> int:
    return -(-cells // CONTEXT_PAD) * CONTEXT_PAD


def _free_context(handle: Any, samplers: list[Any], _: LlamaModel) -> None:
    if handle:
        lib.llama_free(handle)
    for sampler in samplers:
        lib.llama_sampler_free(sampler)


def max_rollback(model: LlamaModel, model_settings: ModelSettings) -> int:
    """Guesses that the model can take back after a step: -1 for any number and trees, k for chains up to k."""
    if not model.chain_only:
        return -1
    # llama.cpp needs the rows of a way back and one more in one piece of a batch, and aborts otherwise.
    most = min(MAX_ROLLBACK, model_settings.batch - 2)
    if most <= 0:
        return 0
    # Only a context knows whether llama.cpp can do it with this architecture.
    smallest = replace(model_settings, context=CONTEXT_PAD, batch=min(model_settings.batch, CONTEXT_PAD))
    with LlamaEngine(model, smallest, DecodeSettings(mode="lookup", max_rollback=1), backend_greedy=False) as engine:
        return most if engine.max_rollback else 0


def _cache_type(name: str) -> int:
    """ggml's number of a type; llama_cpp lacks GGML_TYPE_BF16."""
    number: int = 30 if name == "bf16" else getattr(lib, f"GGML_TYPE_{name.upper()}")
    return number


def _struct_over(batch: Batch) -> Any:
    """A llama_batch over the arrays of `batch`, valid while that lives."""
    return lib.llama_batch(
        token=batch.tokens.ctypes.data_as(ctypes.POINTER(lib.llama_token)),
        pos=batch.positions.ctypes.data_as(ctypes.POINTER(lib.llama_pos)),
        n_seq_id=batch.sequence_counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
        seq_id=batch.sequence_pointers.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(lib.llama_seq_id))),
        logits=batch.outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
    )

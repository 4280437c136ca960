"""A model and a context of ik_llama.cpp: the second implementation of what the loop needs of an engine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lacli.batch import Batch, Ints
from lacli.engine import Successors
from lacli.errors import LacliError, ModelLoadError
from lacli.ik.library import library
from lacli.llamacpp.context import PIECE_ROWS, PREFILL_ROWS, PREFILL_ROWS_ON_CPU, _cache_type, _padded
from lacli.llamacpp.devices import CPU
from lacli.llamacpp.library import ctrl_c_calls, free_with, late_ctrl_c
from lacli.llamacpp.logits import LogitsView, ranked
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.files import Closing

OTHERWISE = "--engine llama decodes with llama.cpp"


class IkModel(LlamaModel):
    """The weights of one GGUF file in ik_llama.cpp, repacked as they are loaded; its vocabulary is llama.cpp's.

    Raises ModelLoadError for a file that one of the two cannot read.
    """

    def __init__(
        self,
        path: Path,
        settings: ModelSettings,
        *,
        verbose: bool = False,
        loading: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(path, settings, verbose=verbose, simulated=True)
        self.offloaded = False
        ik = library()
        ik.log.verbose = verbose
        ik.log.forget()
        ik.log.take_buffers()
        parameters = ik.llama_model_default_params()
        parameters.n_gpu_layers, parameters.fit = 0, False
        parameters.repack_tensors = settings.repack
        with late_ctrl_c() as is_stopped:

            def tell(share: float, _: object) -> bool:
                if loading:
                    loading(share)
                return not is_stopped()

            parameters.progress_callback = ik.llama_progress_callback(tell)
            self.weights = ik.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self.weights:
            self.close()
            reason = ik.log.last_error().removeprefix("error loading model: ")
            raise ModelLoadError(f"ik_llama.cpp cannot load {path.name}: {reason}", OTHERWISE)
        self._free_weights = free_with(self, ik.llama_free_model, self.weights)
        self.memory = ik.log.take_buffers()

    @property
    def devices(self) -> str:
        return f"{CPU} with ik_llama.cpp"

    def close(self) -> None:
        if self.weights:
            self._free_weights()
        super().close()


class IkEngine(Closing):
    """One context of ik_llama.cpp as a Context; close it before its model, or use it in `with`.

    Its cache is one for all sequences. Raises ModelLoadError when the context does not fit into memory.
    """

    can_share = passes_all_cells = True
    max_rollback = -1

    def __init__(self, model: IkModel, settings: ModelSettings, decode: DecodeSettings | Capacity) -> None:
        self._ik, self._model = library(), model
        self.sequences, self.vocabulary, self.trained_context = decode.sequences, model.vocabulary, model.context
        self.calls = 0
        self._interrupted = False
        self._max_outputs = max(decode.sequences, decode.max_outputs)
        self._ik.log.forget()
        self._ik.log.take_buffers()
        with late_ctrl_c():
            self._handle = self._ik.llama_init_from_model(model.weights, self._parameters(settings, decode))
        self._free = free_with(self, _free_context, self._ik, self._handle, model)
        if not self._handle:
            raise ModelLoadError(
                f"cannot make a context: {self._ik.log.last_error()}", "a smaller one may fit: -c 4096"
            )
        self.memory = self._ik.log.take_buffers()
        self.cells = int(self._ik.llama_n_ctx(self._handle))
        self.batch_rows = int(self._ik.llama_n_batch(self._handle))
        self.prefill_rows = PREFILL_ROWS if model.has_experts else PREFILL_ROWS_ON_CPU
        self.mixed_rows = self.batch_rows
        self._batch: Batch | None = None
        self._logits = LogitsView(ctypes.c_float, self._max_outputs, self.vocabulary)
        # Set while a piece of a prompt is read only: it is called after each operation, and takes microseconds.
        self._abort = self._ik.ggml_abort_callback(lambda _: self._interrupted)

    def _parameters(self, settings: ModelSettings, decode: DecodeSettings | Capacity) -> Any:
        parameters = self._ik.llama_context_default_params()
        texts = decode.texts if isinstance(decode, Capacity) else 1
        parameters.n_ctx = _padded(settings.context or texts * self._model.default_context)
        parameters.n_batch = min(settings.batch, parameters.n_ctx)
        # All rows of a batch at once: of several parts the first ones would stay where a later one finds no cells.
        parameters.n_ubatch = min(parameters.n_batch, PREFILL_ROWS)
        parameters.n_seq_max = decode.sequences
        parameters.n_threads = settings.threads
        parameters.n_threads_batch = settings.threads_batch or settings.threads
        # With several sequences the wheel's kernel of flash attention may end the process ("GGML_ASSERT(S > 0)").
        parameters.flash_attn = False
        parameters.type_k = _cache_type(settings.cache_type_k)
        parameters.type_v = _cache_type(settings.cache_type_v)
        return parameters

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
            self._batch, self._struct = batch, self._struct_over(batch)
        self._struct.n_tokens = rows
        self.calls += 1
        reads = not batch.wanted or rows - batch.wanted >= PIECE_ROWS
        status = self._read() if reads else self._ik.llama_decode(self._handle, self._struct)
        if status == 1:
            self._ik.log.forget()
            return False
        if status:
            raise LacliError(f"llama_decode failed ({status}): {self._ik.log.last_error()}", "see more with -v")
        return True

    def _read(self) -> int:
        """Decode a piece of a prompt, which Ctrl-C or `interrupt` ends; the caller cuts its rows from the cache."""
        self._interrupted = False
        self._ik.llama_set_abort_callback(self._handle, self._abort, None)
        try:
            with ctrl_c_calls(self.interrupt):
                status: int = self._ik.llama_decode(self._handle, self._struct)
        finally:
            self._ik.llama_set_abort_callback(self._handle, self._ik.ggml_abort_callback(), None)
        if self._interrupted:
            raise KeyboardInterrupt
        return status

    def greedy(self) -> Ints:
        logits = self.logits()
        best: Ints = logits.argmax(axis=1)
        # The argmax of a row with a NaN is that NaN, so no other logit needs a look.
        if not all(map(isfinite, map(logits.item, range(len(best)), best.tolist()))):
            raise LacliError("the model's logits are NaN or infinite", f"its file may be damaged; {OTHERWISE}")
        return best

    def logits(self) -> npt.NDArray[np.float32]:
        """The last batch's logits, (outputs, vocabulary) float32, valid until the next decode."""
        assert self._batch is not None, "nothing is decoded yet"
        return self._logits.at(self._ik.llama_get_logits(self._handle))[: self._batch.wanted]

    def row_logits(self, row: int) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self.logits()[row]
        return logits

    def successors(self, count: int) -> Successors:
        return ranked(self.logits(), count)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._ik.llama_kv_cache_seq_cp(self._handle, source, target, start, end)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return bool(self._ik.llama_kv_cache_seq_rm(self._handle, sequence, start, end))

    def clear(self) -> None:
        self._ik.llama_kv_cache_clear(self._handle)

    def is_end(self, token: int) -> bool:
        return self._model.is_end(token)

    def interrupt(self) -> None:
        """Let the batch that is decoded raise KeyboardInterrupt; called by any thread."""
        self._interrupted = True

    def close(self) -> None:
        self._handle = self._batch = None
        self._free()

    def _struct_over(self, batch: Batch) -> Any:
        """A llama_batch over the arrays of `batch`, valid while that lives."""
        ik, pointer = self._ik, ctypes.POINTER
        return ik.llama_batch(
            token=batch.tokens.ctypes.data_as(pointer(ik.llama_token)),
            pos=batch.positions.ctypes.data_as(pointer(ik.llama_pos)),
            n_seq_id=batch.sequence_counts.ctypes.data_as(pointer(ctypes.c_int32)),
            seq_id=batch.sequence_pointers.ctypes.data_as(pointer(pointer(ik.llama_seq_id))),
            logits=batch.outputs.ctypes.data_as(pointer(ctypes.c_int8)),
        )


def _free_context(ik: Any, handle: Any, _: IkModel) -> None:
    if handle:
        ik.llama_free(handle)

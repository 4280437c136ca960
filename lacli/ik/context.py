"""ik_llama.cpp: the library, its models, and its context as a `lacli.context.Context`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from lacli.batch import Batch, BatchRow, from_tokens
from lacli.errors import ModelLoadError
from lacli.ik.pin import Pin
from lacli.interrupts import late_ctrl_c
from lacli.llamacpp.context import PREFILL_ROWS, DecodingContext
from lacli.llamacpp.library import Log, free_with, progress_callback
from lacli.llamacpp.library import version as llama_version
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ContextSize, ModelSettings

OTHERWISE = "--engine llama decodes with llama.cpp"

STEP_COST, MOVE_COST = 6000, 4
"""Time of one more decode, and of copying one cell to another context and back. The unit is the time in which attention
reads one cell for one row (docs/internals/measured.md)."""

POINTER, SEQUENCE, POSITION, FLAGS = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_uint32

LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class CellView(ctypes.Structure):
    """llama_kv_cache_view: the positions of the cells, and a fixed number of sequence ids for each cell."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("n_cells", "n_seq_max", "token_count", "used_cells")),
        *((name, ctypes.c_int32) for name in ("max_contiguous", "max_contiguous_idx")),
        *((name, ctypes.POINTER(ctypes.c_int32)) for name in ("positions", "ids")),
    )


FUNCTIONS: tuple[tuple[str, list[Any], Any], ...] = (
    ("llama_get_logits", [POINTER], ctypes.POINTER(ctypes.c_float)),
    ("llama_kv_cache_defrag", [POINTER], None),
    ("llama_kv_cache_update", [POINTER], None),
    ("llama_kv_cache_view_free", [ctypes.POINTER(CellView)], None),
    ("llama_kv_cache_view_init", [POINTER, ctypes.c_int32], CellView),
    ("llama_kv_cache_view_update", [POINTER, ctypes.POINTER(CellView)], None),
    ("llama_kv_cache_seq_cp", [POINTER, SEQUENCE, SEQUENCE, POSITION, POSITION], None),
    ("llama_kv_cache_seq_rm", [POINTER, SEQUENCE, POSITION, POSITION], ctypes.c_bool),
    ("llama_state_seq_get_size", [POINTER, SEQUENCE, FLAGS], ctypes.c_size_t),
    ("llama_state_seq_get_data", [POINTER, POINTER, ctypes.c_size_t, SEQUENCE, FLAGS], ctypes.c_size_t),
    ("llama_state_seq_set_data", [POINTER, POINTER, ctypes.c_size_t, SEQUENCE, FLAGS], ctypes.c_size_t),
    ("llama_set_n_threads", [POINTER, ctypes.c_uint32, ctypes.c_uint32], None),
    ("llama_set_abort_callback", [POINTER, ctypes.CFUNCTYPE(ctypes.c_bool, POINTER), POINTER], None),
    ("llama_log_set", [LOG_CALLBACK, POINTER], None),
    ("llama_n_batch", [POINTER], ctypes.c_uint32),
    ("llama_n_ctx", [POINTER], ctypes.c_uint32),
)
"""The library's functions that the binding does not declare: name, types of the arguments, type of the result."""


def version() -> str:
    """Return the version of ik-llama-cpp-python without importing the package, "" if it is not installed."""
    try:
        return metadata.version("ik-llama-cpp-python")
    except metadata.PackageNotFoundError:
        return ""


def decoding_library(settings: ModelSettings) -> dict[str, str]:
    """Return the fields `engine` (the decoding library) and `engine_version`. `settings.engine` must not be auto."""
    name, number = ("ik_llama.cpp", version()) if settings.engine == "ik" else ("llama.cpp", llama_version())
    return {"engine": name, "engine_version": number}


class Library:
    """ik_llama.cpp. Its attributes: `log`; the functions, also by llama.cpp's newer names; the structures."""

    def __init__(self) -> None:
        import ik_llama_cpp._ctypes_api as binding  # type: ignore[import-untyped]

        self.log = Log()
        self._binding = binding
        for name, arguments, result in FUNCTIONS:
            function = getattr(binding._lib, name)
            function.argtypes, function.restype = arguments, result
            setattr(self, name, function)
            setattr(self, f"{name}_ext", function)
        # ik_llama.cpp's sequence calls take the context, and its clearing always keeps the cells' values.
        self.llama_get_memory = lambda handle: handle
        self.llama_memory_seq_cp, self.llama_memory_seq_rm = self.llama_kv_cache_seq_cp, self.llama_kv_cache_seq_rm
        self.llama_memory_clear = lambda handle, _: binding.llama_kv_cache_clear(handle)
        callback = LOG_CALLBACK(lambda level, text, _: self.log.receive(level, text))
        self.log.callbacks.append(callback)
        self.llama_log_set(callback, None)
        binding.llama_backend_init()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)


@cache
def load_library() -> Library:
    """Return ik_llama.cpp, started at the first call. Raises ImportError if it is not installed, OSError if broken."""
    return Library()


class IkModel(LlamaModel):
    """A GGUF file: weights in ik_llama.cpp, vocabulary in llama.cpp. Raises ModelLoadError if either cannot read it."""

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
        ik = load_library()
        ik.log.verbose = verbose
        ik.log.forget()
        parameters = ik.llama_model_default_params()
        parameters.n_gpu_layers, parameters.fit = 0, False
        parameters.repack_tensors = settings.repack
        # Without the vocabulary, the 1.5B starts 0.2 s sooner. llama.h: tag 3 is a text, an empty key the end.
        kind, size, _ = parameters.kv_overrides = (ik.llama_model_kv_override * 3)()
        kind.tag, kind.key, kind.value.val_str = 3, b"tokenizer.ggml.model", b"no_vocab"
        size.key, size.value.val_i64 = f"{self.architecture}.vocab_size".encode(), self.vocabulary
        with late_ctrl_c() as is_stopped:
            parameters.progress_callback = progress_callback(ik, loading, is_stopped)
            self.weights = ik.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self.weights:
            self.close()
            reason = ik.log.last_error().removeprefix("error loading model: ")
            raise ModelLoadError(f"ik_llama.cpp cannot load {path.name}: {reason}", OTHERWISE)
        self._free_weights = free_with(self, ik.llama_free_model, self.weights)

    def close(self) -> None:
        if self.weights:
            self._free_weights()
        super().close()


class IkContext(DecodingContext):
    """One context of ik_llama.cpp as a Context; close it before its model, or use it in `with`.

    All sequences share one cache, and each row's attention reads the cells of all of them. So a context of several
    slots has a second context, the reader: it decodes long prompt chunks, whose cells are then copied. Raises
    ModelLoadError if the context does not fit into memory.
    """

    def __init__(self, model: IkModel, settings: ModelSettings, size: ContextSize) -> None:
        ik = load_library()
        super().__init__(ik, ik.log, model, settings, size)
        parameters = self._parameters(settings, size)
        # One part a batch: if a later part found too few cells, the earlier parts would stay in the cache.
        parameters.n_ubatch = min(parameters.n_batch, PREFILL_ROWS)
        # With several sequences, the wheel's flash attention may end the process ("GGML_ASSERT(S > 0)").
        parameters.flash_attn = False
        # Every decode clears the logits of n_seq_max rows, 30 MB for 49. With 1, higher ids work too.
        parameters.n_seq_max = 1
        self._open(model.weights, parameters)
        self._pin = Pin(size.ids)
        self._view = ik.llama_kv_cache_view_init(self._handle, 1)
        self._update_view()
        self._positions, self._ids = (
            np.ctypeslib.as_array(each, (self.cells,)) for each in (self._view.positions, self._view.ids)
        )
        self._reader: IkContext | None = None
        if size.slots > 1:
            with suppress(ModelLoadError):
                alone = replace(settings, context=self.cells // size.slots)
                self._reader = IkContext(model, alone, ContextSize(ids=1, max_outputs=1, ordered=False))

    def decode(self, batch: Batch) -> bool:
        reader, others = self._reader, list[BatchRow]()
        if not reader or not self._is_faster_apart(batch.rows - batch.wanted, 0):
            return self._decode_here(batch)
        self._update_view()
        if self._view.used_cells + batch.rows > self.cells:
            return self._decode_here(batch)
        for _, group in groupby(batch.read(), lambda row: (row.output, row.ids)):
            rows = [*group]
            past = rows[0].position
            if not rows[0].output and past + len(rows) <= reader.cells and self._is_faster_apart(len(rows), past):
                self._read_apart(reader, rows)
            else:
                others += rows
        return not others or self._decode_here(Batch(len(others)).set_rows(*zip(*others, strict=True)))

    def _is_faster_apart(self, rows: int, past: int) -> bool:
        """Return whether the reader decodes `rows` tokens sooner than this context; `past` tokens come before them."""
        return rows * (int(self._view.used_cells) - past) > STEP_COST + MOVE_COST * past

    def _read_apart(self, reader: IkContext, rows: Sequence[BatchRow]) -> None:
        """Decode a prompt chunk in the reader, and copy its cells into this context, which has enough free cells."""
        past, ids, spare = rows[0].position, rows[0].ids, self._pin.id + 1
        reader.clear()
        has_past = not past or reader.set_state(0, self.state(ids[0]))
        is_read = has_past and reader.decode(from_tokens([row.token for row in rows], past))
        assert is_read, "the reader has cells for the chunk and the tokens before it"
        reader.remove(0, 0, past)
        state = reader.state(0)
        if not self.set_state(spare, state):
            self._move_together()
            moved = self.set_state(spare, state)
            assert moved, "enough cells are free"
        for each in ids:
            self.copy(spare, each, past, past + len(rows))
        self.remove(spare, 0, -1)
        self._place_pin()

    def _decode_here(self, batch: Batch) -> bool:
        is_decoded = super().decode(batch)
        if not is_decoded:
            # ik_llama.cpp uses free cells for a batch only if they are adjacent; one may be the pin's alone.
            self._move_together()
            is_decoded = super().decode(batch)
        self._place_pin()
        return is_decoded

    def interrupt(self) -> None:
        super().interrupt()
        if self._reader:
            self._reader.interrupt()

    def remove(self, sequence: int, start: int, end: int) -> bool:
        # For -1, ik_llama.cpp would remove the pin's id too.
        ids = range(self.ids) if sequence < 0 else (sequence,)
        return all([super(IkContext, self).remove(each, start, end) for each in ids])

    def clear(self) -> None:
        super().clear()
        self._pin.forget()

    def close(self) -> None:
        if self._handle:
            self._api.llama_kv_cache_view_free(self._view)
            if self._reader:
                self._reader.close()
        super().close()

    def _place_pin(self) -> None:
        self._update_view()
        self._pin.place(self._ids, self._positions, self.copy, self.remove)

    def _update_view(self) -> None:
        self._api.llama_kv_cache_view_update(self._handle, self._view)

    def _move_together(self) -> None:
        """Move all occupied cells to the beginning of the cache, so that attention reads them without a pin."""
        super().remove(self._pin.id, -1, -1)
        self._pin.forget()
        while True:
            self._update_view()
            used = int(self._view.used_cells)
            if used == self.cells or self._ids[used:].max() < 0:
                return
            # One call moves a limited number of runs of cells.
            self._api.llama_kv_cache_defrag(self._handle)
            self._api.llama_kv_cache_update(self._handle)

"""ik_llama.cpp beside llama.cpp: which of them decodes with a model, and the second `lacli.context.Context`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from lacli.errors import ModelLoadError, UsageError
from lacli.llamacpp.context import PREFILL_ROWS, DecodingContext, LlamaContext
from lacli.llamacpp.devices import processor
from lacli.llamacpp.gguf import architecture_and_types
from lacli.llamacpp.library import Log, free_with, late_ctrl_c, progress_callback
from lacli.llamacpp.library import version as llama_version
from lacli.llamacpp.model import LlamaModel, offloads
from lacli.llamacpp.settings import PLAIN_CACHE_TYPES, Capacity, ModelSettings
from lacli.settings import DecodeSettings

NEEDED = {"avx2", "fma", "f16c"}
"""Instruction sets of the wheels of ik-llama-cpp-python 0.1.5, without which they end the process."""

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Architectures that compute here what they do with llama.cpp, but for rounding (tests/ik)."""

TYPES = {"q4_K", "q5_0", "q6_K", "q8_0"}
"""Types of weights whose batches of 2 to 63 rows move logits by 0.4 at most (docs/measured.md); those of Q4_1 by 24."""

OTHERWISE = "--engine llama decodes with llama.cpp"

POINTER, SEQUENCE, POSITION = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32

LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)

FUNCTIONS: tuple[tuple[str, list[Any], Any], ...] = (
    ("llama_get_logits", [POINTER], ctypes.POINTER(ctypes.c_float)),
    ("llama_kv_cache_seq_cp", [POINTER, SEQUENCE, SEQUENCE, POSITION, POSITION], None),
    ("llama_kv_cache_seq_rm", [POINTER, SEQUENCE, POSITION, POSITION], ctypes.c_bool),
    ("llama_set_n_threads", [POINTER, ctypes.c_uint32, ctypes.c_uint32], None),
    ("llama_set_abort_callback", [POINTER, ctypes.CFUNCTYPE(ctypes.c_bool, POINTER), POINTER], None),
    ("llama_log_set", [LOG_CALLBACK, POINTER], None),
    ("llama_n_batch", [POINTER], ctypes.c_uint32),
    ("llama_n_ctx", [POINTER], ctypes.c_uint32),
)
"""The library's functions that the binding does not declare: name, types of the arguments, type of the result."""


def with_engine(path: Path, settings: ModelSettings, *, strict: bool = False, slots: int = 1) -> ModelSettings:
    """Return the settings with the engine decided: ik_llama.cpp's where it is installed and can do what is asked.

    `strict`: one row and many must have the same bits. `slots`: sequences that share a context. Raises UsageError where
    `ik` was asked for and cannot be.
    """
    if settings.engine == "llama":
        return settings
    hindrance = _hindrance(path, settings, strict=strict, slots=slots)
    if hindrance and settings.engine == "ik":
        raise UsageError(f"--engine ik {hindrance[0]}", hindrance[1])
    return replace(settings, engine="llama" if hindrance else "ik")


def machine_hindrance() -> tuple[str, str] | None:
    """Return why ik_llama.cpp cannot be used on this machine, and what to do; None if it can."""
    if not version():
        return "needs ik-llama-cpp-python, which is not installed", "pip install 'lacli[ik]'"
    if lacking := NEEDED - set(processor().flags):
        return f"needs a processor with {' and '.join(sorted(lacking))}", OTHERWISE
    return None


def _hindrance(path: Path, settings: ModelSettings, *, strict: bool, slots: int) -> tuple[str, str] | None:
    """Return why ik_llama.cpp cannot be used, and what to do; None if it can."""
    if hindrance := machine_hindrance():
        return hindrance
    if strict:
        return "computes several rows with other bits than one, which --strict rules out", OTHERWISE
    if slots > 1:
        # Its attention does not reach cells behind a free one at a multiple of 32 (`llama_kv_cache_cell_max`), which
        # several sequences leave: logits moved by 6 and 17 there.
        return "decodes one sequence at a time", "--parallel 1, or --engine llama"
    if settings.replicas > 1 or settings.rpc:
        return "decodes with one copy of a model, on this machine", OTHERWISE
    if offloads(settings):
        return "computes on the processor only", "-ngl 0, or --engine llama"
    if settings.flash_attention == "on" or settings.cache_type_v not in PLAIN_CACHE_TYPES:
        return "computes without flash attention, and so without quantised values in the cache", OTHERWISE
    architecture, types = architecture_and_types(path)
    if architecture not in ARCHITECTURES:
        return f"was not tried with the architecture {architecture}", OTHERWISE
    if untried := types - TYPES:
        return f"was not tried with weights of the type {min(untried)}, or fails with it", OTHERWISE
    return None


def open_model(
    path: Path,
    settings: ModelSettings,
    *,
    verbose: bool = False,
    loading: Callable[[float], None] | None = None,
) -> LlamaModel:
    """Load a model with the engine of `settings`, which `with_engine` has decided. Raises ModelLoadError."""
    kind = IkModel if settings.engine == "ik" else LlamaModel
    return kind(path, settings, verbose=verbose, loading=loading)


def open_context(
    model: LlamaModel,
    settings: ModelSettings,
    decode: DecodeSettings | Capacity,
    *,
    backend_greedy: bool | None = None,
) -> LlamaContext | IkContext:
    """Open a context with the engine that has loaded the model; `backend_greedy` is as LlamaContext takes it."""
    if isinstance(model, IkModel):
        return IkContext(model, settings, decode)
    return LlamaContext(model, settings, decode, backend_greedy=backend_greedy)


def version() -> str:
    """Return the version of ik-llama-cpp-python without importing it, "" if it is not installed."""
    try:
        return metadata.version("ik-llama-cpp-python")
    except metadata.PackageNotFoundError:
        return ""


def decoding_library(settings: ModelSettings) -> dict[str, str]:
    """Return the library that decodes and its Python package's version; `settings`: as `with_engine` returns them."""
    name, number = ("ik_llama.cpp", version()) if settings.engine == "ik" else ("llama.cpp", llama_version())
    return {"engine": name, "engine_version": number}


class Library:
    """The functions and structures of ik_llama.cpp, as attributes, and its `log`."""

    def __init__(self) -> None:
        import ik_llama_cpp._ctypes_api as binding  # type: ignore[import-untyped]

        self.log = Log()
        self._binding = binding
        for name, arguments, result in FUNCTIONS:
            function = getattr(binding._lib, name)
            function.argtypes, function.restype = arguments, result
            setattr(self, name, function)
        # Its sequence calls take the context, and clearing always keeps the cells' values.
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
def library() -> Library:
    """Start ik_llama.cpp once a process. Raises ImportError without the binding, OSError if it fails."""
    return Library()


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
        parameters = ik.llama_model_default_params()
        parameters.n_gpu_layers, parameters.fit = 0, False
        parameters.repack_tensors = settings.repack
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

    Its cache is one for all sequences. Raises ModelLoadError when the context does not fit into memory.
    """

    def __init__(self, model: IkModel, settings: ModelSettings, decode: DecodeSettings | Capacity) -> None:
        ik = library()
        super().__init__(ik, ik.log, model, settings, decode)
        parameters = self._parameters(settings, decode)
        # All rows of a batch at once: of several parts the first ones would stay where a later one finds no cells.
        parameters.n_ubatch = min(parameters.n_batch, PREFILL_ROWS)
        # With several sequences the wheel's kernel of flash attention may end the process ("GGML_ASSERT(S > 0)").
        parameters.flash_attn = False
        self._open(model.weights, parameters)

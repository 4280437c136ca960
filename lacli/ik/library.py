"""The library of ik_llama.cpp: the one file that imports its binding, declares what that lacks and takes its log."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import metadata
from typing import Any

from lacli.llamacpp.library import Log

DISTRIBUTION = "ik-llama-cpp-python"

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


def version() -> str:
    """Return the version of ik-llama-cpp-python without importing it, "" if it is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""


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

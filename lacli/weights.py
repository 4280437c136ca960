"""The number formats of a model's weight matrices, read from its file.

llama.cpp's own GGUF reader does the reading, through the library that `llama.py` imports.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Any

from lacli.errors import ModelLoadError
from lacli.llama import lib, library

PART = re.compile(r"-00001-of-(\d{5})\.gguf\Z")

VECTORS = ("norm", ".bias", "rope_", "position_embd", "token_types", "ssm_", "time_mix")
"""In the names of tensors that no batch is multiplied with as a matrix; they are F32 in every file."""


class Parameters(ctypes.Structure):
    """gguf_init_params: read no data, and make no ggml context."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


def weight_types(path: Path) -> frozenset[str]:
    """ggml's names of the types of all matrices of a model, q4_K for example.

    path: the file, or the first part of a split one. Raises ModelLoadError when it cannot be read.
    """
    return frozenset().union(*(_types(part) for part in _parts(path)))


def _parts(path: Path) -> list[Path]:
    found = PART.search(path.name)
    if not found:
        return [path]
    begin, count = path.name[: found.start()], found[1]
    return [path.with_name(f"{begin}-{part:05}-of-{count}.gguf") for part in range(1, int(count) + 1)]


def _types(path: Path) -> frozenset[str]:
    ggml = _ggml()
    library().forget()
    file = ggml.gguf_init_from_file(os.fsencode(path), Parameters(no_alloc=True))
    if not file:
        raise ModelLoadError(f"cannot read {path.name}: {library().last_error()}", "the file may be damaged")
    try:
        tensors = range(ggml.gguf_get_n_tensors(file))
        matrices = (index for index in tensors if not _is_vector(ggml.gguf_get_tensor_name(file, index).decode()))
        return frozenset(ggml.ggml_type_name(ggml.gguf_get_tensor_type(file, index)).decode() for index in matrices)
    finally:
        ggml.gguf_free(file)


def _is_vector(name: str) -> bool:
    return any(part in name for part in VECTORS)


def _ggml() -> Any:
    """The library's GGUF functions, which llama_cpp does not declare."""
    functions = lib.llama_cpp._lib
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64
    for name, takes, gives in (
        ("gguf_init_from_file", [text, Parameters], pointer),
        ("gguf_get_n_tensors", [pointer], number),
        ("gguf_get_tensor_name", [pointer, number], text),
        ("gguf_get_tensor_type", [pointer, number], ctypes.c_int),
        ("gguf_free", [pointer], None),
        ("ggml_type_name", [ctypes.c_int], text),
    ):
        function = getattr(functions, name)
        function.argtypes, function.restype = takes, gives
    return functions

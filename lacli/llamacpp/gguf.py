"""A GGUF file read without llama.cpp: its header, its tensors and their types."""

from __future__ import annotations

import ctypes
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lacli.errors import ModelLoadError

MOST_DIMENSIONS = 4
"""ggml's GGML_MAX_DIMS."""

SCALARS: dict[int, tuple[str, Any]] = {
    0: ("u8", ctypes.c_uint8),
    1: ("i8", ctypes.c_int8),
    2: ("u16", ctypes.c_uint16),
    3: ("i16", ctypes.c_int16),
    4: ("u32", ctypes.c_uint32),
    5: ("i32", ctypes.c_int32),
    7: ("bool", ctypes.c_bool),
    10: ("u64", ctypes.c_uint64),
    11: ("i64", ctypes.c_int64),
}
"""Of gguf.h's gguf_type: whole numbers, the name of each in its functions, and its C type."""

TEXT, ARRAY = 8, 9
"""gguf_type's string and array."""

SPLIT = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
"""The name of one part of a split model, as llama.cpp's gguf-split writes it."""

DAMAGED = "the file may be damaged: fetch it again"


class Parameters(ctypes.Structure):
    """gguf_init_params: read no data, and make no ggml context."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


class Tensor(NamedTuple):
    """One tensor: its name, ggml's name of its type (q4_K), how many numbers it has and their bytes."""

    name: str
    type: str
    elements: int
    size: int


@dataclass(frozen=True)
class Header:
    """What the file (all parts of it) says about its model; 0, an empty text and no numbers: it does not say.

    parameters: numbers in all tensors. file_type: as llama.cpp names general.file_type, Q4_K_M for example; where the
    file names none, the type of most parameters. weights: bytes of the tensors. size: bytes of the files. context:
    tokens. heads, kv_heads: one number, or one a layer. sliding_window: tokens. recurrent: the ssm.* keys.
    """

    architecture: str
    name: str
    size_label: str
    parameters: int
    file_type: str
    weights: int
    size: int
    context: int
    layers: int
    embedding: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    sliding_window: int
    experts: int
    experts_used: int
    vocabulary: int
    template: str
    recurrent: dict[str, int]


def all_parts(name: str) -> list[str]:
    """The file names of all parts of the split model that `name` is a part of; otherwise `name` alone."""
    match = SPLIT.fullmatch(name)
    parts = int(match["parts"]) if match else 0
    if match is None or not parts:
        return [name]
    return [f"{match['stem']}-{part:05d}-of-{parts:05d}.gguf" for part in range(1, parts + 1)]


def parts(path: Path) -> list[Path]:
    """All files of a model, given any part of a split one."""
    return [path.with_name(name) for name in all_parts(path.name)]


def read_header(path: Path) -> Header:
    """The header of a model, given any part of a split one. Raises ModelLoadError when it cannot be read."""
    tensors: list[Tensor] = []
    first, *others = parts(path)
    for part in others:
        with GgufFile(part) as file:
            tensors += file.tensors()
    with GgufFile(first) as file:
        return _header(file, [*file.tensors(), *tensors], sum(part.stat().st_size for part in (first, *others)))


def _header(file: GgufFile, tensors: list[Tensor], size: int) -> Header:
    architecture = file.text("general.architecture")
    embedding = file.number(f"{architecture}.embedding_length")
    heads = file.numbers(f"{architecture}.attention.head_count")
    head_length = embedding // max(heads) if any(heads) else 0
    recurrent = {name: file.number(f"{architecture}.ssm.{name}") for name in file.below(f"{architecture}.ssm.")}
    return Header(
        architecture=architecture,
        name=file.text("general.name"),
        size_label=file.text("general.size_label"),
        parameters=sum(tensor.elements for tensor in tensors),
        file_type=_file_type(file.number("general.file_type", -1), tensors),
        weights=sum(tensor.size for tensor in tensors),
        size=size,
        context=file.number(f"{architecture}.context_length"),
        layers=file.number(f"{architecture}.block_count"),
        embedding=embedding,
        heads=heads,
        kv_heads=file.numbers(f"{architecture}.attention.head_count_kv") or heads,
        key_length=file.number(f"{architecture}.attention.key_length", head_length),
        value_length=file.number(f"{architecture}.attention.value_length", head_length),
        sliding_window=file.number(f"{architecture}.attention.sliding_window"),
        experts=file.number(f"{architecture}.expert_count"),
        experts_used=file.number(f"{architecture}.expert_used_count"),
        vocabulary=file.length("tokenizer.ggml.tokens"),
        template=file.text("tokenizer.chat_template"),
        recurrent=recurrent,
    )


class GgufFile(AbstractContextManager["GgufFile"]):
    """One opened file: its keys and its tensors, not their values; close it, or use it in `with`.

    A key whose value is of another kind is like one that is not there. Raises ModelLoadError when llama.cpp cannot
    read the file, or when it ends before its tensors do.
    """

    def __init__(self, path: Path) -> None:
        from lacli.llamacpp.library import library

        self._ggml = _ggml()
        library().forget()
        if path.exists() and not path.is_file():
            # A pipe would be waited for.
            raise ModelLoadError(f"cannot read {path.name}: it is no ordinary file", DAMAGED)
        self._file = self._ggml.gguf_init_from_file(os.fsencode(path), Parameters(no_alloc=True))
        if not self._file:
            raise ModelLoadError(f"cannot read {path.name}: {library().last_error()}", DAMAGED)
        there, whole = path.stat().st_size, self._end()
        if there < whole:
            self.close()
            raise ModelLoadError(f"{path.name} has {there} of its {whole} bytes", DAMAGED)

    def text(self, key: str) -> str:
        """The text of a key."""
        index = self._find(key)
        if index < 0 or self._ggml.gguf_get_kv_type(self._file, index) != TEXT:
            return ""
        raw: bytes = self._ggml.gguf_get_val_str(self._file, index)
        return raw.decode("utf-8", "replace")

    def number(self, key: str, missing: int = 0) -> int:
        """The whole number of a key; the largest where there is one a layer."""
        return max(self.numbers(key), default=missing)

    def numbers(self, key: str) -> tuple[int, ...]:
        """The whole numbers of a key that has one of them, or many."""
        index = self._find(key)
        if index < 0:
            return ()
        kind = self._ggml.gguf_get_kv_type(self._file, index)
        if kind in SCALARS:
            return (int(getattr(self._ggml, f"gguf_get_val_{SCALARS[kind][0]}")(self._file, index)),)
        inner = self._ggml.gguf_get_arr_type(self._file, index) if kind == ARRAY else -1
        if inner not in SCALARS:
            return ()
        count = self._ggml.gguf_get_arr_n(self._file, index)
        address = self._ggml.gguf_get_arr_data(self._file, index)
        return tuple(map(int, (SCALARS[inner][1] * count).from_address(address))) if count else ()

    def length(self, key: str) -> int:
        """How many values the array of a key has."""
        index = self._find(key)
        is_array = index >= 0 and self._ggml.gguf_get_kv_type(self._file, index) == ARRAY
        return int(self._ggml.gguf_get_arr_n(self._file, index)) if is_array else 0

    def texts(self, key: str) -> list[bytes]:
        """The texts of a key that has many, as they stand in the file."""
        index, count = self._find(key), self.length(key)
        if not count or self._ggml.gguf_get_arr_type(self._file, index) != TEXT:
            return []
        text_at, file = self._ggml.gguf_get_arr_str, self._file
        return [text_at(file, index, place) for place in range(count)]

    def below(self, prefix: str) -> list[str]:
        """What follows this prefix in the keys that have it."""
        count = self._ggml.gguf_get_n_kv(self._file)
        keys = (self._ggml.gguf_get_key(self._file, index).decode("utf-8", "replace") for index in range(count))
        return [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]

    def tensors(self) -> Iterator[Tensor]:
        for index in range(self._ggml.gguf_get_n_tensors(self._file)):
            shape = self._ggml.gguf_get_tensor_ne(self._file, index)
            elements = 1
            for dimension in range(MOST_DIMENSIONS):
                elements *= shape[dimension]
            yield Tensor(
                self._ggml.gguf_get_tensor_name(self._file, index).decode("utf-8", "replace"),
                self._ggml.ggml_type_name(self._ggml.gguf_get_tensor_type(self._file, index)).decode(),
                elements,
                self._ggml.gguf_get_tensor_size(self._file, index),
            )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file:
            self._ggml.gguf_free(self._file)
            self._file = None

    def _end(self) -> int:
        """Bytes up to the end of the last tensor."""
        ggml, file = self._ggml, self._file
        tensors = range(ggml.gguf_get_n_tensors(file))
        ends = [ggml.gguf_get_tensor_offset(file, index) + ggml.gguf_get_tensor_size(file, index) for index in tensors]
        return int(ggml.gguf_get_data_offset(file)) + max(ends, default=0)

    def _find(self, key: str) -> int:
        return int(self._ggml.gguf_find_key(self._file, key.encode()))


def _file_type(number: int, tensors: list[Tensor]) -> str:
    """The name in llama.h's llama_ftype, or the type of most parameters."""
    from lacli.llamacpp.library import lib

    if name := _file_types().get(number & ~lib.LLAMA_FTYPE_GUESSED if number >= 0 else -1):
        return name
    count: Counter[str] = Counter()
    for tensor in tensors:
        count[tensor.type] += tensor.elements
    return max(count, key=lambda name: count[name]).upper() if count else ""


def _file_types() -> dict[int, str]:
    """llama_ftype's numbers and names, without what its names begin with."""
    from lacli.llamacpp.library import lib

    prefixes = ("LLAMA_FTYPE_MOSTLY_", "LLAMA_FTYPE_ALL_")
    return {
        value: name.removeprefix(prefix) for prefix in prefixes for name, value in vars(lib).items() if prefix in name
    }


def _ggml() -> ctypes.CDLL:
    """The library's GGUF functions, which llama_cpp does not declare."""
    from lacli.llamacpp.library import declared

    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64
    return declared(
        ("gguf_init_from_file", [text, Parameters], pointer),
        ("gguf_free", [pointer], None),
        ("gguf_find_key", [pointer, text], number),
        ("gguf_get_n_kv", [pointer], number),
        ("gguf_get_key", [pointer, number], text),
        ("gguf_get_kv_type", [pointer, number], ctypes.c_int),
        ("gguf_get_arr_type", [pointer, number], ctypes.c_int),
        ("gguf_get_arr_n", [pointer, number], ctypes.c_size_t),
        ("gguf_get_arr_data", [pointer, number], pointer),
        ("gguf_get_arr_str", [pointer, number, ctypes.c_size_t], text),
        ("gguf_get_val_str", [pointer, number], text),
        *((f"gguf_get_val_{kind}", [pointer, number], gives) for kind, gives in SCALARS.values()),
        ("gguf_get_data_offset", [pointer], ctypes.c_size_t),
        ("gguf_get_n_tensors", [pointer], number),
        ("gguf_get_tensor_name", [pointer, number], text),
        ("gguf_get_tensor_type", [pointer, number], ctypes.c_int),
        ("gguf_get_tensor_size", [pointer, number], ctypes.c_size_t),
        ("gguf_get_tensor_offset", [pointer, number], ctypes.c_size_t),
        ("gguf_get_tensor_ne", [pointer, number], ctypes.POINTER(number)),
        ("ggml_type_name", [ctypes.c_int], text),
    )


VECTORS = ("norm", ".bias", "rope_", "position_embd", "token_types", "ssm_", "time_mix")
"""In the names of tensors that no batch is multiplied with as a matrix; they are F32 in every file."""


def weight_types(path: Path) -> frozenset[str]:
    """ggml's names of the types of all matrices of a model, q4_K for example.

    path: the file, or any part of a split one. Raises ModelLoadError when it cannot be read.
    """
    return frozenset().union(*(_types(part) for part in parts(path)))


def _types(path: Path) -> frozenset[str]:
    with GgufFile(path) as file:
        return frozenset(tensor.type for tensor in file.tensors() if not _is_vector(tensor.name))


def _is_vector(name: str) -> bool:
    return any(part in name for part in VECTORS)

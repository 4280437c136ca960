"""GGUF files without their model: names of split parts, the header's facts, the tensors and their types."""

from __future__ import annotations

import ctypes
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from lacli.errors import ModelLoadError
from lacli.text.files import Closing

MOST_DIMENSIONS = 4
"""ggml's GGML_MAX_DIMS."""

WHOLE_NUMBERS: dict[int, Any] = {
    0: ctypes.c_uint8,
    1: ctypes.c_int8,
    2: ctypes.c_uint16,
    3: ctypes.c_int16,
    4: ctypes.c_uint32,
    5: ctypes.c_int32,
    7: ctypes.c_bool,
    10: ctypes.c_uint64,
    11: ctypes.c_int64,
}
"""C types of gguf.h's gguf_type, without its floats."""

TEXT, ARRAY = 8, 9
"""gguf_type's string and array."""

SPLIT = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
"""The name of one part of a split model, as llama.cpp's gguf-split writes it."""

FILE_TYPE = re.compile(r"LLAMA_FTYPE_(?:MOSTLY|ALL)_(.*)")
"""Names in llama.h's llama_ftype."""

VECTORS = ("norm", ".bias", "rope_", "position_embd", "token_types", "ssm_", "time_mix")
"""Parts of the names of tensors that no batch is multiplied with as a matrix; they are F32 in every file."""

DAMAGED = "the file may be damaged: fetch it again"


class Parameters(ctypes.Structure):
    """gguf_init_params: read no data, and make no ggml context."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


POINTER, NAME, NUMBER, SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_size_t

FUNCTIONS: tuple[tuple[str, list[Any], Any], ...] = (
    ("gguf_init_from_file", [NAME, Parameters], POINTER),
    ("gguf_free", [POINTER], None),
    ("gguf_find_key", [POINTER, NAME], NUMBER),
    ("gguf_get_n_kv", [POINTER], NUMBER),
    ("gguf_get_key", [POINTER, NUMBER], NAME),
    ("gguf_get_kv_type", [POINTER, NUMBER], ctypes.c_int),
    ("gguf_get_val_data", [POINTER, NUMBER], POINTER),
    ("gguf_get_val_str", [POINTER, NUMBER], NAME),
    ("gguf_get_arr_type", [POINTER, NUMBER], ctypes.c_int),
    ("gguf_get_arr_n", [POINTER, NUMBER], SIZE),
    ("gguf_get_arr_data", [POINTER, NUMBER], POINTER),
    ("gguf_get_data_offset", [POINTER], SIZE),
    ("gguf_get_n_tensors", [POINTER], NUMBER),
    ("gguf_get_tensor_name", [POINTER, NUMBER], NAME),
    ("gguf_get_tensor_type", [POINTER, NUMBER], ctypes.c_int),
    ("gguf_get_tensor_size", [POINTER, NUMBER], SIZE),
    ("gguf_get_tensor_offset", [POINTER, NUMBER], SIZE),
    ("gguf_get_tensor_ne", [POINTER, NUMBER], ctypes.POINTER(NUMBER)),
    ("ggml_type_name", [ctypes.c_int], NAME),
)
"""ggml's parser of these files, which llama_cpp does not declare, for `library.declared`."""


class Tensor(NamedTuple):
    """One tensor: its name, ggml's name of its type (q4_K), its number of elements and their bytes."""

    name: str
    type: str
    elements: int
    size: int


@dataclass(frozen=True)
class Header:
    """A model's facts from all parts of its file; 0, "" or () where the file does not say.

    `parameters`: elements of all tensors. `file_type`: Q4_K_M for example; without one, the type of most parameters.
    `weights`: bytes of the tensors. `size`: bytes of the files. `context`, `sliding_window`: tokens. `heads`,
    `kv_heads`: one number, or one a layer. `recurrent`: the ssm.* keys.
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
    """File names of all parts of the split model that `name` belongs to; otherwise `name` alone."""
    match = SPLIT.fullmatch(name)
    if match is None or not (count := int(match["parts"])):
        return [name]
    return [f"{match['stem']}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]


def parts(path: Path) -> list[Path]:
    """All files of a model, given any part of a split one."""
    return [path.with_name(name) for name in all_parts(path.name)]


def weight_types(path: Path) -> frozenset[str]:
    """ggml's names of the types of a model's matrices (q4_K), given any part of a split one. Raises ModelLoadError."""
    return architecture_and_types(path)[1]


def architecture_and_types(path: Path) -> tuple[str, frozenset[str]]:
    """The model's architecture and its `weight_types`, by opening each file once: 45 ms where it has 150,000 tokens."""
    architecture, types = "", set[str]()
    for part in parts(path):
        with GgufFile(part) as file:
            architecture = architecture or file.text("general.architecture")
            types |= {each.type for each in file.tensors() if not any(vector in each.name for vector in VECTORS)}
    return architecture, frozenset(types)


def read_header(path: Path) -> Header:
    """The header of a model, given any part of a split one. Raises ModelLoadError when it cannot be read."""
    first, *others = parts(path)
    rest: list[Tensor] = []
    for part in others:
        with GgufFile(part) as file:
            rest += file.tensors()
    with GgufFile(first) as file:
        return _header(file, [*file.tensors(), *rest], sum(part.stat().st_size for part in (first, *others)))


def _header(file: GgufFile, tensors: list[Tensor], size: int) -> Header:
    architecture = file.text("general.architecture")
    embedding = file.number(f"{architecture}.embedding_length")
    heads = file.numbers(f"{architecture}.attention.head_count")
    head_length = embedding // max(heads) if any(heads) else 0
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
        recurrent={name: file.number(f"{architecture}.ssm.{name}") for name in file.below(f"{architecture}.ssm.")},
    )


def _file_type(number: int, tensors: list[Tensor]) -> str:
    """The name of `number` in llama_ftype, or the type of most parameters."""
    from lacli.llamacpp.library import lib

    for name, value in vars(lib).items():
        if (found := FILE_TYPE.fullmatch(name)) and number >= 0 and value == number & ~lib.LLAMA_FTYPE_GUESSED:
            return found[1]
    count: Counter[str] = Counter()
    for tensor in tensors:
        count[tensor.type] += tensor.elements
    return max(count, key=lambda name: count[name]).upper() if count else ""


class GgufFile(Closing):
    """The keys and the tensors, not their values, of one opened file; close it, or use it in `with`.

    A key with a value of another kind counts as absent. Raises ModelLoadError when ggml cannot read the file, or when
    it ends before its tensors do.
    """

    def __init__(self, path: Path) -> None:
        from lacli.llamacpp.library import declared, library

        self._ggml = declared(*FUNCTIONS)
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
            raise ModelLoadError(f"{path.name} has {there:,} of its {whole:,} bytes", DAMAGED)

    def text(self, key: str) -> str:
        """The text of a key, "" without one."""
        index, kind = self._find(key)
        raw: bytes = self._ggml.gguf_get_val_str(self._file, index) if kind == TEXT else b""
        return raw.decode("utf-8", "replace")

    def number(self, key: str, missing: int = 0) -> int:
        """The whole number of a key, or the largest of its array; `missing` without one."""
        return max(self.numbers(key), default=missing)

    def numbers(self, key: str) -> tuple[int, ...]:
        """The whole numbers of a key: one, or those of an array."""
        index, kind = self._find(key)
        is_array = kind == ARRAY
        if is_array:
            kind = self._ggml.gguf_get_arr_type(self._file, index)
        count = self.length(key) if is_array else 1
        if kind not in WHOLE_NUMBERS or not count:
            return ()
        read = self._ggml.gguf_get_arr_data if is_array else self._ggml.gguf_get_val_data
        return tuple(map(int, (WHOLE_NUMBERS[kind] * count).from_address(read(self._file, index))))

    def length(self, key: str) -> int:
        """Values in the array of a key."""
        index, kind = self._find(key)
        return int(self._ggml.gguf_get_arr_n(self._file, index)) if kind == ARRAY else 0

    def below(self, prefix: str) -> list[str]:
        """The rest of each key that begins with `prefix`."""
        count = self._ggml.gguf_get_n_kv(self._file)
        keys = (self._ggml.gguf_get_key(self._file, index).decode("utf-8", "replace") for index in range(count))
        return [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]

    def tensors(self) -> Iterator[Tensor]:
        ggml, file = self._ggml, self._file
        for index in range(ggml.gguf_get_n_tensors(file)):
            yield Tensor(
                ggml.gguf_get_tensor_name(file, index).decode("utf-8", "replace"),
                ggml.ggml_type_name(ggml.gguf_get_tensor_type(file, index)).decode(),
                prod(ggml.gguf_get_tensor_ne(file, index)[:MOST_DIMENSIONS]),
                ggml.gguf_get_tensor_size(file, index),
            )

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

    def _find(self, key: str) -> tuple[int, int]:
        """The index of a key and the gguf_type of its value; -1 for both without one."""
        index = int(self._ggml.gguf_find_key(self._file, key.encode()))
        return index, self._ggml.gguf_get_kv_type(self._file, index) if index >= 0 else -1

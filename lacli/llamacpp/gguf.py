"""GGUF files without their model: names of split parts, the header's facts, the tensors and their types."""

from __future__ import annotations

import ctypes
import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

from lacli.errors import ModelLoadError, reason_of

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Formats of gguf.h's gguf_type, by number."""

TEXT, ARRAY = 8, 9
"""gguf_type's string and array."""

MOST_KEPT = 1024
"""Numbers of an array that are kept, one a layer; of longer arrays and of texts only the length is."""

MAGIC, LENGTH, MOST_TENSORS = b"GGUF", struct.Struct("<Q"), 1 << 20

TYPES: tuple[tuple[str, list[Any], Any], ...] = (
    ("ggml_type_name", [ctypes.c_int], ctypes.c_char_p),
    ("ggml_blck_size", [ctypes.c_int], ctypes.c_int64),
    ("ggml_type_size", [ctypes.c_int], ctypes.c_size_t),
)
"""The library's functions about types of tensors, for `library.declared`."""

BROKEN = (struct.error, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)
"""What reading a damaged header can raise."""

SPLIT = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
"""The name of one part of a split model, as llama.cpp's gguf-split writes it."""

FILE_TYPE = re.compile(r"LLAMA_FTYPE_(?:MOSTLY|ALL)_(.*)")
"""Names in llama.h's llama_ftype."""

VECTORS = ("norm", ".bias", "rope_", "position_embd", "token_types", "ssm_", "time_mix")
"""Parts of the names of tensors that no batch is multiplied with as a matrix; they are F32 in every file."""

DAMAGED = "the file may be damaged: fetch it again"


class Tensor(NamedTuple):
    """One tensor: its name, ggml's name of its type (q4_K), its number of elements, their bytes, and where they end."""

    name: str
    type: str
    elements: int
    size: int
    end: int


@dataclass(frozen=True)
class Header:
    """A model's facts from all parts of its file; 0, "" or () where the file does not say.

    `parameters`: elements of all tensors. `file_type`: Q4_K_M for example; without one, the type of most parameters.
    `weights`: bytes of the tensors. `size`: bytes of the files. `context`: tokens. `heads`, `kv_heads`: one number, or
    one a layer. `cell_values`: numbers in one cell of the KV cache, of all layers.
    """

    architecture: str
    name: str
    parameters: int
    file_type: str
    weights: int
    size: int
    context: int
    layers: int
    embedding: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    cell_values: int
    experts: int
    experts_used: int
    vocabulary: int
    template: str


def all_parts(name: str) -> list[str]:
    """Return the file names of all parts of the split model that `name` belongs to; otherwise `name` alone."""
    match = SPLIT.fullmatch(name)
    if match is None or not (count := int(match["parts"])):
        return [name]
    return [f"{match['stem']}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]


def parts(path: Path) -> list[Path]:
    """Return all files of a model, given any part of a split one."""
    return [path.with_name(name) for name in all_parts(path.name)]


def weight_types(path: Path) -> frozenset[str]:
    """Return ggml's names of the types of a model's matrices (q4_K). Raises ModelLoadError."""
    return architecture_and_types(path)[1]


def architecture_and_types(path: Path) -> tuple[str, frozenset[str]]:
    """Return the architecture and the `weight_types` of a model, given any part of a split one."""
    files = [read_file(part) for part in parts(path)]
    types = {each.type for file in files for each in file.tensors if not any(vector in each.name for vector in VECTORS)}
    return files[0].text("general.architecture"), frozenset(types)


def read_header(path: Path) -> Header:
    """Read the header of a model, given any part of a split one. Raises ModelLoadError when it cannot be read."""
    files = [read_file(part) for part in parts(path)]
    first, tensors = files[0], [tensor for file in files for tensor in file.tensors]
    architecture = first.text("general.architecture")
    layers, embedding = first.number(f"{architecture}.block_count"), first.number(f"{architecture}.embedding_length")
    heads = first.numbers(f"{architecture}.attention.head_count")
    kv_heads = first.numbers(f"{architecture}.attention.head_count_kv") or heads
    width = embedding // max(heads) if any(heads) else 0
    widths = (first.number(f"{architecture}.attention.{name}_length", width) for name in ("key", "value"))
    return Header(
        architecture=architecture,
        name=first.text("general.name"),
        parameters=sum(tensor.elements for tensor in tensors),
        file_type=_file_type(first.number("general.file_type", -1), tensors),
        weights=sum(tensor.size for tensor in tensors),
        size=sum(part.stat().st_size for part in parts(path)),
        context=first.number(f"{architecture}.context_length"),
        layers=layers,
        embedding=embedding,
        heads=heads,
        kv_heads=kv_heads,
        cell_values=sum(kv_heads) * (1 if kv_heads[1:] else layers) * sum(widths),
        experts=first.number(f"{architecture}.expert_count"),
        experts_used=first.number(f"{architecture}.expert_used_count"),
        vocabulary=first.lengths.get("tokenizer.ggml.tokens", 0),
        template=first.text("tokenizer.chat_template"),
    )


def _file_type(number: int, tensors: list[Tensor]) -> str:
    """Return the name of `number` in llama_ftype, or the type of most parameters."""
    from lacli.llamacpp.library import lib

    for name, value in vars(lib).items():
        if (found := FILE_TYPE.fullmatch(name)) and number >= 0 and value == number & ~lib.LLAMA_FTYPE_GUESSED:
            return found[1]
    count: Counter[str] = Counter()
    for tensor in tensors:
        count[tensor.type] += tensor.elements
    return max(count, key=lambda name: count[name]).upper() if count else ""


@dataclass(frozen=True)
class GgufFile:
    """The keys and the tensors of one file, not their values. A key with a value of another kind counts as absent.

    `lengths`: of the arrays, by their keys.
    """

    keys: Mapping[str, Any]
    lengths: Mapping[str, int]
    tensors: list[Tensor]

    def text(self, key: str) -> str:
        """Return the text of a key, "" without one."""
        value = self.keys.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str, missing: int = 0) -> int:
        """Return the whole number of a key, or the largest of its array; `missing` without one."""
        return max(self.numbers(key), default=missing)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return the whole numbers of a key: one, or those of an array."""
        value = self.keys.get(key, ())
        return tuple(int(each) for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, int))


def read_file(path: Path) -> GgufFile:
    """Read one file. Raises ModelLoadError when it cannot be read, or ends before its tensors do."""
    if path.exists() and not path.is_file():
        # A pipe would be waited for.
        raise ModelLoadError(f"cannot read {path.name}: it is no ordinary file", DAMAGED)
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            found = _parsed(data)
    except OSError as error:
        raise ModelLoadError(f"cannot read {path.name}: {reason_of(error)}", DAMAGED) from error
    except BROKEN as error:
        raise ModelLoadError(f"cannot read {path.name}: it is no whole GGUF file", DAMAGED) from error
    there, whole = path.stat().st_size, max((tensor.end for tensor in found.tensors), default=0)
    if there < whole:
        raise ModelLoadError(f"{path.name} has {there:,} of its {whole:,} bytes", DAMAGED)
    return found


def _parsed(data: mmap) -> GgufFile:
    """Read a file's header. Raises one of BROKEN where it makes no sense."""
    at = len(MAGIC)
    keys, lengths = dict[str, Any](), dict[str, int]()

    def read(form: str) -> tuple[Any, ...]:
        nonlocal at
        before, at = at, at + struct.calcsize("<" + form)
        return struct.unpack_from("<" + form, data, before)

    def text() -> str:
        (length,) = read("Q")
        return str(read(f"{length}s")[0], "utf-8", "replace")

    version, tensors, pairs = read("IQQ")
    if data[: len(MAGIC)] != MAGIC or version not in (2, 3) or tensors > MOST_TENSORS:
        raise ValueError
    for _ in range(pairs):
        key, (kind,) = text(), read("I")
        if kind != ARRAY:
            keys[key] = text() if kind == TEXT else read(NUMBERS[kind])[0]
            continue
        kind, lengths[key] = read("IQ")
        if kind == TEXT:
            for _ in range(lengths[key]):
                at += 8 + LENGTH.unpack_from(data, at)[0]
        elif lengths[key] <= MOST_KEPT:
            keys[key] = read(f"{lengths[key]}{NUMBERS[kind]}")
        else:
            at += lengths[key] * struct.calcsize(NUMBERS[kind])
    infos = [(text(), read(f"{read('I')[0]}Q"), *read("IQ")) for _ in range(tensors)]
    alignment = int(keys.get("general.alignment", 32))
    start = -(-at // alignment) * alignment
    return GgufFile(keys, lengths, [_tensor(start, *info) for info in infos])


def _tensor(start: int, name: str, sizes: tuple[int, ...], kind: int, offset: int) -> Tensor:
    """Describe a tensor of a ggml_type whose values begin `offset` bytes behind `start`."""
    from lacli.llamacpp.library import declared, lib

    if kind >= lib.GGML_TYPE_COUNT:
        raise ValueError
    ggml, elements = declared(*TYPES), prod(sizes)
    # A removed type has blocks of size 0.
    size = elements // max(ggml.ggml_blck_size(kind), 1) * ggml.ggml_type_size(kind)
    return Tensor(name, ggml.ggml_type_name(kind).decode(), elements, size, start + offset + size)

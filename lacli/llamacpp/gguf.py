"""Facts of GGUF files, read without loading the model: the parts of split files, the header, types of weights."""

from __future__ import annotations

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

TEXT, ARRAY, NUMBERS = 8, 9, {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""gguf.h's gguf_type: string, array, and the formats of numbers."""

BROKEN = (struct.error, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)
"""Exceptions from damaged headers."""

SPLIT = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
"""The name of one part of a split model, as llama.cpp's gguf-split writes it."""


class GgufFile(NamedTuple):
    """The header of one GGUF file. `tensors`: name, ggml's type (q4_K) and number of elements of each tensor.

    `keys`: metadata by key; an array of texts has only KEY.length, the number of texts. `header_size`: in bytes.
    """

    keys: Mapping[str, Any]
    tensors: list[tuple[str, str, int]]
    header_size: int

    def text(self, key: str) -> str:
        return str(self.keys.get(key, ""))

    def number(self, key: str, missing: int = 0) -> int:
        return max(self.numbers(key), default=missing)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return the whole numbers of `key`: its only value, or the values of its array; () without the key."""
        value = self.keys.get(key, ())
        return tuple(int(each) for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, int))


@dataclass(frozen=True)
class Header:
    """A model's facts from all parts of its file; 0, "" or () for missing facts.

    `parameters`: elements of all tensors. `file_type`: Q4_K_M for example, or the type of most parameters.
    `weights`: bytes after the headers. `size`: bytes of the files. `trained_tokens`: longest sequence of the training.
    `heads`, `kv_heads`: one number for all layers, or one a layer. `cell_values`: numbers a token has in the cache.
    """

    architecture: str
    name: str
    parameters: int
    file_type: str
    weights: int
    size: int
    trained_tokens: int
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
    """Return the file names of all parts of the split model that `name` is a part of; [`name`] for any other name."""
    match = SPLIT.fullmatch(name)
    if match is None or not (count := int(match["parts"])):
        return [name]
    return [f"{match['stem']}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]


def parts(path: Path) -> list[Path]:
    """Return the paths of all files of a model, whether they exist or not, from the path of any of them."""
    return [path.with_name(name) for name in all_parts(path.name)]


def architecture_and_types(path: Path) -> tuple[str, frozenset[str]]:
    """Return a model's architecture and its matrices' types (q4_K). Raises ModelLoadError if `path` is no GGUF file."""
    files = [_read_file(part) for part in parts(path)]
    matrices = ((name, kind) for file in files for name, kind, _ in file.tensors)
    # Tensors with these words in their names are F32 in every file, and no batch is multiplied with them.
    vectors = ("norm", ".bias", "rope_", "position_embd", "token_types", "ssm_", "time_mix")
    types = {kind for name, kind in matrices if not any(vector in name for vector in vectors)}
    return files[0].text("general.architecture"), frozenset(types)


def read_header(path: Path) -> Header:
    """Read a model's header from its file, or from any part if it is split. Raises ModelLoadError if unreadable."""
    files = [_read_file(part) for part in parts(path)]
    first, size = files[0], sum(part.stat().st_size for part in parts(path))
    elements = Counter[str]()
    for _, kind, count in (tensor for file in files for tensor in file.tensors):
        elements[kind] += count
    architecture = first.text("general.architecture")
    layers, embedding = first.number(f"{architecture}.block_count"), first.number(f"{architecture}.embedding_length")
    heads = first.numbers(f"{architecture}.attention.head_count")
    kv_heads = first.numbers(f"{architecture}.attention.head_count_kv") or heads
    width = embedding // max(heads) if any(heads) else 0
    widths = (first.number(f"{architecture}.attention.{name}_length", width) for name in ("key", "value"))
    return Header(
        architecture=architecture,
        name=first.text("general.name"),
        parameters=elements.total(),
        file_type=_file_type(first.number("general.file_type", -1), elements),
        weights=size - sum(file.header_size for file in files),
        size=size,
        trained_tokens=first.number(f"{architecture}.context_length"),
        layers=layers,
        embedding=embedding,
        heads=heads,
        kv_heads=kv_heads,
        cell_values=sum(kv_heads) * (1 if kv_heads[1:] else layers) * sum(widths),
        experts=first.number(f"{architecture}.expert_count"),
        experts_used=first.number(f"{architecture}.expert_used_count"),
        vocabulary=first.number("tokenizer.ggml.tokens.length"),
        template=first.text("tokenizer.chat_template"),
    )


def _file_type(number: int, elements: Counter[str]) -> str:
    """Return llama_ftype `number`'s name, or the most frequent type if it has none. `elements`: counts by type."""
    from lacli.llamacpp.library import lib

    for name, value in vars(lib).items():
        found = re.fullmatch("LLAMA_FTYPE_(?:MOSTLY|ALL)_(.*)", name)
        if found and value == number & ~lib.LLAMA_FTYPE_GUESSED:
            return found[1]
    return max(elements, key=elements.__getitem__, default="").upper()


def _read_file(path: Path) -> GgufFile:
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            return _parsed(data)
    except OSError as error:
        raise ModelLoadError(f"cannot read {path.name}: {reason_of(error)}", "check the file's permissions") from error
    except BROKEN as error:
        hint = "the file may be damaged: fetch it again"
        raise ModelLoadError(f"cannot read {path.name}: it is no complete GGUF file", hint) from error


def _parsed(data: mmap) -> GgufFile:
    """Return the header in a file's `data`. Raises one of BROKEN if it is damaged."""
    from lacli.llamacpp.library import ggml, lib

    at, keys = 0, dict[str, Any]()

    def read(form: str) -> tuple[Any, ...]:
        nonlocal at
        before, at = at, at + struct.calcsize("<" + form)
        return struct.unpack_from("<" + form, data, before)

    def text() -> str:
        (length,) = read("Q")
        return str(read(f"{length}s")[0], "utf-8", "replace")

    magic, version, tensors, pairs = read("4sIQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError
    for _ in range(pairs):
        key, (kind,) = text(), read("I")
        if kind == TEXT:
            keys[key] = text()
        elif kind != ARRAY:
            keys[key] = read(NUMBERS[kind])[0]
        else:
            kind, length = read("IQ")
            if kind != TEXT:
                keys[key] = read(f"{length}{NUMBERS[kind]}")
                continue
            keys[f"{key}.length"] = length
            for _ in range(length):
                at += 8 + struct.unpack_from("<Q", data, at)[0]
    infos = [(text(), read(f"{read('I')[0]}Q"), *read("IQ")) for _ in range(tensors)]
    if any(kind >= lib.GGML_TYPE_COUNT for *_, kind, _ in infos):
        raise ValueError
    found = [(name, ggml.ggml_type_name(kind).decode(), prod(sizes)) for name, sizes, kind, _ in infos]
    return GgufFile(keys, found, at)

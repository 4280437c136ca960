"""The number formats of a model's weight matrices, read from its file."""

from __future__ import annotations

from pathlib import Path

from lacli.gguf import GgufFile, parts

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

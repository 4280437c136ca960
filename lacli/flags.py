"""How settings are spelled: the command line's names of those that have more than their own.

One table for the flags of `cli/` and for the keys of /set. What a flag does is said where it is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints

from lacli.errors import UsageError

OURS, THEIRS = "LACLI_", "LLAMA_ARG_"
"""What the environment's names of flags begin with: lacli's own, and those of llama.cpp's that it reads too."""

LOADING: dict[str, tuple[str, ...]] = {
    "context": ("-c", "--ctx-size"),
    "batch": ("-b", "--batch-size"),
    "gpu_layers": ("-ngl", "--gpu-layers", "--n-gpu-layers"),
    "threads": ("-t", "--threads"),
    "threads_batch": ("-tb", "--threads-batch"),
    "flash_attention": ("-fa", "--flash-attn"),
    "cache_type_k": ("-ctk", "--cache-type-k"),
    "cache_type_v": ("-ctv", "--cache-type-v"),
}
"""Settings of a model and its context, by their fields in ModelSettings."""

PLACEMENT: dict[str, tuple[str, ...]] = {
    "devices": ("-dev", "--device"),
    "split_mode": ("-sm", "--split-mode"),
    "tensor_split": ("-ts", "--tensor-split"),
    "main_gpu": ("-mg", "--main-gpu"),
}
"""Where a copy of a model computes, by the fields of Placement."""

REPLICAS: dict[str, tuple[str, ...]] = {
    "replicas": ("--replicas",),
    "rpc": ("--rpc",),
    "isolate": ("--isolate",),
    "limit_s": ("--replica-timeout",),
}
"""Copies of a model, by the fields of ReplicaSettings but for the first, which stands for two."""

ANSWER: dict[str, tuple[str, ...]] = {
    "limit": ("-n", "--predict", "--n-predict", "--max-tokens"),
    "stops": ("--stop",),
}
"""How an answer ends."""

DECODING: dict[str, tuple[str, ...]] = {
    "window": ("-W", "--window"),
    "ngram": ("-N", "--ngram"),
    "guesses": ("-G", "--guesses"),
    "seed": ("-s", "--seed"),
    "temp": ("--temp", "--temperature"),
    "typical": ("--typical", "--typical-p"),
    "top_nsigma": ("--top-nsigma", "--top-n-sigma"),
    "logit_bias": ("-l", "--logit-bias"),
    "json_schema": ("-j", "--json-schema"),
    "json_schema_file": ("-jf", "--json-schema-file"),
}
"""Fields of DecodeSettings and SamplingSettings, and the file of one."""

NOTHING = ("none", "off")
"""What stands for an empty list, where names are expected."""


def spellings(name: str) -> tuple[str, ...]:
    """The flags of a setting, by its field's name; one that is in no table has its own name."""
    for table in (DECODING, ANSWER, LOADING, PLACEMENT, REPLICAS):
        if name in table:
            return table[name]
    return ("--" + name.replace("_", "-"),)


def check_words(settings: object) -> None:
    """Raise UsageError where a field of `settings` that is annotated with a Literal holds none of its words."""
    for field, words in _words(type(settings)).items():  # type: ignore[arg-type]  # mypy doubts that classes have hashes
        value = getattr(settings, field)
        if value not in words:
            raise UsageError(f"{spellings(field)[0]} cannot be {value!r}", f"one of {', '.join(words)}")


@cache
def _words(settings: type[object]) -> Mapping[str, tuple[str, ...]]:
    hints = get_type_hints(settings)
    return {field: get_args(hint) for field, hint in hints.items() if get_origin(hint) is Literal}


def names_in(text: str) -> tuple[str, ...]:
    """The names of a list with commas or spaces between them, each once."""
    return tuple(dict.fromkeys(text.lower().replace(",", " ").split()))


def names_or_none(text: str) -> tuple[str, ...]:
    """The same of a list that may be empty, which `none` says."""
    return () if text.strip().lower() in NOTHING else names_in(text)

"""The choice of a library, llama.cpp or ik_llama.cpp, and its models and contexts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lacli.errors import UsageError
from lacli.ik.context import OTHERWISE, IkContext, IkModel, version
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.devices import offloads
from lacli.llamacpp.gguf import architecture_and_types
from lacli.llamacpp.machine import processor
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import PLAIN_CACHE_TYPES, ContextSize, ModelSettings

NEEDED = {"avx2", "fma", "f16c"}
"""Instruction sets that wheels of ik-llama-cpp-python 0.1.5 need; without them the process ends."""

ARCHITECTURES = ("gemma3", "llama", "qwen2", "qwen3", "qwen3moe")
"""Architectures that compute the same as with llama.cpp, but for rounding (tests/ik)."""

TYPES = {"f32", "iq4_nl", "iq4_xs", "q4_0", "q4_K", "q5_0", "q5_1", "q5_K", "q6_K", "q8_0"}
"""Weight types whose batches of 2 to 63 rows move logits by at most 0.6 (docs/internals/measured.md); Q4_1: by 24."""


def choose_library(path: Path, settings: ModelSettings, *, strict: bool = False) -> ModelSettings:
    """Return the settings with `engine` decided. "auto" becomes "ik" if ik_llama.cpp supports them, else "llama".

    `strict`: one row and several must give the same bits. Raises UsageError if "ik" cannot be used.
    """
    if settings.engine == "llama":
        return settings
    hindrance = _hindrance(path, settings, strict=strict)
    if hindrance and settings.engine == "ik":
        raise UsageError(f"--engine ik {hindrance[0]}", hindrance[1])
    return replace(settings, engine="llama" if hindrance else "ik")


def machine_hindrance() -> tuple[str, str] | None:
    """Return why ik_llama.cpp cannot be used on this machine, and what to do about it; None if it can be used."""
    if not version():
        return "needs ik-llama-cpp-python, which is not installed", "in lacli's folder: pip install '.[ik]'"
    if lacking := NEEDED - set(processor().flags):
        return f"needs a processor with {' and '.join(sorted(lacking))}", OTHERWISE
    return None


def _hindrance(path: Path, settings: ModelSettings, *, strict: bool) -> tuple[str, str] | None:
    if hindrance := machine_hindrance():
        return hindrance
    if strict:
        return "gives other bits for several rows than for one, which --strict rules out", OTHERWISE
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


def model_class(settings: ModelSettings) -> type[LlamaModel]:
    """Return the model class of the library that `choose_library` decided on."""
    return IkModel if settings.engine == "ik" else LlamaModel


def open_context(
    model: LlamaModel, settings: ModelSettings, size: ContextSize, *, backend_greedy: bool | None = None
) -> LlamaContext | IkContext:
    """Open a context with the model's library. `backend_greedy`: llama.cpp chooses tokens; None: on a GPU only."""
    if isinstance(model, IkModel):
        return IkContext(model, settings, size)
    return LlamaContext(model, settings, size, backend_greedy=backend_greedy)

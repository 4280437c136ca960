"""lacli: any GGUF model faster without a draft model, and the same text (lookahead decoding, Fu et al. 2024)."""

from __future__ import annotations

TYPE_CHECKING = False
"""typing's own name for this takes longer to import than all that happens before Ctrl-C is listened for."""

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "DecodeSettings",
    "LacliError",
    "ModelSettings",
    "Placement",
    "ReplicaSettings",
    "SamplingSettings",
    "Session",
    "generate",
    "load",
]

if TYPE_CHECKING:
    from typing import Any

    from lacli.api import generate, load
    from lacli.errors import LacliError
    from lacli.generation import Answer
    from lacli.placement import Placement, ReplicaSettings
    from lacli.sampling import SamplingSettings
    from lacli.session import Session
    from lacli.settings import DecodeSettings, ModelSettings


HOMES = {
    "Answer": "generation",
    "DecodeSettings": "settings",
    "LacliError": "errors",
    "ModelSettings": "settings",
    "Placement": "placement",
    "ReplicaSettings": "placement",
    "SamplingSettings": "sampling",
    "Session": "session",
    "generate": "api",
    "load": "api",
}


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that `import lacli` does not wait for llama.cpp."""
    if name not in HOMES:
        raise AttributeError(f"module 'lacli' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"lacli.{HOMES[name]}"), name)

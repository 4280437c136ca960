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
    from lacli.llamacpp.sampling import SamplingSettings
    from lacli.llamacpp.settings import ModelSettings, Placement, ReplicaSettings
    from lacli.session.generation import Answer
    from lacli.session.session import Session
    from lacli.settings import DecodeSettings


HOMES = {
    "Answer": "session.generation",
    "DecodeSettings": "settings",
    "LacliError": "errors",
    "ModelSettings": "llamacpp.settings",
    "Placement": "llamacpp.settings",
    "ReplicaSettings": "llamacpp.settings",
    "SamplingSettings": "llamacpp.sampling",
    "Session": "session.session",
    "generate": "api",
    "load": "api",
}


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that `import lacli` does not wait for llama.cpp."""
    if name not in HOMES:
        raise AttributeError(f"module 'lacli' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"lacli.{HOMES[name]}"), name)

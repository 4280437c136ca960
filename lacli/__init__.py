"""lacli: any GGUF model faster without a draft model, same text up to rounding (lookahead decoding, Fu et al. 2024)."""

from __future__ import annotations

TYPE_CHECKING = False
"""Importing `typing` for it would take longer than everything else before Ctrl-C is handled."""

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "AsyncStream",
    "DecodeSettings",
    "LacliError",
    "Model",
    "ModelSettings",
    "SamplingSettings",
    "Stream",
    "load",
]

if TYPE_CHECKING:
    from lacli.engine.answer import Answer
    from lacli.engine.worker import AsyncStream, Stream
    from lacli.errors import LacliError
    from lacli.llamacpp.sampling import SamplingSettings
    from lacli.llamacpp.settings import ModelSettings
    from lacli.model import Model, load
    from lacli.settings import DecodeSettings
else:

    def __getattr__(name: str) -> object:
        """Return a public name, imported on first use: `import lacli` alone does not load numpy and llama.cpp."""
        homes = {
            "Answer": "engine.answer",
            "DecodeSettings": "settings",
            "LacliError": "errors",
            "ModelSettings": "llamacpp.settings",
            "SamplingSettings": "llamacpp.sampling",
            **dict.fromkeys(("AsyncStream", "Stream"), "engine.worker"),
            **dict.fromkeys(("Model", "load"), "model"),
        }
        if name not in homes:
            raise AttributeError(f"module 'lacli' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"lacli.{homes[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__]

"""Sentences about choices that a session makes for the user, and about settings that change nothing.

Settings and sizes in, sentences out; nothing is decided here.
"""

from __future__ import annotations

from lacli.llamacpp.context import CONTEXT_PAD
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampling import SamplingSettings
from lacli.settings import DecodeSettings, SourceName

OF_CHAINS: tuple[SourceName, ...] = ("suffix", "store")
"""The sources that mode auto asks where the model goes back along a chain only."""


def idle_notes(sampling: SamplingSettings) -> list[str]:
    """Samplers that were asked for and do nothing."""
    if not sampling.idle:
        return []
    verb = "have" if len(sampling.idle) > 1 else "has"
    return [f"{' and '.join(sampling.idle)} {verb} no effect at temperature 0; --temp sets it"]


def context_notes(asked: int, cells: int, model: LlamaModel) -> list[str]:
    """Where the context is another one than was asked for, or than the model's own. asked: by -c, 0 for nothing."""
    whole, cut = model.context, model.default_context
    notes = []
    if not asked and cut < whole:
        notes.append(f"the context is cut to {cut} of the model's {whole} tokens; -c sets it")
    if asked > whole:
        notes.append(f"the model was trained with {whole} tokens; behind them its text may fall apart")
    if 0 < asked < min(cells, CONTEXT_PAD):
        notes.append(f"llama.cpp makes no context smaller than {cells} tokens")
    return notes


def asked_sources(settings: DecodeSettings, *, texts: bool) -> tuple[SourceName, ...]:
    """The sources of mode auto that can guess anything. texts: whether there are some of earlier runs."""
    chosen = (name for name in settings.sources if name != "store" or texts)
    return tuple(name for name in chosen if settings.back < 0 or name in OF_CHAINS)


def source_notes(settings: DecodeSettings, *, texts: bool) -> list[str]:
    """Where mode auto has nobody to ask."""
    if settings.mode != "auto" or asked_sources(settings, texts=texts):
        return []
    return ["no source is left, so auto decodes plainly"]

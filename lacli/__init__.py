"""lacli: any GGUF model faster without a draft model, and the same text (lookahead decoding, Fu et al. 2024)."""

from __future__ import annotations

TYPE_CHECKING = False
"""typing's own name for this takes longer to import than all that happens before Ctrl-C is listened for."""

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "AsyncStream",
    "DecodeSettings",
    "LacliError",
    "Model",
    "ModelSettings",
    "Placement",
    "ReplicaSettings",
    "SamplingSettings",
    "Stream",
    "load",
]

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any, Never

    from lacli.auto.step_cost import Cost
    from lacli.engine.answer import Answer
    from lacli.errors import LacliError
    from lacli.llamacpp.sampling import SamplingSettings
    from lacli.llamacpp.settings import ModelSettings, Placement, ReplicaSettings
    from lacli.model import Model
    from lacli.settings import DecodeSettings, ModeName
    from lacli.streams import AsyncStream, Stream


PARALLEL = 4
"""Answers that are decoded at a time by default: an editor or an agent seldom has more, and each takes memory."""

HOMES = {
    "Answer": "engine.answer",
    "AsyncStream": "streams",
    "DecodeSettings": "settings",
    "LacliError": "errors",
    "Model": "model",
    "ModelSettings": "llamacpp.settings",
    "Placement": "llamacpp.settings",
    "ReplicaSettings": "llamacpp.settings",
    "SamplingSettings": "llamacpp.sampling",
    "Stream": "streams",
}


if not TYPE_CHECKING:
    # A type checker would let every name pass.
    def __getattr__(name: str) -> Any:
        """Load a public name on first use, so that `import lacli` does not wait for numpy and llama.cpp."""
        if name not in HOMES:
            raise AttributeError(f"module 'lacli' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"lacli.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__]


def load(
    model: str | Path,
    *,
    mode: ModeName | None = None,
    window: int | None = None,
    ngram: int | None = None,
    guesses: int | None = None,
    strict: bool | None = None,
    context: int | None = None,
    threads: int | None = None,
    gpu_layers: int | None = None,
    parallel: int | None = None,
    model_settings: ModelSettings | None = None,
    decode_settings: DecodeSettings | None = None,
    sampling: SamplingSettings | None = None,
    template: str | None = "",
    template_variables: Mapping[str, object] | None = None,
    cost: Cost | None = None,
    replicas: ReplicaSettings | None = None,
    **unknown: Never,
) -> Model:
    """Load a model: a GGUF file, or a name as `lacli run` takes it.

    A model of the hub is fetched where the cache lacks it. `mode`, `window`, `ngram`, `guesses`, `strict`: how it
    decodes; W, N or G without a mode means lookahead. `context`: tokens of all texts together; by default each may have
    as many as `lacli run` gives one, where memory has room. `threads`, `gpu_layers`: 0 threads are one a core, -1
    layers are all. They win over the same fields of `decode_settings` and `model_settings`, which have the others.
    `parallel`: answers decoded at a time, four by default; one with `strict`, or with `replicas`, which may say in
    which process or with which other machines one copy of the model computes.
    `sampling`: how tokens are drawn where an answer says nothing else.
    `template`: a bundled chat template's name, a file or a Jinja text; empty: the model's own, or a bundled one if it
    has none (`engine.notes` says which); None: prompts are continued as they are.
    `template_variables`: what the template gets beside a conversation, {"enable_thinking": False} for example.
    `cost`: what steps cost here, where it was measured before; mode auto learns it otherwise.
    Raises ModelLoadError if the model does not exist or lacli cannot run its kind, UsageError for bad settings.
    """
    from dataclasses import replace
    from os import PathLike

    from lacli.answer_options import told_to_programs, unknown_option
    from lacli.engine.load import open_engine
    from lacli.errors import UsageError
    from lacli.hub.download import find_model
    from lacli.hub.names import own_aliases
    from lacli.llamacpp.library import end_at_abort
    from lacli.llamacpp.model import giving_way
    from lacli.llamacpp.sampling import SamplingSettings
    from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
    from lacli.model import Model
    from lacli.settings import DecodeSettings
    from lacli.settings import decode_settings as settings_of

    for name, given, kind, form in (
        ("model", model, str | PathLike, "a path or a name"),
        ("model_settings", model_settings, ModelSettings, "lacli.ModelSettings(...)"),
        ("decode_settings", decode_settings, DecodeSettings, "lacli.DecodeSettings(...)"),
        ("sampling", sampling, SamplingSettings, "lacli.SamplingSettings(...)"),
        ("replicas", replicas, ReplicaSettings, "lacli.ReplicaSettings(...)"),
        ("template", template, str, "a name, a file or a text"),
    ):
        if not isinstance(given, kind) and (given is not None or name == "model"):
            raise UsageError(f"{name} is {given!r:.60}", f"give {form}")
    if unknown:
        raise unknown_option("load", min(unknown), ("model", *(load.__kwdefaults__ or ())))
    with told_to_programs():
        letters = {"mode": mode, "window": window, "ngram": ngram, "guesses": guesses, "strict": strict}
        chosen = {name: value for name, value in letters.items() if value is not None}
        decoding = replace(decode_settings, **chosen) if decode_settings else settings_of(**chosen)  # type: ignore[arg-type]
        placing = {"context": context, "threads": threads, "gpu_layers": gpu_layers}
        loading = {name: value for name, value in placing.items() if value is not None}
        if replicas and max(replicas.count, len(replicas.groups)) > 1:
            raise UsageError(
                "several copies decode one answer, in lacli run; here one copy decodes several", "leave them out"
            )
        if replicas and replicas.rpc:
            end_at_abort()
        if often_alone := parallel is None:
            parallel = 1 if decoding.strict or replicas else PARALLEL
        if type(parallel) is not int or parallel < 1:
            raise UsageError(f"parallel is {parallel!r}", "parallel must be a whole number, at least 1")
        sampling = sampling or SamplingSettings()
        engine = open_engine(
            find_model(model, aliases=own_aliases()),
            giving_way(replace(model_settings or ModelSettings(engine="auto"), **loading)),  # type: ignore[arg-type]  # names of integers
            decoding,
            sampling,
            template=template,
            template_variables=template_variables,
            cost=cost,
            replicas=replicas,
            slots=parallel,
            often_alone=often_alone,
        )
    return Model(engine, sampling)

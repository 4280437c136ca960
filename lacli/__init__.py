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
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any, overload

    from lacli.auto.step_cost import Cost
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
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that `import lacli` does not wait for numpy and llama.cpp."""
    if name not in HOMES:
        raise AttributeError(f"module 'lacli' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"lacli.{HOMES[name]}"), name)


def load(
    model: str | Path | None = None,
    *,
    model_settings: ModelSettings | None = None,
    decode_settings: DecodeSettings | None = None,
    sampling: SamplingSettings | None = None,
    template: str | None = "",
    template_variables: Mapping[str, object] | None = None,
    cost: Cost | None = None,
    replicas: ReplicaSettings | None = None,
) -> Session:
    """Open a model (a path or a name, as MODEL is; None: the bundled demo model) for `generate`.

    A model of the hub is fetched where the cache lacks it.
    `template`: a bundled chat template's name, a file or a Jinja text; empty: the model's own; None: none at all.
    `template_variables`: what the template gets beside a conversation, {"enable_thinking": False} for example.
    `cost`: what steps cost here, where it was measured before; mode auto learns it otherwise.
    `replicas`: copies of the model that answer together; None for one.
    Raises ModelLoadError if the model does not exist or lacli cannot run its kind, UsageError for bad settings.
    """
    from lacli.hub.download import find_model
    from lacli.llamacpp.sampling import SamplingSettings
    from lacli.llamacpp.settings import ModelSettings
    from lacli.session.session import Session
    from lacli.settings import DecodeSettings

    return Session(
        find_model(model),
        model_settings or ModelSettings(),
        decode_settings or DecodeSettings(),
        sampling or SamplingSettings(),
        template=template,
        template_variables=template_variables,
        cost=cost,
        replicas=replicas,
    )


if TYPE_CHECKING:

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] too; the first match is meant
        session: Session,
        prompts: str,
        *,
        system: str = "",
        max_tokens: int = -1,
        stops: str | Sequence[str] = (),
        raw: bool = False,
    ) -> Answer: ...

    @overload
    def generate(
        session: Session,
        prompts: Sequence[str],
        *,
        system: str = "",
        max_tokens: int = -1,
        stops: str | Sequence[str] = (),
        raw: bool = False,
    ) -> list[Answer]: ...


def generate(
    session: Session,
    prompts: str | Sequence[str],
    *,
    system: str = "",
    max_tokens: int = -1,
    stops: str | Sequence[str] = (),
    raw: bool = False,
) -> Answer | list[Answer]:
    """Answer one prompt, or several one after another with the pool kept between them.

    `max_tokens`: tokens of an answer at most, -1 for no limit but the context's. `stops`: a text that ends it, or
    several.
    Raises PromptError for an empty prompt or one longer than the context, SamplingError when a grammar or biases leave
    no token.
    """
    from lacli.session.generation import as_stops

    if not isinstance(prompts, str):
        return [
            generate(session, prompt, system=system, max_tokens=max_tokens, stops=stops, raw=raw) for prompt in prompts
        ]
    ends = () if raw else session.prompts.turn_ends
    generation = session.generate(session.prompt(prompts, system, raw=raw), max_tokens, (*as_stops(stops), *ends))
    for _ in generation:
        pass
    return generation.answer()

"""The Python API: `load` a model, `generate` answers. What a program imports from `lacli` and is no class is here.

What the two are made of is `session.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import overload

from lacli.auto.step_cost import Cost
from lacli.hub.download import find_model
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.session.generation import Answer, as_stops
from lacli.session.session import Session
from lacli.settings import DecodeSettings


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
    template: a bundled chat template's name, a file or a Jinja text; empty: the model's own; None: none at all.
    template_variables: what the template gets beside a conversation, {"enable_thinking": False} for example.
    cost: what steps cost here, where it was measured before; mode auto learns it otherwise.
    replicas: copies of the model that answer together; None for one.
    Raises ModelLoadError when there is no such model or its kind cannot be used, UsageError when the settings cannot.
    """
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


@overload
def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] too; the first match is meant
    session: Session,
    prompts: str,
    *,
    system: str = "",
    limit: int = -1,
    stops: str | Sequence[str] = (),
    raw: bool = False,
) -> Answer: ...
@overload
def generate(
    session: Session,
    prompts: Sequence[str],
    *,
    system: str = "",
    limit: int = -1,
    stops: str | Sequence[str] = (),
    raw: bool = False,
) -> list[Answer]: ...
def generate(
    session: Session,
    prompts: str | Sequence[str],
    *,
    system: str = "",
    limit: int = -1,
    stops: str | Sequence[str] = (),
    raw: bool = False,
) -> Answer | list[Answer]:
    """Answer one prompt, or several one after another with the pool kept between them.

    limit: tokens an answer may have, -1 for no limit but the context's. stops: a text that ends it, or several. Raises
    PromptError for an empty prompt or one longer than the context, SamplingError when a grammar or biases leave no
    token.
    """
    if isinstance(prompts, str):
        ends = () if raw else session.turn_ends
        generation = session.generate(session.prompt(prompts, system, raw=raw), limit, (*as_stops(stops), *ends))
        for _ in generation:
            pass
        return generation.answer()
    return [generate(session, prompt, system=system, limit=limit, stops=stops, raw=raw) for prompt in prompts]

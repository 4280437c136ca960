"""`lacli check` as a whole: open a model, check it, show what was found.

Takes settings; flags are read before, the check itself is `check.py`, terminals are `ui.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from lacli.check.compare import (
    EXACT_FLAGS,
    PROMPTS,
    Alternative,
    OpenEngine,
    Result,
    check,
    checked_modes,
    exact_settings,
    fixed_seed,
    refuse_other_draws,
)
from lacli.check.report import Setup, as_json, as_lines
from lacli.errors import Interrupted
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, check_rows, fitted
from lacli.session.report import describe_sampling
from lacli.session.session import Session
from lacli.settings import DecodeSettings, ModeName
from lacli.terminal.interrupts import ctrl_c_ends_at_once
from lacli.terminal.screen import Screen, loading_model


@dataclass(frozen=True)
class Plan:
    """How much is checked and how it is shown.

    prompts: how many of PROMPTS. predict: most tokens of an answer. own: a prompt to take instead of them.
    """

    prompts: int = len(PROMPTS)
    predict: int = 64
    mode: ModeName | None = None
    fail_on_difference: bool = False
    json: bool = False
    verbose: bool = False
    own: str = ""


def examine(
    path: Path,
    loading: ModelSettings,
    decoding: DecodeSettings,
    sampling: SamplingSettings,
    plan: Plan,
    screen: Screen,
) -> int:
    """Check a model and print the result; the exit code. Raises Interrupted after Ctrl-C, with nothing printed."""
    refuse_other_draws(sampling)
    sampling = fixed_seed(sampling)
    with loading_model(screen):
        opened = Session(path, loading, replace(decoding, mode="plain"), sampling, verbose=plan.verbose)
    with opened as session:
        try:
            setup, result = _checked(session, plan, screen)
            # While the model lives: it knows the tokens' texts.
            shown = json.dumps(as_json(setup, result), ensure_ascii=False) if plan.json else as_lines(setup, result)
        except KeyboardInterrupt:
            raise Interrupted("") from None
    screen.line(shown)
    return result.exit_code(fail_on_difference=plan.fail_on_difference)


def _modes(session: Session, only: ModeName | None, screen: Screen) -> list[DecodeSettings]:
    """What is checked; of a model with a recurrent state the chains that it can take back, and that is said."""
    modes = [fitted(each, session.model_settings) for each in checked_modes(session.settings, only)]
    if why := session.model.chain_only:
        back = 0 if session.settings.strict else session.most_back
        modes = [replace(each, back=back) for each in modes if back and each.mode != "lookahead"]
        chains = f"chains of at most {back} guesses are checked" if modes else "batch sizes are compared"
        screen.note(f"only {chains}: {why}")
    for mode in modes:
        check_rows(mode, session.model_settings)
    return modes


def _checked(session: Session, plan: Plan, screen: Screen) -> tuple[Setup, Result]:
    model, loading, decoding = session.model, session.model_settings, session.settings
    modes = _modes(session, plan.mode, screen)
    screen.notes(session.notes, session.warnings)
    if not session.sampling.greedy:
        screen.note(f"sampling with seed {session.sampling.seed}")
    prompts = [session.prompt(prompt) for prompt in PROMPTS]
    asked = [session.prompt(plan.own)] if plan.own else prompts[: plan.prompts]
    setup = Setup(
        model=str(model.path),
        description=model.description,
        backend=model.devices,
        on_gpu=model.offloaded,
        context=session.engine.cells,
        loading=loading,
        decoding=decoding,
        sampling=session.sampling,
        sampled=describe_sampling(session.sampling),
        predict=plan.predict,
        prompts=len(asked),
        piece=partial(model.piece, special=True),
    )
    # Contexts of the check's own take its place, and there may be no memory for one more.
    session.engine.close()

    def opening(settings: ModelSettings) -> OpenEngine:
        def open_one(decode: DecodeSettings) -> LlamaEngine:
            with ctrl_c_ends_at_once():
                # Logits are compared, and drawn from, so the backend must not keep them.
                return LlamaEngine(model, settings, decode, backend_greedy=False)

        return open_one

    exact = exact_settings(loading)
    alternative = Alternative(EXACT_FLAGS, opening(exact)) if exact else None
    result = check(
        opening(loading),
        asked,
        modes,
        plan.predict,
        sampler=session.sampler,
        alternative=alternative,
        probed=list(chain.from_iterable(prompts)),
        progress=screen.note,
    )
    return setup, result

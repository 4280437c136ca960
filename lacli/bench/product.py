"""`lacli bench` as a whole: open a model, let everyone answer, show what came of it.

Takes settings; flags are read before, terminals are `ui.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from lacli.bench.ceiling import (
    Asking,
    Ceilings,
    Oracles,
    of_results,
    oracles,
)
from lacli.bench.contenders import contenders, rivals
from lacli.bench.contexts import Contexts
from lacli.bench.details import TOKENS as DETAIL_TOKENS
from lacli.bench.details import Details, look_inside
from lacli.bench.details_report import as_columns
from lacli.bench.details_report import as_lines as details_lines
from lacli.bench.judging import Judged, judge
from lacli.bench.pictures import (
    as_charts,
    compression_points,
    law_sentence,
    save,
)
from lacli.bench.report import as_lines, conclusion, score_table
from lacli.bench.results import Result, results
from lacli.bench.rounds import Contender, Rounds
from lacli.bench.rows import (
    Machine,
    Row,
    as_rows,
    as_text,
)
from lacli.bench.scores import save_samples, scores
from lacli.bench.staging import (
    Request,
    asker_of,
    planned,
    points_of,
    prompts_of,
)
from lacli.check.compare import fixed_seed, refuse_other_draws
from lacli.cost.known import cost_beside
from lacli.cost.store import CostStore
from lacli.errors import Interrupted, LacliError
from lacli.llamacpp.context import peak_memory
from lacli.llamacpp.library import devices, version
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.replicas.copies import ALONE
from lacli.session.report import describe_sampling
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.staircase import Cost
from lacli.terminal.interrupts import ctrl_c_ends_at_once
from lacli.terminal.screen import Screen, loading_model

COST_S = 6.0
"""Seconds for the cost of rows, where it is only one panel of a picture."""


@dataclass
class Outcome:
    """A finished benchmark, or as much of it as there was time for; what was not asked for is empty."""

    rounds: Rounds
    machine: Machine
    interrupted: bool = False
    judged: Judged = field(default_factory=dict)
    seen: dict[int, Details] = field(default_factory=dict)
    oracles: dict[int, Oracles] = field(default_factory=dict)
    scores: dict[int, dict[str, float]] = field(default_factory=dict)
    cost: Cost | None = None

    @property
    def contenders(self) -> Sequence[Contender]:
        return self.rounds.contenders

    @cached_property
    def found(self) -> list[Result]:
        return results(self.rounds)

    @cached_property
    def ceilings(self) -> Ceilings:
        return of_results(self.oracles)

    @property
    def rows(self) -> list[Row]:
        columns = {number: dict(score) for number, score in self.scores.items()}
        for number, details in self.seen.items():
            columns.setdefault(number, {}).update(as_columns(details))
        return as_rows(self.found, self.contenders, self.machine, self.judged, self.ceilings, columns)

    @property
    def bugs(self) -> int:
        """Texts that rounding does not explain."""
        return sum(run.bug for run in self.judged.values())


def benchmark(
    path: Path,
    loading: ModelSettings,
    decoding: DecodeSettings,
    sampling: SamplingSettings,
    request: Request,
    screen: Screen,
) -> int:
    """Run a benchmark and print it; the exit code.

    Raises Interrupted after Ctrl-C, when what was finished is printed.
    """
    if request.check:
        refuse_other_draws(sampling)
    sampling = fixed_seed(sampling)
    with loading_model(screen):
        plain = replace(decoding, mode="plain")
        opened = Session(
            path,
            loading,
            plain,
            sampling,
            template_variables=request.template_variables,
            replicas=request.replicas,
            verbose=request.verbose,
        )
    with opened as session:
        # Some are about plain, which is only the first of the modes here.
        screen.notes([note for note in session.notes if ALONE not in note], session.warnings)
        if not session.sampling.greedy:
            screen.note(f"sampling with seed {session.sampling.seed}")
        outcome = _measured(session, request, screen)
    _show(outcome, request, screen)
    if outcome.interrupted:
        raise Interrupted("")
    return 3 if request.check and outcome.bugs else 0


def _measured(session: Session, request: Request, screen: Screen) -> Outcome:
    with ExitStack() as stack:
        chosen = points_of(session, request.axes, screen)
        with ctrl_c_ends_at_once():
            contexts = stack.enter_context(Contexts(session, chosen))
        competing = [*contenders(session, contexts, chosen), *rivals(session, request.rivals, stack)]
        asker = asker_of(session)
        prompts = prompts_of(asker, request)
        cost = None
        try:
            if any(point.settings.mode == "auto" for point in chosen):
                cost = _cost(session, request, screen)
                if cost.staircases:
                    session.use_cost(cost)
            competing, plan = planned(competing, prompts, asker.cells, request, screen)
        except KeyboardInterrupt:
            raise Interrupted("") from None
        rounds = Rounds(competing, plan.tasks, plan.repetitions, asker)
        interrupted = _run(rounds, screen)
        outcome = Outcome(rounds, _machine(session, request), interrupted, cost=cost)
        for task in rounds.left_out:
            screen.note(f"left out: {task.kind} prompt of more tokens than the context of {session.engine.cells} holds")
        for number, error in rounds.failures.items():
            screen.note(f"{competing[number].label} was given up: {error}")
        if not interrupted:
            _follow_up(outcome, contexts, session, request, screen)
        return outcome


def _run(rounds: Rounds, screen: Screen) -> bool:
    """Go through all rounds; whether Ctrl-C ended them."""
    try:
        _go_through(rounds, screen)
    except KeyboardInterrupt:
        done = sum(map(len, rounds.trials.values()))
        screen.note(f"stopped after {done} of {rounds.most} answers; what follows is about these")
        return True
    return False


def _go_through(rounds: Rounds, screen: Screen) -> None:
    with screen.progress(rounds.most, "answers") as advance:
        for _ in rounds:
            advance()


def _follow_up(outcome: Outcome, contexts: Contexts, session: Session, request: Request, screen: Screen) -> None:
    """What is found out behind the answers. A part that fails is said; Ctrl-C leaves the rest out."""

    def reaching() -> None:
        if outcome.cost and outcome.cost.staircases and not session.sampling.draws_otherwise:
            _reach(outcome, contexts, session, outcome.cost, screen)

    def judging() -> None:
        outcome.judged = _judged(outcome, contexts, session, request, screen)

    def scoring() -> None:
        outcome.scores = scores(request.suite, outcome.rounds) if request.suite else {}

    def writing() -> None:
        for name in save_samples(request.samples, outcome.rounds) if request.samples else ():
            screen.note(f"completions are in {name}")

    def looking() -> None:
        if request.details:
            outcome.seen.update(_seen(outcome, contexts, session, screen))

    def costing() -> None:
        if request.plot or request.charts:
            outcome.cost = outcome.cost or _cost(session, request, screen)

    try:
        for part in (reaching, judging, scoring, writing, looking, costing):
            try:
                part()
            except LacliError as error:
                screen.error(error)
    except KeyboardInterrupt:
        screen.note("stopped; what follows is what was finished")
        outcome.interrupted = True


def _reach(outcome: Outcome, contexts: Contexts, session: Session, cost: Cost, screen: Screen) -> None:
    """Let an oracle answer for each contender of mode auto."""
    asking = Asking(contexts.open, session.sampler, session.text)
    for number, contender in enumerate(outcome.contenders):
        if contender.mode == "auto":
            screen.note("looking for the ceiling: an oracle that drafts plain decoding's own text")
            with oracles(asking, outcome.rounds, number, cost) as found:
                outcome.oracles[number] = found
                _go_through(found.rounds, screen)


def _seen(outcome: Outcome, contexts: Contexts, session: Session, screen: Screen) -> dict[int, Details]:
    seen = {}
    exchanges = outcome.rounds.exchanges
    inside = look_inside(outcome.contenders, exchanges, contexts.of, session.decoder_in)
    screen.note(f"looking behind the tokens a step: answers of up to {DETAIL_TOKENS} tokens, one a class and setting")
    with screen.progress(len(outcome.contenders), "settings") as advance:
        for number, details in inside:
            seen[number] = details
            advance()
    return seen


def _judged(outcome: Outcome, contexts: Contexts, session: Session, request: Request, screen: Screen) -> Judged:
    """Verdicts on texts that are not plain's; random numbers that a verifier draws otherwise make none."""
    if session.sampling.draws_otherwise:
        return {}
    if any(result.parted for result in outcome.found):
        screen.note("judging texts that are not plain decoding's")
    return judge(contexts.readable, outcome.contenders, outcome.found, session.sampler, every=request.check)


def _cost(session: Session, request: Request, screen: Screen) -> Cost:
    """What is known of the cost of rows, or a quick measurement; in no more than a tenth of the time there is.

    Nothing where the model is not in this process: mode auto learns it then.
    """
    if not session.copies.here:
        return Cost(())
    seconds = COST_S if request.wish.seconds is None else min(COST_S, request.wish.seconds / 10)
    return cost_beside(session, seconds, CostStore(request.costs), screen.note)


def _machine(session: Session, request: Request) -> Machine:
    model = session.model
    found = devices()
    return Machine(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        version=version(),
        backends=",".join(dict.fromkeys(device.name.rstrip("0123456789") for device in found)),
        cpu=", ".join(device.description for device in found if device.name == "CPU"),
        gpu=", ".join(device.description for device in found if device.is_gpu),
        model=str(model.path),
        description=model.description,
        model_size=model.size,
        parameters=model.parameters,
        loading=session.model_settings,
        flash_attention=",".join(request.axes.flash_attentions) or session.model_settings.flash_attention,
        context=session.engine.cells,
        sampling=describe_sampling(session.sampling),
        comparable=not session.sampling.draws_otherwise,
        model_memory=model.memory,
        peak_memory=peak_memory(),
        replicas=tuple(session.copies.names if len(session.copies.names) > 1 else ()),
    )


def _show(outcome: Outcome, request: Request, screen: Screen) -> None:
    if not outcome.found:
        screen.note("nothing was finished")
        return
    found, competing = outcome.found, outcome.contenders
    if request.form == "md":
        parts = [as_lines(found, competing, outcome.machine, outcome.judged, outcome.ceilings)]
        parts += [details_lines(outcome.seen, competing)] if outcome.seen else []
        parts += [score_table(outcome.scores, competing)] if outcome.scores else []
        parts += [law_sentence(compression_points(found, competing))]
        parts += [as_charts(found, competing, outcome.cost)] if request.charts else []
        screen.line("\n\n".join(part for part in [*parts, conclusion(found, competing, outcome.ceilings)] if part))
    else:
        screen.line(as_text(outcome.rows, request.form))
        screen.note(conclusion(found, competing, outcome.ceilings))
    if request.plot:
        title = f"lacli bench: {outcome.machine.description}"
        caption = f"{outcome.machine.where}; {outcome.machine.backends}, {outcome.machine.loading.thread_words}"
        drawn = save(request.plot, found, competing, outcome.cost, title, caption, outcome.ceilings)
        screen.note(f"the picture is in {request.plot}" if drawn else "there is nothing to draw a picture of")

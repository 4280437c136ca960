"""`lacli tune` as a whole: open a model, search, show what was found and remember it.

Takes settings; flags are read before, terminals are `ui.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, time

from lacli.amounts import counted
from lacli.bench.rounds import Asker
from lacli.bench.staging import asker_of
from lacli.bench.statistics import median
from lacli.bench.tasks import Task
from lacli.check import fixed_seed
from lacli.context import most_back
from lacli.cost.known import cost_beside, device_names, machine_key
from lacli.cost.store import CostStore
from lacli.ending import loading_model
from lacli.errors import Interrupted
from lacli.report import describe_sampling
from lacli.sampling import SamplingSettings
from lacli.session import Session
from lacli.settings import ModelSettings
from lacli.staircase import Staircase
from lacli.tune.candidates import candidates, loading_flags
from lacli.tune.field import quick, usual
from lacli.tune.report import as_lines
from lacli.tune.store import TunedStore
from lacli.tune.tune_json import as_json
from lacli.tune.tuner import PLAIN, Tuner, fitting
from lacli.tune.tuning import Setup, Tuning
from lacli.ui import Screen

COST_S, COST_SHARE = 20.0, 0.1
"""Seconds for the cost of rows where it is not known, and the part of the time that it may take."""


@dataclass(frozen=True)
class TunePlan:
    """What is asked, how long it may take, and where results are kept.

    tasks: the prompts; asked: where they come from, in words. folder: of results; costs: of the cost of rows. seconds:
    about how long, loading not counted. limit: tokens of an answer, None: as time allows. model: as it was typed.
    """

    tasks: tuple[Task, ...]
    asked: str
    folder: Path
    costs: Path
    seconds: float = 120.0
    limit: int | None = None
    model: str = ""
    json: bool = False
    verbose: bool = False


def tune(path: Path, loading: ModelSettings, sampling: SamplingSettings, plan: TunePlan, screen: Screen) -> None:
    """Search, print what was found and keep it.

    Raises Interrupted after Ctrl-C, when what was found so far is printed and nothing is kept.
    """
    screen.note(f"this takes about {plan.seconds:g} seconds (--seconds); Ctrl-C shows what was found until then")
    with loading_model(screen):
        opened = Session(path, loading, PLAIN, fixed_seed(sampling), verbose=plan.verbose)
    with opened as session:
        for note in session.notes:
            screen.note(note)
        tuning = _tuned(session, loading_flags(loading), plan, screen)
    if found := tuning.remembered(time()):
        tuning = replace(tuning, trouble=TunedStore(plan.folder).save(machine_key(path, loading), found))
    screen.line(json.dumps(as_json(tuning), ensure_ascii=False) if plan.json else as_lines(tuning))
    if tuning.interrupted:
        raise Interrupted("")


def forget(path: Path, loading: ModelSettings, folder: Path, screen: Screen, *, as_object: bool = False) -> None:
    """Forget what is remembered of a model's content, whatever it was tuned with, and say how much that was.

    as_object: as JSON. Raises LacliError where it cannot be removed.
    """
    count = TunedStore(folder).forget(machine_key(path, loading))
    if as_object:
        screen.line(json.dumps({"model": path.name, "forgotten": count}, ensure_ascii=False))
        return
    known = f"forgot {counted(count, 'tuned setting')}" if count else "there is no tuned setting"
    screen.note(f"{known} of {path.name}")


def _tuned(session: Session, flags: str, plan: TunePlan, screen: Screen) -> Tuning:
    begin, model, loading = perf_counter(), session.model, session.model_settings
    setup = Setup(
        model=plan.model,
        description=model.description,
        devices=device_names(loading.placement, offloaded=model.offloaded),
        loading=loading,
        asked=plan.asked,
        sampling=describe_sampling(session.sampling),
        flags=flags,
        temp=session.sampling.temp,
    )
    back = most_back(model, loading) if model.chain_only else -1
    if not back:
        return Tuning(setup, only_plain=model.chain_only)
    asker = asker_of(session)
    tasks = fitting(plan.tasks, asker, screen)
    try:
        staircase = _staircase(session, tasks, asker, plan, screen)
    except KeyboardInterrupt:
        return Tuning(setup, interrupted=True)
    found, lost = candidates(staircase, loading, back)
    if lost:
        screen.note(f"{counted(len(lost), 'setting')} cannot pay here: a step costs more than it can bring")
    tuner = Tuner(
        field=usual(session),
        quick=quick(session),
        asker=asker,
        tasks=tasks,
        found=found,
        end=begin + plan.seconds,
        screen=screen,
        back=back,
        limit=plan.limit,
        clock=perf_counter,
    )
    tuner.run()
    return Tuning(
        setup,
        seconds=perf_counter() - begin,
        ranked=tuner.search.ranked if tuner.search else (),
        lost=len(lost),
        confirmed=tuner.last.confirmed() if tuner.last else None,
        interrupted=tuner.interrupted,
    )


def _staircase(
    session: Session, tasks: Sequence[Task], asker: Asker, plan: TunePlan, screen: Screen
) -> Staircase | None:
    """The cost of rows behind prompts of usual length, which mode auto gets to know too; None where it is not known."""
    seconds = min(COST_S, COST_SHARE * plan.seconds)
    cost = cost_beside(session, seconds, CostStore(plan.costs), screen.note)
    if not cost.staircases:
        return None
    session.use_cost(cost)
    return cost.at(round(median([len(asker.prompt(task, [])) for task in tasks])))

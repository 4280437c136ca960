"""What a benchmark is asked to do, and what it can do here: who takes part, and how much fits into the time.

Notes go to the screen; the answers are `rounds.py`, what becomes of them `product.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lacli.bench.contenders import with_plain
from lacli.bench.plan import (
    Plan,
    Speed,
    Wish,
    by_class,
    choose,
)
from lacli.bench.rivals import Rival
from lacli.bench.rounds import Asker, Contender, Exchange
from lacli.bench.rows import Format
from lacli.bench.sweep import (
    Guesses,
    Point,
    ablation,
    points,
)
from lacli.bench.tasks import Task
from lacli.bench.warm_up import TOKENS, hopeless, speed_of
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.settings import ReplicaSettings
from lacli.session.session import Session
from lacli.settings import MODES, ModeName, Switch
from lacli.terminal.screen import Screen


@dataclass(frozen=True)
class Axes:
    """What is compared: modes, and the values of W, N, G and -fa where they are swept; or the paper's Table 3."""

    modes: tuple[ModeName, ...] = MODES
    windows: tuple[int, ...] = ()
    ngrams: tuple[int, ...] = ()
    guesses: tuple[Guesses, ...] = ()
    flash_attentions: tuple[Switch, ...] = ()
    ablation: bool = False


@dataclass(frozen=True)
class Request:
    """What is asked, who answers, how much of it, and how it is shown.

    suite: the name of the public set that the tasks are. check: judge every text that is not plain's. details: look
    behind the tokens a step, too. plot: a picture's file; charts: the same in the terminal. samples: a file for
    HumanEval's answers. costs: where the costs of steps are kept. replicas: copies of the model that answer together.
    template_variables: what the model's chat template gets beside a prompt.
    """

    tasks: tuple[Task, ...]
    axes: Axes = Axes()
    rivals: tuple[Rival, ...] = ()
    wish: Wish = Wish()
    form: Format = "md"
    suite: str = ""
    check: bool = False
    details: bool = False
    plot: Path | None = None
    charts: bool = False
    samples: str = ""
    costs: Path = Path()
    replicas: ReplicaSettings | None = None
    template_variables: Mapping[str, object] = field(default_factory=dict)
    verbose: bool = False


def points_of(session: Session, axes: Axes, screen: Screen) -> list[Point]:
    """What is compared, plain decoding first; what cannot run is said and left out."""
    modes: Sequence[ModeName] = axes.modes
    base = session.settings
    if why := session.model.chain_only:
        back = 0 if base.strict else session.most_back
        only = f"chains of at most {back} guesses are" if back else "plain decoding is"
        screen.note(f"only {only} measured: {why}")
        modes = [mode for mode in modes if mode != "lookahead"] if back else ["plain"]
        base = replace(base, back=back)
    sizes = (axes.windows, axes.ngrams, axes.guesses, axes.flash_attentions)
    if axes.ablation and not why:
        found, skipped = ablation(base, session.model_settings)
    else:
        found, skipped = points(modes, *sizes, base=base, loading=session.model_settings)
        if skipped and len({point.settings.mode for point in found}) < len(modes):
            hint = "lacli mask shows what a setting takes"
            raise UsageError(f"{skipped[0].label} cannot run: {skipped[0].reason}", hint)
    for each in skipped:
        screen.note(f"left out: {each.label}: {each.reason}")
    return with_plain(found or [Point(replace(base, mode="plain"))])


def asker_of(session: Session) -> Asker:
    """Prompts through the model's chat template, for the session's context."""

    def prompt(task: Task, answers: Sequence[str]) -> list[int]:
        history = list(zip(task.turns, answers, strict=False))
        return session.prompt(task.turns[len(answers)], task.system, raw=task.raw, history=history)

    return Asker(prompt, session.engine.cells)


@dataclass(frozen=True)
class Prompts:
    """What is asked here. sizes: tokens of each task's first prompt. shortest: the exchange that warms up."""

    sizes: Mapping[Task, int]
    shortest: Exchange


def prompts_of(asker: Asker, request: Request) -> Prompts:
    """The prompts of a request; raises LacliError where none fits into the context."""
    sizes = {task: len(asker.prompt(task, [])) for task in request.tasks}
    shortest = asker.exchange(replace(min(sizes, key=sizes.__getitem__), limit=request.wish.limit or TOKENS), [])
    if shortest is None:
        raise LacliError("no prompt fits into the context", f"-c {min(sizes.values()) + 512} for example")
    return Prompts(sizes, shortest)


def planned(
    competing: list[Contender], prompts: Prompts, cells: int, request: Request, screen: Screen
) -> tuple[list[Contender], Plan]:
    """Who takes part, and how much of the tasks is done in the time there is; those too slow for it are left out.

    cells: of the context.
    """
    screen.note("warming up")
    competing, speeds = _warm(competing, prompts.shortest, screen)

    def plan_for(kept: Sequence[int]) -> Plan:
        timed = [speeds[number] for number in kept]
        # The oracle beside mode auto takes hardly longer than another plain decoding would.
        oracle = [speeds[competing[number].baseline] for number in kept if competing[number].mode == "auto"]
        return choose(request.tasks, request.wish, [*timed, *oracle], prompts.sizes, cells)

    kept = list(range(len(competing)))
    plan = plan_for(kept)
    for number in hopeless(competing, speeds):
        if request.wish.seconds is None or plan.seconds <= request.wish.seconds:
            break
        dearer = speeds[number].step_s / speeds[competing[number].baseline].step_s
        screen.note(f"left out: {competing[number].label}: a step costs {dearer:.0f} times plain's and cannot pay")
        kept.remove(number)
        plan = plan_for(kept)
    screen.note(_described(plan, request))
    return [competing[number] for number in kept], plan


def _warm(competing: Sequence[Contender], exchange: Exchange, screen: Screen) -> tuple[list[Contender], list[Speed]]:
    """Everyone's speed; another program that cannot answer is left out, and why is said."""
    able, speeds = [], []
    for each in competing:
        try:
            speeds.append(speed_of(each, exchange))
            able.append(each)
        except LacliError as error:
            if each.point:
                raise
            screen.note(f"left out: {each.label}: {error}")
    return able, speeds


def _described(plan: Plan, request: Request) -> str:
    """What will be done, and what has been left out for want of time."""
    count, every = len(plan.tasks), len(request.tasks)
    prompts = f"{count} of {every} prompts" if count < every else "1 prompt" if every == 1 else f"{every} prompts"
    classes = f" in {len(by_class(plan.tasks))} classes" if len(by_class(plan.tasks)) > 1 else ""
    times = "once" if plan.repetitions == 1 else f"{plan.repetitions} times"
    limited = request.wish.seconds is not None and plan.seconds > request.wish.seconds
    longer = ", more than there should be" if limited else ""
    minutes = f"about {max(plan.seconds / 60, 0.1):.1f} minutes{longer}"
    return f"{prompts}{classes}, answers of up to {plan.limit} tokens, each {times}: {minutes}"

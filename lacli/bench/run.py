"""A benchmark from its request to its report: open a model, let all contenders answer until the time is up, print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from lacli.auto.measure import MeasurePlan
from lacli.bench.contenders import Contexts, contenders, points_of
from lacli.bench.report import as_lines, lined_up
from lacli.bench.results import Result, results
from lacli.bench.rounds import Asker, Contender, Exchange, Rounds, TimeUp
from lacli.bench.rows import Format, Machine, ResultRow, as_rows, as_text, machine_of
from lacli.bench.summary import summary
from lacli.bench.sweep import Axes, Point
from lacli.bench.tasks import Task, by_class, in_turns
from lacli.check.compare import fixed_seed
from lacli.errors import Interrupted, LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.replicas.copies import ALONE
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.stats import MIN_CORE_SHARE
from lacli.terminal.interrupts import ctrl_c_ends_at_once
from lacli.terminal.screen import Screen, loading_model
from lacli.text.files import PAGE, columns
from lacli.text.format import counted

COST_S = 6.0
"""Seconds for the cost of rows, where mode auto needs it and nothing is known; a tenth of a short benchmark at most."""

MAX_TOKENS = 128
"""Tokens of an answer without -n: in 16 mode auto has little to copy (0.98x for 1.19x in 128, the 0.5B shape)."""

WARM_UP_TOKENS = 4
"""Tokens of an answer that warms up: of two steps between the first and the last one is hardly held up."""


@dataclass(frozen=True)
class Limits:
    """How much is asked. `seconds`: for all of it. None for no further limit.

    `each`: prompts of a class. `repetitions`: answers of each contender to a prompt. `max_tokens`: of an answer.
    """

    seconds: float
    each: int | None = None
    repetitions: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Request:
    """What is asked, what is compared, how much of it, and how it is shown.

    `state`: the file of measured step costs. `leave_out`: go on without settings whose steps are too dear to pay.
    `details`: whole tables too. `replicas`: copies of the model that decode one answer together. `template_variables`:
    what the model's chat template gets beside a prompt. `begin`: the time of `perf_counter` from which seconds count.
    """

    tasks: tuple[Task, ...]
    state: Path
    limits: Limits
    axes: Axes = Axes()
    form: Format = "text"
    leave_out: bool = False
    details: bool = False
    replicas: ReplicaSettings | None = None
    template_variables: Mapping[str, object] = field(default_factory=dict)
    verbose: bool = False
    begin: float = field(default_factory=perf_counter)

    @property
    def deadline(self) -> float:
        """When the time is up, loading and warming up included."""
        return self.begin + self.limits.seconds

    @property
    def asked(self) -> list[Task]:
        """The tasks with the limits of their answers, class by class in turns, so that an early end is about all."""
        classes = [members[: self.limits.each] for members in by_class(self.tasks).values()]
        limit = self.limits.max_tokens
        return [replace(task, max_tokens=limit or task.max_tokens or MAX_TOKENS) for task in in_turns(classes)]


@dataclass
class BenchOutcome:
    """As much of a benchmark as there was time for.

    `core_share`: part of the time in which the threads of this process had a core, 1 where others decode.
    `tables`, `columns`: added by the programs of benchmarks/: tables for people, and columns by contender.
    """

    rounds: Rounds
    machine: Machine
    interrupted: bool = False
    core_share: float = 1.0
    tables: list[str] = field(default_factory=list)
    columns: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def contenders(self) -> Sequence[Contender]:
        return self.rounds.contenders

    @cached_property
    def found(self) -> list[Result]:
        return results(self.rounds)

    @property
    def rows(self) -> list[ResultRow]:
        return as_rows(self.found, self.machine, self.columns)

    @property
    def unfinished(self) -> list[str]:
        """The labels of contenders that have finished no answer, without those that were given up."""
        done = {result.number for result in self.found} | self.rounds.failures.keys()
        return [each.label for number, each in enumerate(self.contenders) if number not in done]

    @property
    def held_up(self) -> str:
        """A sentence on a machine that was busy with other work; empty on a calm one."""
        if self.core_share >= MIN_CORE_SHARE:
            return ""
        return f"Beside other work on this machine: the threads had a core for {self.core_share:.0%} of the time."


def benchmark(
    path: Path,
    model_settings: ModelSettings,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    request: Request,
    screen: Screen,
) -> None:
    """Run a benchmark and print it. Raises what `finish` raises."""
    with opened(path, model_settings, decode_settings, sampling, request, screen) as session:
        outcome = compared(session, request, screen)
    finish(outcome, request, screen)


@contextmanager
def opened(
    path: Path,
    model_settings: ModelSettings,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    request: Request,
    screen: Screen,
) -> Iterator[Session]:
    """A session for plain decoding, the baseline of all modes."""
    with loading_model(screen, verbose=request.verbose) as loading:
        session = Session(
            path,
            model_settings,
            replace(decode_settings, mode="plain"),
            fixed_seed(sampling),
            template_variables=request.template_variables,
            replicas=request.replicas,
            verbose=request.verbose,
            loading=loading,
        )
    with session:
        # Some are about plain, which is only the first of the modes here.
        screen.notes([note for note in session.notes if ALONE not in note], session.warnings)
        if not session.sampling.greedy:
            screen.note(f"sampling with seed {session.sampling.seed}")
        yield session


@contextmanager
def contexts_of(session: Session, points: Sequence[Point]) -> Iterator[tuple[Contexts, list[Contender]]]:
    """Contexts for points, and the points as contenders that answer in them."""
    with ExitStack() as stack:
        with ctrl_c_ends_at_once():
            contexts = stack.enter_context(Contexts(session, points))
        yield contexts, contenders(session, contexts, points)


def compared(
    session: Session,
    request: Request,
    screen: Screen,
    *,
    points: Sequence[Point] = (),
    beside: Sequence[Contender] = (),
) -> BenchOutcome:
    """Let all contenders answer until the time is up; Ctrl-C keeps what was finished.

    `points`: what is compared, by default the points of the request's axes. `beside`: other programs.
    """
    with contexts_of(session, points or points_of(session, request.axes, screen)) as (_, competing):
        limits, asker, tasks = request.limits, asker_of(session), request.asked
        rounds = Rounds([*competing, *beside], tasks, limits.repetitions, asker, request.deadline)
        try:
            if any(each.mode == "auto" for each in competing):
                # Where the model is in another process, auto learns it as it decodes.
                cost_s = min(COST_S, limits.seconds / 10)
                session.learn_cost(MeasurePlan(seconds=cost_s), request.state, screen.note, ctrl_c_ends_at_once())
            screen.note("warming up")
            rounds.warm_up(shortest(asker, tasks), screen, leave_out=request.leave_out)
        except KeyboardInterrupt:
            raise Interrupted("stopped before anything was compared") from None
        except TimeUp:
            raise too_short(limits) from None
        kinds, most = len(by_class(tasks)), max(task.max_tokens for task in tasks)
        of = f" of {kinds} classes" if kinds > 1 else ""
        prompts = f"{counted(sum(len(task.turns) for task in tasks), 'prompt')}{of} in turns"
        screen.note(f"{prompts}, answers of up to {counted(most, 'token')}, until {limits.seconds:g} s are over")
        interrupted, core_begin = False, process_time()
        try:
            _go_through(rounds, screen)
        except KeyboardInterrupt:
            screen.note("stopped; what follows is what was finished")
            interrupted = True
        share = _core_share(rounds, process_time() - core_begin, session.threads)
        for task in rounds.left_out:
            screen.note(f"left out: {task.kind} prompt of more tokens than the context of {asker.cells} holds")
        for number, error in rounds.failures.items():
            screen.note(f"{rounds.contenders[number].label} was given up: {error}")
        return BenchOutcome(rounds, machine_of(session), interrupted, share)


def shortest(asker: Asker, tasks: Sequence[Task]) -> Exchange:
    """The first turn with the shortest prompt, for a few tokens. Raises LacliError where none fits into the context."""
    asked = [asker.exchange(replace(task, max_tokens=WARM_UP_TOKENS), []) for task in tasks]
    if fitting := [exchange for exchange in asked if exchange]:
        return min(fitting, key=lambda exchange: len(exchange.prompt))
    least = min(len(asker.prompt(task, [])) for task in tasks)
    raise LacliError("no prompt fits into the context", f"-c {least + 512} for example")


def too_short(limits: Limits) -> LacliError:
    """The error of a benchmark whose time was up before plain decoding had answered anything."""
    return LacliError(
        f"{limits.seconds:g} s were over before an answer was finished", "give more --seconds, or less -n"
    )


def finish(outcome: BenchOutcome, request: Request, screen: Screen) -> None:
    """Print a benchmark: a summary, behind tables where they are wanted, or rows for programs.

    Raises Interrupted after Ctrl-C, when what was finished is printed, and LacliError where there is nothing to print.
    """
    if outcome.found and request.form == "json":
        if outcome.held_up:
            screen.note(outcome.held_up)
        screen.line(as_text(outcome.rows))
    elif outcome.found:
        screen.line(_for_people(outcome, request), drawn=True)
    if outcome.interrupted:
        raise Interrupted("")
    if not outcome.found:
        raise too_short(request.limits)


def asker_of(session: Session) -> Asker:
    """Prompts through the model's chat template, for the session's context."""

    def prompt(task: Task, answers: Sequence[str]) -> list[int]:
        history = list(zip(task.turns, answers, strict=False))
        return session.prompt(task.turns[len(answers)], task.system, raw=task.raw, history=history)

    return Asker(prompt, session.engine.cells)


def _for_people(outcome: BenchOutcome, request: Request) -> str:
    """The tables of -o md or of --details, those of others, and the summary."""
    found, machine, width = outcome.found, outcome.machine, columns()
    parts = list(outcome.tables)
    if request.form == "md":
        parts.insert(0, as_lines(found, machine))
    elif request.details:
        parts.insert(0, as_lines(found, machine, lined_up(width), width or PAGE))
    rounds = outcome.rounds
    said = summary(
        found,
        machine,
        asked=len(rounds.tasks) - len(rounds.left_out),
        seconds=request.limits.seconds,
        width=width or PAGE,
        unfinished=outcome.unfinished,
        busy=outcome.held_up,
    )
    return "\n\n".join([*parts, said])


def _go_through(rounds: Rounds, screen: Screen) -> None:
    """Take trials until they end, with a bar that counts the seconds."""
    begin = perf_counter()
    with screen.progress(round(rounds.deadline - begin), "seconds") as advance:
        shown = 0
        for _ in rounds:
            while shown < int(perf_counter() - begin):
                shown += 1
                advance()


def _core_share(rounds: Rounds, core_s: float, threads: int) -> float:
    """Part of the time in which the threads had a core, of `core_s` processor seconds; 1 where others decode too."""
    if not all(each.point for each in rounds.contenders):
        return 1.0
    trials = [trial for found in rounds.trials.values() for trial in found]
    wanted_s = sum(trial.core_wanted_s(threads) for trial in trials)
    return core_s / wanted_s if wanted_s else 1.0

"""A benchmark from its request to its report: open a model, let all contenders answer until the time is up, print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, process_time

from lacli.auto.measure import MeasurePlan
from lacli.bench.contenders import Contexts, points_of
from lacli.bench.report import Format, Machine, as_json, machine_of, summary, table
from lacli.bench.results import results
from lacli.bench.rounds import Ask, Exchange, Rounds, TimeUp
from lacli.bench.sweep import Axes, Point
from lacli.bench.tasks import Task, by_class, in_turns
from lacli.check.compare import fixed_seed
from lacli.engine.load import ModelEngine, open_engine
from lacli.errors import Interrupted, LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.settings import DecodeSettings
from lacli.stats import MIN_CORE_SHARE
from lacli.terminal.interrupts import ctrl_c_ends_at_once
from lacli.terminal.screen import Screen, loading_model, wrapped
from lacli.text.files import PAGE, columns
from lacli.text.format import counted

COST_S = 6.0
"""Seconds for the cost of rows, if mode auto needs it and nothing is known; a tenth of a short benchmark at most."""

MAX_TOKENS = 128
"""Tokens of an answer without -n: in a short one mode auto has little to copy."""

LEAST_ROOM = 8
"""Tokens that an answer must have room for behind its prompt, or the prompt is left out."""

WARM_UP_TOKENS = 4
"""Tokens of an answer that warms up: of two steps between the first and the last one is hardly held up."""


@dataclass(frozen=True)
class Request:
    """A model, what it is asked, what is compared, and how it is shown.

    `state`: the file of measured step costs. `seconds`: for all of it, from `begin` on, a time of `perf_counter`.
    `each`: prompts of a class, `repetitions`: answers of each contender to a prompt, `max_tokens`: of an answer, None
    for no further limit. `leave_out`: go on without settings whose steps are too dear to pay.
    `replicas`: copies of the model that decode one answer together. `template_variables`: for the chat template.
    """

    path: Path
    tasks: tuple[Task, ...]
    state: Path
    seconds: float
    model_settings: ModelSettings = ModelSettings()
    decode_settings: DecodeSettings = DecodeSettings()
    sampling: SamplingSettings = SamplingSettings()
    axes: Axes = Axes()
    each: int | None = None
    repetitions: int | None = None
    max_tokens: int | None = None
    form: Format = "text"
    leave_out: bool = False
    replicas: ReplicaSettings | None = None
    template_variables: Mapping[str, object] = field(default_factory=dict)
    verbose: bool = False
    begin: float = field(default_factory=perf_counter)

    @property
    def deadline(self) -> float:
        """When the time is up, loading and warming up included."""
        return self.begin + self.seconds

    @property
    def asked(self) -> list[Task]:
        """The tasks with the limits of their answers, class by class in turns, so that an early end is about all."""
        classes = [members[: self.each] for members in by_class(self.tasks).values()]
        limit = self.max_tokens
        return [replace(task, max_tokens=limit or task.max_tokens or MAX_TOKENS) for task in in_turns(classes)]


@dataclass
class BenchOutcome:
    """As much of a benchmark as there was time for. `core_share`: part of the time in which the threads had a core."""

    rounds: Rounds
    machine: Machine
    interrupted: bool
    core_share: float

    @property
    def held_up(self) -> str:
        """A sentence on a machine that was busy with other work; empty on a calm one."""
        if self.core_share >= MIN_CORE_SHARE:
            return ""
        return f"Beside other work on this machine: the threads had a core for {self.core_share:.0%} of the time."


def benchmark(request: Request, screen: Screen) -> None:
    """Run a benchmark and print it. Raises what `finish` raises."""
    with opened(request, screen) as engine:
        outcome = compared(engine, request, screen)
    finish(outcome, request, screen)


@contextmanager
def opened(request: Request, screen: Screen) -> Iterator[ModelEngine]:
    """A engine for plain decoding, the baseline of all modes."""
    with loading_model(screen, verbose=request.verbose) as loading:
        engine = open_engine(
            request.path,
            request.model_settings,
            replace(request.decode_settings, mode="plain"),
            fixed_seed(request.sampling),
            template_variables=request.template_variables,
            replicas=request.replicas,
            verbose=request.verbose,
            loading=loading,
        )
    with engine:
        screen.notes(engine.notes, engine.warnings)
        if not engine.sampling.greedy:
            screen.note(f"sampling with seed {engine.sampling.seed}")
        yield engine


def compared(engine: ModelEngine, request: Request, screen: Screen, points: Sequence[Point] = ()) -> BenchOutcome:
    """Let all contenders answer until the time is up; Ctrl-C keeps what was finished.

    `points`: what is compared, by default the points of the request's axes.
    """
    ask, tasks = asking(engine), request.asked
    chosen = points or points_of(engine, request.axes, screen)
    with ExitStack() as stack:
        with ctrl_c_ends_at_once():
            contexts = stack.enter_context(Contexts(engine, chosen))
        competing = [contexts.contender(point) for point in chosen]
        rounds = Rounds(competing, tasks, request.repetitions, ask, request.deadline)
        try:
            if any(each.mode == "auto" for each in competing):
                plan = MeasurePlan(seconds=min(COST_S, request.seconds / 10))
                engine.learn_cost(plan, request.state, screen.note, ctrl_c_ends_at_once())
            screen.note("warming up")
            rounds.warm_up(_shortest(ask, tasks), screen, leave_out=request.leave_out)
        except KeyboardInterrupt:
            raise Interrupted("stopped before anything was compared") from None
        except TimeUp:
            raise too_short(request) from None
        kinds, most = len(by_class(tasks)), max(task.max_tokens for task in tasks)
        of = f" of {kinds} classes" if kinds > 1 else ""
        prompts = f"{counted(sum(len(task.turns) for task in tasks), 'prompt')}{of} in turns"
        screen.note(f"{prompts}, answers of up to {counted(most, 'token')}, until {request.seconds:g} s are over")
        interrupted, core_begin = False, process_time()
        try:
            _go_through(rounds, screen)
        except KeyboardInterrupt:
            screen.note("stopped; what follows is what was finished")
            interrupted = True
        core_s = process_time() - core_begin
        wanted_s = sum(trial.core_wanted_s(engine.threads) for found in rounds.trials.values() for trial in found)
        for task in rounds.left_out:
            screen.note(f"left out: {task.kind} prompt of more tokens than the context of {engine.context.cells} holds")
        return BenchOutcome(rounds, machine_of(engine), interrupted, core_s / wanted_s if wanted_s else 1.0)


def finish(outcome: BenchOutcome, request: Request, screen: Screen) -> None:
    """Print a benchmark: a summary, behind a table in Markdown if it is wanted, or rows for programs.

    Raises Interrupted after Ctrl-C, when what was finished is printed, and LacliError if there is nothing to print.
    """
    rounds, machine, width = outcome.rounds, outcome.machine, columns() or PAGE
    found = results(rounds)
    if found and request.form == "json":
        if outcome.held_up:
            screen.note(outcome.held_up)
        screen.line(as_json(found, machine))
    elif found:
        finished = {result.number for result in found}
        unfinished = [each.label for number, each in enumerate(rounds.contenders) if number not in finished]
        words = summary(found, machine, unfinished, outcome.held_up)
        parts = [wrapped(words, width)]
        if request.form == "md":
            parts.insert(0, table(found, machine))
        screen.line("\n\n".join(parts), drawn=True)
    if outcome.interrupted:
        raise Interrupted("")
    if not found:
        raise too_short(request)


def asking(engine: ModelEngine) -> Ask:
    """Turns of tasks through the model's chat template, for the session's context."""

    def ask(task: Task, answers: Sequence[str]) -> Exchange | None:
        history = list(zip(task.turns, answers, strict=False))
        prompt = engine.prompt(task.turns[len(answers)], task.system, raw=task.raw, history=history)
        room = engine.context.cells - len(prompt)
        return Exchange(task, len(answers), tuple(prompt), min(task.max_tokens, room)) if room >= LEAST_ROOM else None

    return ask


def _shortest(ask: Ask, tasks: Sequence[Task]) -> Exchange:
    """The first turn with the shortest prompt, for a few tokens. Raises LacliError if none fits into the context."""
    asked = [ask(replace(task, max_tokens=WARM_UP_TOKENS), []) for task in tasks]
    if fitting := [exchange for exchange in asked if exchange]:
        return min(fitting, key=lambda exchange: len(exchange.prompt))
    raise LacliError("no prompt fits into the context", "give it more tokens with -c")


def too_short(request: Request) -> LacliError:
    """The error of a benchmark whose time was up before plain decoding had answered anything."""
    return LacliError(
        f"{request.seconds:g} s were over before an answer was finished", "give more --seconds, or less -n"
    )


def _go_through(rounds: Rounds, screen: Screen) -> None:
    """Take trials until they end, with a bar that counts the seconds."""
    begin = perf_counter()
    with screen.progress(round(rounds.deadline - begin), "seconds") as advance:
        shown = 0
        for _ in rounds:
            while shown < int(perf_counter() - begin):
                shown += 1
                advance()

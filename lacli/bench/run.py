"""A benchmark from its request to its report: open a model, let all contenders answer until the time is up, print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from lacli.auto.measure import MeasurePlan
from lacli.bench.report import Format, Machine, as_json, machine_of, summary, table
from lacli.bench.results import results
from lacli.bench.rounds import Ask, Contender, Exchange, Rounds, TimeUp, Trial, timed
from lacli.bench.sweep import Axes, Point, points
from lacli.bench.tasks import Task, by_class, in_turns
from lacli.check.compare import fixed_seed
from lacli.engine.engine import SequenceOptions
from lacli.engine.load import ModelEngine, open_engine
from lacli.engine.weights import OpenContext
from lacli.errors import Interrupted, LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import Capacity, ModelSettings, ReplicaSettings
from lacli.settings import DecodeSettings, ModeName
from lacli.terminal.interrupts import ctrl_c_ends_at_once
from lacli.terminal.screen import Screen, loading_model, wrapped
from lacli.text.files import PAGE, Closing, columns
from lacli.text.format import counted

COST_S = 6.0
"""Seconds for the cost of rows, if mode auto needs it and nothing is known; a tenth of a short benchmark at most."""

MAX_TOKENS = 128
"""Tokens of an answer without -n: in a short one mode auto has little to copy."""

LEAST_ROOM = 8
"""Tokens that an answer must have room for behind its prompt, or the prompt is left out."""

WARM_UP_TOKENS = 4
"""Tokens of an answer that warms up: of two steps between the first and the last one is hardly held up."""

FAMILY: dict[ModeName, str] = {
    "plain": "plain",
    "jacobi": "chain",
    "lookup": "chain",
    "lookahead": "tree",
    "auto": "auto",
}
"""The modes that share a context; plain and auto have their own, so that what other modes need cannot slow them."""


@dataclass(frozen=True)
class Request:
    """A model, what it is asked, what is compared, and how it is shown.

    `state`: the file of measured step costs. `seconds`: for all of it, from `begin` on, a time of `perf_counter`.
    `each`: prompts of a class, `repetitions`: answers of each contender to a prompt, `max_tokens`: of an answer, None
    for no further limit. `leave_out`: go on without settings whose steps cost more than they can bring.
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
    """As much of a benchmark as there was time for."""

    rounds: Rounds
    machine: Machine
    interrupted: bool


def benchmark(request: Request, screen: Screen) -> None:
    """Run a benchmark and print it. Raises what `finish` raises."""
    with opened(request, screen) as engine:
        outcome = compared(engine, request, screen)
    finish(outcome, request, screen)


@contextmanager
def opened(request: Request, screen: Screen) -> Iterator[ModelEngine]:
    """An engine for plain decoding, the baseline of all modes."""
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


def compared(engine: ModelEngine, request: Request, screen: Screen, chosen: Sequence[Point] = ()) -> BenchOutcome:
    """Let all contenders answer until the time is up; Ctrl-C keeps what was finished.

    `chosen`: what is compared, by default the points of the request's axes.
    """
    ask, tasks = asking(engine), request.asked
    chosen = chosen or points_of(engine, request.axes, screen)
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
        interrupted = False
        try:
            _go_through(rounds, screen)
        except KeyboardInterrupt:
            screen.note("stopped; what follows is what was finished")
            interrupted = True
        for task in rounds.left_out:
            screen.note(f"left out: {task.kind} prompt of more tokens than the context of {engine.context.cells} holds")
        return BenchOutcome(rounds, machine_of(engine), interrupted)


def finish(outcome: BenchOutcome, request: Request, screen: Screen) -> None:
    """Print a benchmark: a summary, behind a table in Markdown if it is wanted, or rows for programs.

    Raises Interrupted after Ctrl-C, when what was finished is printed, and LacliError if there is nothing to print.
    """
    rounds, machine, width = outcome.rounds, outcome.machine, columns() or PAGE
    found = results(rounds)
    if found and request.form == "json":
        screen.line(as_json(found, machine))
    elif found:
        finished = {result.number for result in found}
        unfinished = [each.label for number, each in enumerate(rounds.contenders) if number not in finished]
        words = summary(found, machine, unfinished)
        parts = [wrapped(words, width)]
        if request.form == "md":
            parts.insert(0, table(found, machine))
        screen.line("\n\n".join(parts), drawn=True)
    if outcome.interrupted:
        raise Interrupted("")
    if not found:
        raise too_short(request)


def points_of(engine: ModelEngine, axes: Axes, screen: Screen) -> list[Point]:
    """The points that `engine` can run, plain decoding first; the screen tells what is left out and why."""
    modes: Sequence[ModeName] = axes.modes
    base = engine.settings
    if why := engine.model.chain_only:
        back = 0 if base.strict else engine.max_rollback
        only = f"chains of at most {back} guesses are" if back else "plain decoding is"
        screen.note(f"only {only} measured: {why}")
        modes = [mode for mode in modes if mode != "lookahead"] if back else ["plain"]
        base = replace(base, max_rollback=back)
    found, skipped = points(replace(axes, modes=tuple(modes)), base=base, model_settings=engine.model_settings)
    if skipped and len({point.settings.mode for point in found}) < len(modes):
        raise UsageError(f"{skipped[0].label} cannot run: {skipped[0].reason}", "lacli mask shows what a setting takes")
    for each in skipped:
        screen.note(f"left out: {each.label}: {each.reason}")
    return with_plain(found or [Point(replace(base, mode="plain"))])


def with_plain(found: Sequence[Point]) -> list[Point]:
    """The points with plain decoding in front, as the baseline of the others."""
    plain = next((point for point in found if point.settings.mode == "plain"), Point(found[0].settings))
    # Plain decoding rolls nothing back, and being able to would cost it something.
    first = replace(plain, settings=replace(plain.settings, mode="plain", max_rollback=-1))
    return [first, *(point for point in found if point.settings.mode != "plain")]


class Contexts(Closing):
    """Open contexts by point, as few as there can be; close them before the engine, or use them in `with`.

    The session's own context is plain decoding's. Raises ModelLoadError when one does not fit into memory.
    """

    def __init__(self, engine: ModelEngine, chosen: Sequence[Point]) -> None:
        self._engine = engine
        on_backend = False if engine.sampler else engine.model.chooses
        self._contexts: dict[str, OpenContext] = {"plain": engine.context}
        families: dict[str, list[DecodeSettings]] = {}
        for point in chosen:
            families.setdefault(FAMILY[point.settings.mode], []).append(point.settings)
        with ExitStack() as stack:
            for family, settings in families.items():
                if family not in self._contexts:
                    opened = engine.weights.open(Capacity.of(settings), backend_greedy=on_backend)
                    self._contexts[family] = opened
                    stack.callback(opened.close)
            self._closing = stack.pop_all()

    def context(self, point: Point) -> OpenContext:
        """The context that a point decodes in."""
        return self._contexts[FAMILY[point.settings.mode]]

    def contender(self, point: Point) -> Contender:
        """A point as a contender, with a new engine for each answer."""

        def answer(exchange: Exchange) -> Trial:
            options = SequenceOptions(exchange.max_tokens, self._engine.verifier())
            return timed(
                self._engine.engine_in(self.context(point), point.settings), exchange, options, self._engine.text
            )

        return Contender(point, answer)

    def close(self) -> None:
        self._closing.close()


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

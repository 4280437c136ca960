"""A benchmark from its request to its report: let all points answer until the time is up, and print."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from time import perf_counter

from lacli.auto.step_cost import MeasurePlan, StepCost
from lacli.bench.plan import Axes, Point, Task, by_class, points
from lacli.bench.report import Format, Machine, as_json, machine_of, summary, table
from lacli.bench.results import results
from lacli.bench.rounds import Answer, Ask, Exchange, Rounds, Trial, time_answer
from lacli.check.compare import possible_modes
from lacli.engine.engine import Engine, SequenceOptions
from lacli.engine.load import ModelEngine
from lacli.engine.replicas import AnyContext
from lacli.errors import Interrupted, UsageError
from lacli.interrupts import ctrl_c_ends_at_once
from lacli.llamacpp.settings import ContextSize
from lacli.settings import ModeName
from lacli.terminal.input import PAGE, terminal_columns
from lacli.terminal.screen import Screen, wrapped
from lacli.text.format import counted


@dataclass(frozen=True)
class BenchRequest:
    """Prompts, the settings to compare, and the form of the report.

    `seconds`: for everything, from `begin` on, a time of `perf_counter`. `each`, `repetitions`: limits of prompts a
    class and of a point's answers to a prompt; None: no limit. `max_tokens`: limit of an answer, None for the task's
    own. `leave_out`: skip settings whose steps cost more than they can save.
    """

    tasks: tuple[Task, ...]
    seconds: float
    axes: Axes = Axes()
    each: int | None = None
    repetitions: int | None = None
    max_tokens: int | None = None
    form: Format = "text"
    leave_out: bool = False
    begin: float = field(default_factory=perf_counter)

    @property
    def asked(self) -> list[Task]:
        """The tasks with their answers' limits. The classes take turns, so that an early end leaves no class out."""
        turns = zip_longest(*(members[: self.each] for members in by_class(self.tasks).values()))
        tasks = [task for turn in turns for task in turn if task]
        # In an answer shorter than 128 tokens mode auto has little to copy.
        return [replace(task, max_tokens=self.max_tokens or task.max_tokens or 128) for task in tasks]


def compared(
    engine: ModelEngine, request: BenchRequest, screen: Screen, chosen: Sequence[Point] = ()
) -> tuple[Rounds, Machine]:
    """Let all points answer until the time is up, and return the trials. Ctrl-C ends early and keeps finished answers.

    `engine`: opened for plain decoding. `chosen`: points to compare, plain decoding first; () for the request's axes.
    """
    if not engine.sampling.greedy:
        screen.note(f"sampling with seed {engine.sampling.seed}")
    tasks, competing = request.asked, [*(chosen or choose_points(engine, request.axes, screen))]
    with ExitStack() as stack:
        with ctrl_c_ends_at_once():
            answer = make_answer(engine, competing, stack)
        deadline = request.begin + request.seconds
        rounds = Rounds(competing, tasks, make_ask(engine), answer, request.repetitions, deadline)
        if any(point.mode == "auto" for point in competing):
            plan = MeasurePlan(seconds=min(6.0, request.seconds / 10))
            engine.learn_cost(plan, screen.note)
        if request.leave_out and engine.cost:
            rounds.points = affordable(competing, engine.cost.at(0), screen)
        screen.note("warming up")
        rounds.warm_up()
        most = counted(max(task.max_tokens for task in tasks), "token")
        screen.note(f"answers of up to {most} to all prompts in turns, until {request.seconds:g} s are over")
        try:
            with screen.waiting() as say:
                for _ in rounds:
                    say(f"{max(deadline - perf_counter(), 0):.0f} s left")
        except KeyboardInterrupt:
            screen.note("stopped; the finished answers follow")
            rounds.interrupted = True
        for task in rounds.left_out:
            screen.note(f"left out: a {task.kind} prompt longer than the context of {engine.context.cells} tokens")
        return rounds, machine_of(engine)


def finish(rounds: Rounds, machine: Machine, request: BenchRequest, screen: Screen) -> None:
    """Print the report in the request's form. Raises Interrupted if Ctrl-C ended the rounds."""
    found = results(rounds)
    if found and request.form == "json":
        screen.line(as_json(found, machine))
    elif found:
        unanswered = [point.label for number, point in enumerate(rounds.points) if not rounds.has_answered(number)]
        words = wrapped(summary(found, machine, unanswered), terminal_columns() or PAGE)
        parts = [table(found, machine), words] if request.form == "md" else [words]
        screen.line("\n\n".join(parts))
    if rounds.interrupted:
        raise Interrupted("")


def choose_points(engine: ModelEngine, axes: Axes, screen: Screen) -> list[Point]:
    """Return plain decoding and the points of `axes` that can run; show the others. Raises UsageError if none can."""
    base, modes = possible_modes(engine, axes.modes, screen.note)
    found, skipped = points(replace(axes, modes=tuple(modes)), base, engine.model_settings)
    if skipped and not found[1:]:
        raise UsageError(f"no setting can run: {skipped[0]}", "try a smaller -W, -N or -G, or a larger -b")
    for each in skipped:
        screen.note(f"left out: {each}")
    return found


def affordable(competing: Sequence[Point], cost: StepCost, screen: Screen) -> list[Point]:
    """Return `competing` without the jacobi and lookahead points that are too slow. The screen shows these points.

    A point is too slow if a step of half its `max_rows` costs more plain steps than a full step can give tokens.
    """
    found = []
    for point in competing:
        times_plain = cost.relative(point.settings.max_rows // 2)
        # Other modes may draft less.
        if point.mode in ("jacobi", "lookahead") and times_plain > point.settings.max_step_tokens:
            why = f"a step takes {times_plain:.0f} plain steps, more than the tokens it can bring"
            screen.note(f"left out: {point.label}: {why}; --modes measures it anyway")
        else:
            found.append(point)
    return found


def make_answer(engine: ModelEngine, competing: Sequence[Point], stack: ExitStack) -> Answer:
    """Return a function that decodes an answer of a point with a new engine.

    All points of a mode share a context; plain decoding uses the context of `engine`, and `stack` closes the others.
    Raises ModelLoadError if a context does not fit into memory.
    """
    on_backend = False if engine.sampler else engine.model.chooses
    contexts: dict[ModeName, AnyContext] = {"plain": engine.context}
    for mode in dict.fromkeys(point.mode for point in competing):
        if mode not in contexts:
            capacity = ContextSize.of(*[point.settings for point in competing if point.mode == mode])
            contexts[mode] = engine.weights.open(capacity, backend_greedy=on_backend)
            stack.callback(contexts[mode].close)

    def answer(point: Point, exchange: Exchange, deadline: float) -> Trial:
        options = SequenceOptions(exchange.max_tokens, engine.verifier)
        own = Engine(contexts[point.mode], point.settings, cost=engine.cost)
        return time_answer(own, exchange, options, engine.text, deadline)

    return answer


def make_ask(engine: ModelEngine) -> Ask:
    """Return a function that makes a task's next turn from earlier answers; it gives None if under 8 cells are left."""

    def ask(task: Task, answers: Sequence[str]) -> Exchange | None:
        history = list(zip(task.turns, answers, strict=False))
        prompt = engine.prompts.question(task.turns[len(answers)], task.system, raw=task.raw, history=history)
        room = engine.context.cells - len(prompt)
        return Exchange(task, len(answers), tuple(prompt), min(task.max_tokens, room)) if room >= 8 else None

    return ask

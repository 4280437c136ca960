"""A benchmark from its request to its report: open a model, let all contenders answer, judge, print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from lacli.auto.measure import MeasurePlan
from lacli.auto.step_cost import Cost
from lacli.bench import plot
from lacli.bench.contenders import Contexts, Judged, contenders, judge, points_of
from lacli.bench.oracle import Ceilings, oracles
from lacli.bench.plan import BenchPlan, BenchPrompts, Wish, planned, prompts_of
from lacli.bench.report import as_lines, lined_up
from lacli.bench.results import Result, results
from lacli.bench.rounds import Asker, Contender, Rounds
from lacli.bench.rows import Format, Machine, ResultRow, as_rows, as_text, machine_of
from lacli.bench.summary import Typed, beside_plain, recommendation, summary
from lacli.bench.sweep import Axes, Point
from lacli.bench.tasks import Task
from lacli.check.compare import fixed_seed, refuse_other_draws
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

BUG_FOUND = 3
"""The exit code of --check, as of lacli check."""

LATE = 1.5
"""Factor on the time that was asked for, or planned where that is longer, after which no further answer begins.

The time counts from the benchmark's beginning. On a machine that became busy after the plan was made a benchmark of
129 s would take more than an hour.
"""

EARLY = 0.5
"""Part of the planned time below which the plan is made anew: the machine was busy while it was made.

Plans of 39 and 29 s that were made beside other work were done after 9 and 12 s; a calm one of 42 s took 46 s.
"""


@dataclass(frozen=True)
class Request:
    """What is asked, what is compared, how much of it, and how it is shown.

    `state`: the file of measured step costs. `details`: whole tables too.
    `check`: judge every text that is not plain's. `plot`: a picture's file.
    `replicas`: copies of the model that decode one answer together. `parallel`: numbers of texts to decode at a time,
    of `lacli bench --parallel`. `template_variables`: what the model's chat template gets beside a prompt.
    """

    tasks: tuple[Task, ...]
    state: Path
    axes: Axes = Axes()
    wish: Wish = Wish()
    form: Format = "text"
    typed: Typed = Typed("MODEL")
    details: bool = False
    check: bool = False
    plot: Path | None = None
    replicas: ReplicaSettings | None = None
    parallel: tuple[int, ...] = ()
    template_variables: Mapping[str, object] = field(default_factory=dict)
    verbose: bool = False


@dataclass
class BenchOutcome:
    """A finished benchmark, or as much of it as there was time for.

    `core_share`: part of the time in which the threads of this process had a core, 1 where others decode. `cost`: of
    steps, where mode auto takes part. `tables`, `columns`: added by the programs of benchmarks/: tables for
    people, and columns by contender.
    """

    rounds: Rounds
    machine: Machine
    interrupted: bool = False
    core_share: float = 1.0
    judged: Judged = field(default_factory=dict)
    cost: Cost | None = None
    ceilings: Ceilings = field(default_factory=dict)
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
        return as_rows(self.found, self.machine, self.judged, self.ceilings, self.columns)

    @property
    def held_up(self) -> str:
        """A sentence on a machine that was busy with other work; empty on a calm one."""
        if self.core_share >= MIN_CORE_SHARE:
            return ""
        share = f"the threads had a core for {self.core_share:.0%} of the time"
        return f"The machine was busy, {share}: these numbers say little."

    @property
    def bugs(self) -> int:
        """Texts that rounding does not explain."""
        return sum(run.bug for run in self.judged.values())


def benchmark(
    path: Path,
    model_settings: ModelSettings,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    request: Request,
    screen: Screen,
) -> int:
    """Run a benchmark and print it; returns the exit code. Raises what `finish` raises."""
    with opened(path, model_settings, decode_settings, sampling, request, screen) as session:
        outcome = compared(session, request, screen)
    return finish(outcome, request, screen)


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
    if request.check:
        refuse_other_draws(sampling)
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
    """Let all contenders answer and look into what they said.

    `points`: what is compared, by default the points of the request's axes. `beside`: other programs.
    """
    with contexts_of(session, points or points_of(session, request.axes, screen)) as (contexts, competing):
        outcome = measured(session, [*competing, *beside], request, screen)
        if not outcome.interrupted:
            look_into(outcome, contexts, session, request, screen)
    return outcome


def measured(
    session: Session,
    competing: list[Contender],
    request: Request,
    screen: Screen,
    asking: tuple[Asker, BenchPrompts] | None = None,
) -> BenchOutcome:
    """Let all contenders answer as much as fits into the time; Ctrl-C keeps what was finished.

    `asking`: the prompts of the request's tasks, where they are not those of a text each; they end with the time.
    """
    begin = perf_counter()

    def time_left() -> float:
        return (request.wish.seconds or 0.0) - (perf_counter() - begin)

    asker = asking[0] if asking else asker_of(session)
    prompts = asking[1] if asking else prompts_of(asker, request.tasks, request.wish)
    cost = None
    try:
        if any(each.mode == "auto" for each in competing):
            # The session tells mode auto too; where the model is in another process, auto learns it as it decodes.
            cost_s = COST_S if request.wish.seconds is None else min(COST_S, request.wish.seconds / 10)
            cost = session.learn_cost(MeasurePlan(seconds=cost_s), request.state, screen.note, ctrl_c_ends_at_once())
        warm_begin, core_begin = perf_counter(), process_time()
        competing, plan = planned(competing, prompts, asker.cells, request.tasks, request.wish, screen)
        if session.threads and all(each.point for each in competing):
            _tell_busy(session.threads, perf_counter() - warm_begin, process_time() - core_begin, screen)
    except KeyboardInterrupt:
        raise Interrupted("stopped before anything was compared") from None
    rounds = Rounds(competing, plan.tasks, plan.repetitions, asker)
    words, seconds = (f"times {prompts.per_task} answers", request.wish.seconds) if asking else ("answers", None)
    if request.wish.is_timed and not asking:
        seconds = last_answer_s(request.wish.seconds, plan.seconds, perf_counter() - begin)
    interrupted = False
    core_begin = process_time()
    try:
        spent_s = _go_through(rounds, screen, words, seconds)
        left_s = time_left()
        if request.wish.is_timed and not asking and spent_s < min(EARLY * plan.seconds, left_s):
            screen.note(f"done after {spent_s:.0f} s: the machine was busy while that was planned, so once more")
            # A sentence has this number where the time is too short.
            wish = replace(request.wish, seconds=round(left_s, 1))
            competing, plan = planned(competing, prompts, asker.cells, request.tasks, wish, screen)
            again, again_begin = Rounds(competing, plan.tasks, plan.repetitions, asker), process_time()
            seconds = last_answer_s(request.wish.seconds, plan.seconds, perf_counter() - begin)
            spent_s = _go_through(again, screen, words, seconds)
            # Ctrl-C before this leaves the first ones, which are complete.
            rounds, core_begin = again, again_begin
        if request.wish.is_timed and not (asking or rounds.is_cut):
            use_time_left(rounds, plan, time_left(), spent_s, screen)
    except KeyboardInterrupt:
        interrupted = True
    share = _core_share(rounds, process_time() - core_begin, session.threads)
    if interrupted or rounds.is_cut:
        why = "stopped" if interrupted else "the time was up"
        done, most = (prompts.per_task * count for count in (sum(map(len, rounds.trials.values())), rounds.most))
        screen.note(f"{why} after {done} of {most} answers; what follows is about these")
    for task in rounds.left_out:
        screen.note(f"left out: {task.kind} prompt of more tokens than the context of {asker.cells} holds")
    for number, error in rounds.failures.items():
        screen.note(f"{rounds.contenders[number].label} was given up: {error}")
    return BenchOutcome(rounds, machine_of(session), interrupted, share, cost=cost)


def last_answer_s(asked_s: float | None, planned_s: float, spent_s: float) -> float:
    """Seconds from now after which no further answer begins. `spent_s`: since the benchmark's beginning.

    The plan has its own time in any case: the warm-up is not in it.
    """
    return max(planned_s, LATE * max(asked_s or 0.0, planned_s) - spent_s)


def _tell_busy(threads: int, seconds: float, core_s: float, screen: Screen) -> None:
    """Say before the answers that a warm-up of `seconds` had less than one core, `core_s` processor seconds.

    One is at work all the time, in Python too; how many more of the `threads` are depends on the model.
    """
    if core_s < MIN_CORE_SHARE * seconds:
        fewer = "; -t 1 needs one core only" if threads > 1 else ""
        share = f"the warm-up had a core for {core_s / seconds:.0%} of its time"
        screen.note(f"the machine is busy, {share}: this may take longer than planned{fewer}")


def use_time_left(rounds: Rounds, plan: BenchPlan, left_s: float, spent_s: float, screen: Screen) -> None:
    """Let the contenders answer as many further tasks of the plan as fit into `left_s` seconds.

    `spent_s`: those that the plan's own tasks took. The oracle beside mode auto takes its part of both behind them.
    """
    count = len(rounds.contenders)
    task_s = spent_s / len(plan.tasks) * (count + any(each.mode == "auto" for each in rounds.contenders)) / count
    own_s = len(plan.tasks) * task_s - spent_s
    further = plan.further[: max(int((left_s - own_s) / task_s), 0)]
    if not further:
        return
    prompts = counted(sum(len(task.turns) for task in further), "more prompt")
    screen.note(f"asking {prompts} in the time that is left")
    more = Rounds(rounds.contenders, further, plan.repetitions, rounds.asker, failures=dict(rounds.failures))
    try:
        _go_through(more, screen, seconds=LATE * left_s)
    finally:
        rounds.take_in(more)


def _core_share(rounds: Rounds, core_s: float, threads: int) -> float:
    """Part of the time in which the threads had a core, of `core_s` processor seconds; 1 where others decode too."""
    if not all(each.point for each in rounds.contenders):
        return 1.0
    trials = [trial for found in rounds.trials.values() for trial in found]
    wanted_s = sum(trial.core_wanted_s(threads) for trial in trials)
    return core_s / wanted_s if wanted_s else 1.0


def look_into(outcome: BenchOutcome, contexts: Contexts, session: Session, request: Request, screen: Screen) -> None:
    """Find the ceiling and judge the texts. A part that fails is said; Ctrl-C leaves the rest out.

    Random numbers that a verifier draws otherwise leave nothing to compare.
    """
    if session.sampling.draws_otherwise:
        return
    try:
        for part in (_reach, _judge):
            try:
                part(outcome, contexts, session, request, screen)
            except LacliError as error:
                screen.error(error)
    except KeyboardInterrupt:
        screen.note("stopped; what follows is what was finished")
        outcome.interrupted = True


def finish(outcome: BenchOutcome, request: Request, screen: Screen) -> int:
    """Print a benchmark; returns the exit code. Raises Interrupted after Ctrl-C, when what was finished is printed."""
    show(outcome, request, screen)
    if outcome.interrupted:
        raise Interrupted("")
    return BUG_FOUND if request.check and outcome.bugs else 0


def show(outcome: BenchOutcome, request: Request, screen: Screen) -> None:
    """Print a summary, behind tables where they are wanted, or rows for programs; write the picture."""
    if not outcome.found:
        screen.note("nothing was finished")
        return
    machine = outcome.machine
    if request.form in ("text", "md"):
        screen.line(_for_people(outcome, request), drawn=True)
    else:
        if outcome.held_up:
            screen.note(outcome.held_up)
        screen.line(as_text(outcome.rows, request.form))
        if compared := beside_plain(outcome.found):
            advice = recommendation(compared, request.typed)
            screen.note(f"{advice.reason}: {advice.command}")
    if request.plot and (bars := plot.speedups(outcome.found, outcome.ceilings)):
        caption = f"{machine.where}; {machine.backends}, {machine.thread_words}"
        plot.save(request.plot, bars, f"lacli bench: {machine.model_type}", caption)
        screen.note(f"the picture is in {request.plot}")
    elif request.plot:
        screen.note("there is nothing to draw a picture of")


def _for_people(outcome: BenchOutcome, request: Request) -> str:
    """The tables of -o md or of --details, those of others, and the summary."""
    found, machine, judged = outcome.found, outcome.machine, outcome.judged
    width = columns()
    parts = list(outcome.tables)
    if request.form == "md":
        parts.insert(0, as_lines(found, machine, judged, outcome.ceilings))
    elif request.details:
        parts.insert(0, as_lines(found, machine, judged, outcome.ceilings, lined_up(width), width or PAGE))
    wide = width or PAGE
    said = summary(found, judged, machine, outcome.ceilings, typed=request.typed, width=wide, busy=outcome.held_up)
    return "\n\n".join(part for part in (*parts, said) if part)


def asker_of(session: Session) -> Asker:
    """Prompts through the model's chat template, for the session's context."""

    def prompt(task: Task, answers: Sequence[str]) -> list[int]:
        history = list(zip(task.turns, answers, strict=False))
        return session.prompt(task.turns[len(answers)], task.system, raw=task.raw, history=history)

    return Asker(prompt, session.engine.cells)


def _go_through(rounds: Rounds, screen: Screen, words: str = "answers", seconds: float | None = None) -> float:
    """Take all trials that fit into `seconds`, with a bar that counts them, and return the seconds that they took."""
    begin = perf_counter()
    with screen.progress(rounds.most, words) as advance:
        for _ in rounds.within(seconds):
            advance()
    return perf_counter() - begin


def _reach(outcome: BenchOutcome, contexts: Contexts, session: Session, request: Request, screen: Screen) -> None:
    """Let an oracle answer for each contender of mode auto."""
    cost = outcome.cost
    # The ceiling takes time of its own: there is none where answers were cut for it, or where it says little.
    leaves_out = outcome.rounds.is_cut or (request.wish.is_timed and outcome.held_up)
    if cost is None or not cost.staircases or leaves_out:
        return
    for number, contender in enumerate(outcome.contenders):
        if contender.mode == "auto":
            screen.note("measuring how fast guesses that all come true would be")
            with oracles(outcome.rounds, number, cost, contexts.open, session.sampler, session.text) as oracle:
                try:
                    _go_through(oracle.rounds, screen, "the ceiling")
                finally:
                    outcome.ceilings = {**outcome.ceilings, **oracle.ceilings}


def _judge(outcome: BenchOutcome, contexts: Contexts, session: Session, request: Request, screen: Screen) -> None:
    """Give verdicts on texts that are not plain's."""
    if any(result.parted for result in outcome.found):
        screen.note("judging texts that are not plain decoding's")
    outcome.judged = judge(contexts.readable, outcome.found, session.sampler, every=request.check)

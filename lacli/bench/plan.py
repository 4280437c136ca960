"""How much of a benchmark fits into its time: prompts a class, repetitions, tokens of an answer, and who takes part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from time import perf_counter

from lacli.bench.rounds import Asker, Contender, Exchange
from lacli.bench.tasks import Task
from lacli.errors import LacliError
from lacli.terminal.screen import Screen
from lacli.text.format import counted, listed

FULL = (8, 5, 128)
LADDER = (
    *(FULL, (8, 3, 128), (8, 2, 128), (8, 2, 96), (6, 2, 96), (6, 2, 64), (5, 2, 64), (4, 2, 64), (3, 2, 64)),
    *((2, 2, 64), (1, 2, 64), (1, 1, 64), (1, 1, 48), (1, 1, 32), (1, 1, 16)),
)
"""(prompts a class, repetitions, tokens of an answer), from the most to the least.

Prompts differ more than repetitions, so their number is reduced later, and answers below SHORT tokens come last: few
answers are uncertain and say so, and short ones mislead.
"""

SHORT = 64
"""Tokens of an answer below which mode auto has little to copy.

At 16 it was 0.98x on the 0.5B shape, at 128 1.19x (calm, two threads, ten and six prompts, 2026-11-25).
"""

FEWER_CLASSES = (6, 4, 3, 2, 1)
"""Numbers of classes below the last step of LADDER."""

QUICK_S = 0.1
"""A warm-up step slower than this is timed alone; after a quicker one WARM_UP_TOKENS are timed."""

WARM_UP_TOKENS = 24


@dataclass(frozen=True)
class Wish:
    """What the user has fixed; None leaves it to the plan.

    `max_tokens`: of an answer. `seconds`: None for no limit. `names_contenders`: none is left out for longer answers
    or for more of them.
    """

    each: int | None = None
    repetitions: int | None = None
    max_tokens: int | None = None
    seconds: float | None = None
    names_contenders: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether the time decides how many prompts are answered, and how often."""
        return self.seconds is not None and not (self.each and self.repetitions)


@dataclass(frozen=True)
class Speed:
    """A contender's warm-up, in seconds: a token, a step, a token of a prompt, and an answer's fixed part.

    `start_s`: what an answer takes beside prefill and steps (a program's start).
    """

    token_s: float
    step_s: float
    prompt_s: float
    start_s: float = 0.0


@dataclass(frozen=True)
class BenchPlan:
    """What is run: tasks with the limits of their answers, and how often.

    `seconds`: how long it takes at the speed of the warm-up if no answer ends early. `further`: the tasks that follow
    where it takes less; none where their number was asked for.
    """

    tasks: tuple[Task, ...]
    repetitions: int
    seconds: float
    further: tuple[Task, ...] = ()

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest answer."""
        return max(task.max_tokens for task in self.tasks)


@dataclass(frozen=True)
class BenchPrompts:
    """The tasks in tokens. `sizes`: tokens of each task's first prompt. `shortest`: the exchange that warms up.

    `per_task`: prompts that a task stands for, each of which is answered.
    """

    sizes: Mapping[Task, int]
    shortest: Exchange
    per_task: int = 1


def prompts_of(asker: Asker, tasks: Sequence[Task], wish: Wish) -> BenchPrompts:
    """Tokenize the first turn of each task; raises LacliError where none fits into the context."""
    sizes = {task: len(asker.prompt(task, [])) for task in tasks}
    shortest = asker.exchange(
        replace(min(sizes, key=sizes.__getitem__), max_tokens=wish.max_tokens or WARM_UP_TOKENS), []
    )
    if shortest is None:
        raise LacliError("no prompt fits into the context", f"-c {min(sizes.values()) + 512} for example")
    return BenchPrompts(sizes, shortest)


def planned(
    competing: list[Contender], prompts: BenchPrompts, cells: int, tasks: Sequence[Task], wish: Wish, screen: Screen
) -> tuple[list[Contender], BenchPlan]:
    """Warm up, and choose the contenders and the plan that fit into the time.

    `cells`: of the context. Where time is short contenders are left out that cannot win at the speed they have shown,
    and fixed modes for whose sake answers would be short, or fewer short ones.
    """
    screen.note("warming up")
    competing, speeds = _warm(competing, prompts.shortest, screen)
    speeds = [replace(speed, token_s=prompts.per_task * speed.token_s) for speed in speeds]

    def plan_for(kept: Sequence[int]) -> BenchPlan:
        timed = [speeds[number] for number in kept]
        # The oracle beside mode auto takes hardly longer than another plain decoding would.
        reaching = [number for number in kept if competing[number].mode == "auto" and prompts.per_task == 1]
        oracle = [speeds[competing[number].baseline] for number in reaching]
        return choose(tasks, wish, [*timed, *oracle], prompts.sizes, cells)

    kept = list(range(len(competing)))
    plan = plan_for(kept)
    for number in hopeless(competing, speeds):
        if wish.seconds is None or plan.seconds <= wish.seconds:
            break
        dearer = speeds[number].step_s / speeds[competing[number].baseline].step_s
        screen.note(f"left out: {competing[number].label}: a step costs {dearer:.0f} times plain's and cannot pay")
        kept.remove(number)
        plan = plan_for(kept)
    may_go = wish.seconds is not None and not (wish.names_contenders or wish.max_tokens)
    spare = [number for number in fixed_modes(competing) if number in kept] if may_go else []
    if spare and plan.max_tokens < SHORT:
        without = [number for number in kept if number not in spare]
        other = plan_for(without)
        if (other.max_tokens, len(other.tasks)) > (plan.max_tokens, len(plan.tasks)):
            names = listed([competing[number].label for number in spare], "and")
            gain = "answers are longer" if other.max_tokens > plan.max_tokens else "there are more answers"
            screen.note(f"left out, so that {gain}: {names}; --modes names what is compared")
            kept, plan = without, other
    screen.note(_described(plan, tasks, wish, prompts.per_task))
    return [competing[number] for number in kept], plan


def speed_of(contender: Contender, exchange: Exchange) -> Speed:
    """Time the beginning of an answer. The first step of all is not timed: it may load kernels and make buffers.

    A step that is timed alone counts as one token, so at its dearest. Raises what the contender raises.
    """
    contender.answer(replace(exchange, max_tokens=1))
    speed = _timed(contender, replace(exchange, max_tokens=1))
    if speed.step_s > QUICK_S:
        return speed
    return _timed(contender, replace(exchange, max_tokens=min(WARM_UP_TOKENS, exchange.max_tokens)))


def hopeless(contenders: Sequence[Contender], speeds: Sequence[Speed]) -> list[int]:
    """Contenders slower than plain even if every step brought as many tokens as it can, dearest first."""
    lost = []
    for number, contender in enumerate(contenders):
        if contender.point and contender.mode != "plain":
            most = contender.point.settings.max_step_tokens
            if speeds[number].step_s > most * speeds[contender.baseline].step_s:
                lost.append(number)
    return sorted(lost, key=lambda number: speeds[number].step_s, reverse=True)


def fixed_modes(contenders: Sequence[Contender]) -> list[int]:
    """Contenders of a mode other than plain and auto, if auto takes part."""
    if not any(each.mode == "auto" for each in contenders):
        return []
    return [number for number, each in enumerate(contenders) if each.point and each.mode not in ("plain", "auto")]


def choose(
    tasks: Sequence[Task], wish: Wish, speeds: Sequence[Speed], sizes: Mapping[Task, int], cells: int
) -> BenchPlan:
    """The largest plan that fits, or the smallest of all. `sizes`: tokens of the first prompts; `cells`: context."""
    plan = None
    for plan in _plans(tasks, wish, speeds, sizes, cells):
        if wish.seconds is None or plan.seconds <= wish.seconds:
            break
    assert plan, "there is at least one plan"
    return plan


def by_class(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """The tasks of each class, the classes in the order in which they first appear."""
    classes: dict[str, list[Task]] = {}
    for task in tasks:
        classes.setdefault(task.kind, []).append(task)
    return classes


def _plans(
    tasks: Sequence[Task], wish: Wish, speeds: Sequence[Speed], sizes: Mapping[Task, int], cells: int
) -> Iterator[BenchPlan]:
    """Ever smaller ones; without a time limit the first is everything."""
    classes = by_class(tasks)
    ladder = LADDER if wish.seconds is not None else ((len(tasks), *FULL[1:]),)
    fixed = wish.seconds is None or (wish.each and wish.repetitions and wish.max_tokens)
    fewer = [] if fixed else [count for count in FEWER_CLASSES if count < len(classes)]
    counts = [len(classes)] * len(ladder) + fewer
    for step, count in enumerate(counts):
        each, repetitions, limit = ladder[min(step, len(ladder) - 1)]
        # Class by class in turns, so that what an interrupt leaves is about all of them.
        rows = [*zip_longest(*(members[: wish.each] for members in [*classes.values()][:count]))]
        repeats = wish.repetitions or repetitions
        limited, costs = [], []
        for task in (task for row in rows for task in row if task):
            room = max(cells - sizes[task], 1)
            limited.append(replace(task, max_tokens=min(_max_tokens(task, limit, wish), room)))
            costs.append(repeats * _cost(limited[-1], speeds, sizes[task]))
        chosen = sum(task is not None for row in rows[: wish.each or each] for task in row)
        further = limited[chosen:] if wish.seconds is not None else []
        yield BenchPlan(tuple(limited[:chosen]), repeats, sum(costs[:chosen]), tuple(further))


def _max_tokens(task: Task, limit: int, wish: Wish) -> int:
    if wish.max_tokens:
        return wish.max_tokens
    return task.max_tokens or limit if wish.seconds is None else min(task.max_tokens or limit, limit)


def _cost(task: Task, speeds: Sequence[Speed], size: int) -> float:
    """Seconds for everyone to answer all turns once; a turn's prompt holds the turns before it."""
    turns = len(task.turns)
    read = sum((turn + 1) * size + turn * task.max_tokens for turn in range(turns))
    answers = sum(speed.start_s + speed.token_s * task.max_tokens for speed in speeds)
    return sum(speed.prompt_s for speed in speeds) * read + turns * answers


def _warm(competing: Sequence[Contender], exchange: Exchange, screen: Screen) -> tuple[list[Contender], list[Speed]]:
    """Everyone's speed; another program that cannot answer is left out with its reason."""
    able, speeds = [], []
    with screen.progress(len(competing), "contenders") as warmed:
        for each in competing:
            try:
                speeds.append(speed_of(each, exchange))
                able.append(each)
            except LacliError as error:
                if each.point:
                    raise
                screen.note(f"left out: {each.label}: {error}")
            warmed()
    return able, speeds


def _timed(contender: Contender, exchange: Exchange) -> Speed:
    begin = perf_counter()
    trial = contender.answer(exchange)
    start = perf_counter() - begin - trial.seconds - trial.prompt_s
    return Speed(
        token_s=trial.seconds / max(trial.tokens, 1),
        step_s=trial.seconds / max(trial.step_count, 1),
        prompt_s=trial.prompt_s / len(exchange.prompt),
        start_s=max(start, 0.0),
    )


def _described(plan: BenchPlan, tasks: Sequence[Task], wish: Wish, per_task: int) -> str:
    """What will be done of all `tasks`, whose turns are `per_task` prompts each, and what the time leaves out."""
    count, every = (per_task * sum(len(task.turns) for task in some) for some in (plan.tasks, tasks))
    prompts = f"{count} of {every} prompts" if count < every else "1 prompt" if every == 1 else f"{every} prompts"
    kinds = len(by_class(plan.tasks))
    classes = f" in {kinds} classes" if kinds > 1 else ""
    times = "once" if plan.repetitions == 1 else f"{plan.repetitions} times"
    is_longer = wish.seconds is not None and plan.seconds > wish.seconds
    longer = (
        f"; {wish.seconds:.0f} s for answers are too few: give more --seconds or fewer --modes" if is_longer else ""
    )
    tokens = counted(plan.max_tokens, "token")
    return f"{prompts}{classes}, answers of up to {tokens}, each {times}: about {max(plan.seconds, 1):.0f} s{longer}"

"""What several texts get that are decoded at once, all of them together, by mode and number of texts.

    python -m benchmarks.many here --model 05b.gguf --json rows.jsonl    on this machine, llama-server beside
    python -m benchmarks.many laws --laws "RTX 3090,Spark,EPYC"          on the machines of `step_costs.jsonl`

Groups of so many prompts are asked at once; with `--each` there are several prompts for each place, and the next one is
asked when an answer ends.

`here`: all contenders take turns within a round, and who begins changes. Every answer has the same number of tokens,
and its time begins when it is asked. Times are those that the one thread that decodes has had a processor, so that
other work on the machine hardly shows. Mode auto has answered a round alone before, and goes on with the numbers that
it has learned, but without any text, from group to group. llama-server has to be on PATH (docs/benchmarks.md). Rows are
added to the file `--json`, and the tables are those of all its rows; Ctrl-C ends it early.

`laws`: real texts and guesses of the 7M model on a clock by each law (`replay.py` says how it moves). Steps count
from when all prompts of a group are decoded. "auto learns" begins with nothing known, "auto knows" was told the law,
and both go on from group to group. No test lives here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median, quantiles
from time import thread_time

import numpy as np
import numpy.typing as npt

from benchmarks.replay import FOLDER, KNOWS, LEARNS, Law, LawEngine, laws, settings_of
from benchmarks.rivals.server import NAME as SERVER
from benchmarks.rivals.server import WARM_UP, Server
from benchmarks.simulated import clock_of
from lacli.auto.experience import Experience
from lacli.auto.measure import SAMPLE, engine_settings, measure
from lacli.auto.mode import Auto, AutoModes
from lacli.auto.model_cost import SERVING
from lacli.auto.step_cost import Cost
from lacli.auto.text_guesses import TextGuesses
from lacli.batch import from_tokens
from lacli.bench.tasks import Task, read_tasks
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import Capacity, ModelSettings, shared_settings
from lacli.modes import Mode, new_mode
from lacli.pool import NgramPool
from lacli.schedule import Schedule, SharedText
from lacli.session.session import Session
from lacli.settings import MAX_SEQUENCES, MODES, DecodeSettings
from lacli.text.format import markdown

CONTENDERS = ("plain", "lookup", LEARNS, KNOWS)
CELLS = 8192

HERE = ("plain", "lookup", "lookahead", "auto", SERVER, f"{SERVER} ngram-simple", f"{SERVER} ngram-mod")
CLASSES = ("edit", "source", "write")
MIXED = "mixed"
"""A prompt of each of CLASSES in turn."""

Answers = list[list[float]]
"""Seconds after which each prompt was asked, and then those after which its tokens came."""

Contender = Callable[[Sequence[Sequence[int]]], Answers]


@dataclass(frozen=True)
class Group:
    """Answers to prompts of a `kind`, of `texts` at once, in the round of the number `lap`."""

    kind: str
    texts: int
    contender: str
    lap: int
    answers: Answers

    @property
    def speed(self) -> float:
        """Tokens a second of all texts, from the first question to the last token."""
        return sum(len(times) - 1 for times in self.answers) / max(times[-1] for times in self.answers)

    @property
    def full_speed(self) -> float:
        """The same while no place is empty, from when the first texts decode; 0 where there is no such time."""
        begin, asked = max(times[1] for times in self.answers[: self.texts]), max(times[0] for times in self.answers)
        end = min(times[-1] for times in self.answers if times[-1] > asked)
        tokens = sum(begin < time <= end for times in self.answers for time in times[1:])
        return tokens / (end - begin) if end > begin else 0.0

    @property
    def first_s(self) -> float:
        """Seconds to a text's first token, the mean of all."""
        return fmean(times[1] - times[0] for times in self.answers)


class Endless(LlamaEngine):
    """Chooses no end token: every answer has as many tokens as are asked for."""

    def __init__(self, model: LlamaModel, settings: ModelSettings, decode: Capacity) -> None:
        super().__init__(model, settings, decode, backend_greedy=False)
        self._ends = [token for token in range(self.vocabulary) if self.is_end(token)]

    def logits(self) -> npt.NDArray[np.float32]:
        found = super().logits()
        found[:, self._ends] = -np.inf
        return found


class Here:
    """A model on this machine and what answers groups of prompts with it."""

    def __init__(self, model: Path, limit: int) -> None:
        settings = ModelSettings(context=CELLS, threads=1, threads_batch=1)
        self._session = Session(model, settings, DecodeSettings(mode="plain"), SamplingSettings(temp=0.0))
        self._limit = limit
        self._costs: dict[ModelSettings, Cost] = {}
        self._learned: dict[int, Experience] = {}

    def _measured(self, settings: ModelSettings) -> Cost:
        """What a server measures when it begins, in processor time."""
        most = SERVING.sizes[-1]
        measuring = replace(settings, context=max(SERVING.contexts) + most)
        with LlamaEngine(self._session.model, measuring, engine_settings(most)) as engine:
            return Cost(measure(engine, self._session.model.tokenize(SAMPLE), SERVING, clock=thread_time).staircases)

    def prompts(self, tasks: Sequence[Task], first: int, count: int) -> list[list[int]]:
        """Those of `count` tasks from number `first` on; one that comes again in a group has a number in front."""
        group = [tasks[place % len(tasks)] for place in range(first, first + count)]
        numbers = ["" if place < len(tasks) else f"{place}. " for place in range(count)]
        return [self._session.prompt(number + task.turns[0]) for number, task in zip(numbers, group, strict=True)]

    def contender(self, name: str, texts: int, stack: ExitStack) -> Contender | None:
        """What answers `texts` prompts at once until the stack is closed; None where they need too many sequences."""
        model, settings = self._session.model, shared_settings(self._session.model_settings, texts, on_gpu=False)
        program, _, kind = name.partition(" ")
        if program == SERVER:
            path = Path(shutil.which(program) or program)
            server = Server(path, model.path, settings, kind or "none", offloaded=model.offloaded, slots=texts)
            return partial(stack.enter_context(server).answer_together, limit=self._limit)
        decode = DecodeSettings(mode=next(mode for mode in MODES if mode == name)).for_texts(texts)
        if texts * decode.sequences > MAX_SEQUENCES:
            return None
        outputs = decode.max_outputs if name == "auto" else texts * decode.max_outputs
        capacity = Capacity(texts * decode.sequences, outputs, ordered=False)
        engine = stack.enter_context(Endless(model, settings, capacity))
        engine.decode(from_tokens(WARM_UP, 0))
        if name == "auto" and settings not in self._costs:
            self._costs[settings] = self._measured(settings)
        return partial(self._answers, engine, decode, texts, self._costs.get(settings))

    def _answers(
        self, engine: Engine, settings: DecodeSettings, places: int, cost: Cost | None, prompts: Sequence[Sequence[int]]
    ) -> Answers:
        def make_mode(settings: DecodeSettings, pool: NgramPool, engine: Engine, **_: object) -> Mode:
            if settings.mode != "auto":
                return new_mode(settings, pool, engine)
            experience = self._learned.setdefault(places, Experience(settings, cost))
            return Auto(TextGuesses(settings, pool, engine.vocabulary, engine.is_end, experience))

        schedule = Schedule(Decoder(engine, settings, make_mode=make_mode), places)
        answers: dict[SharedText, list[float]] = {}
        waiting, begin = [*prompts], thread_time()
        while waiting or schedule.texts:
            while waiting and not schedule.is_full:
                answers[schedule.add(waiting.pop(0), self._limit)] = [thread_time() - begin]
            for news in schedule.step():
                if news.step:
                    answers[news.text] += [thread_time() - begin] * len(news.step.tokens)
        return [*answers.values()]


def here(arguments: argparse.Namespace) -> None:
    """Measure on this machine."""
    with arguments.json.open("a") as file, clock_of(thread_time), suppress(KeyboardInterrupt):
        for group in groups_of(arguments):
            print(json.dumps(asdict(group)), file=file, flush=True)
            words = f"{group.kind}, {group.texts} texts, {group.contender}: {group.speed:.1f} tokens/s"
            print(words, file=sys.stderr, flush=True)
    rows = [Group(**json.loads(row)) for row in arguments.json.read_text().splitlines()]
    print("\n\n".join(tables([group for group in rows if group.lap])))


def groups_of(arguments: argparse.Namespace) -> Iterator[Group]:
    machine = Here(arguments.model, arguments.limit)
    tasks = {kind: [each for each in read_tasks(str(arguments.prompts)) if each.kind == kind] for kind in CLASSES}
    tasks[MIXED] = [task for group in zip(*tasks.values(), strict=True) for task in group]
    for lap, texts in product(range(arguments.rounds + 1), map(int, arguments.texts.split(","))):
        with ExitStack() as stack:
            # Before the first round mode auto learns what steps cost.
            names = arguments.contenders.split(",") if lap else ["auto"]
            every = {name: machine.contender(name, texts, stack) for name in names}
            contenders = [(name, answer) for name, answer in every.items() if answer]
            begin = lap % len(contenders)
            for kind in arguments.classes.split(","):
                count = texts * arguments.each
                prompts = machine.prompts(tasks[kind], lap * count, count)
                for name, answer in contenders[begin:] + contenders[:begin]:
                    yield Group(kind, texts, name, lap, answer(prompts))


def tables(groups: Sequence[Group]) -> Iterator[str]:
    """Tokens a second of all texts, and while all decode; auto's over others'; first tokens; what company costs one."""
    every = dict.fromkeys((*HERE, *(group.contender for group in groups)))
    names = [name for name in every if any(group.contender == name for group in groups)]
    found = {(group.kind, group.texts, group.contender, group.lap): group for group in groups}
    cells = sorted({(group.kind, group.texts) for group in groups})
    laps = sorted({group.lap for group in groups})

    def each(cell: tuple[str, int], name: str) -> list[Group]:
        return [found[*cell, name, lap] for lap in laps if (*cell, name, lap) in found]

    def ratios(cell: tuple[str, int], name: str) -> list[float]:
        pairs = [(found.get((*cell, "auto", lap)), found.get((*cell, name, lap))) for lap in laps]
        return [auto.speed / other.speed for auto, other in pairs if auto and other]

    def table(words: Callable[[tuple[str, int], str], str], columns: Sequence[str] = names) -> str:
        rows = [[kind, str(texts), *(words((kind, texts), name) for name in columns)] for kind, texts in cells]
        return markdown(["prompts", "texts", *columns], rows, 2)

    def company(cell: tuple[str, int], name: str) -> str:
        alone, among = [[group.speed for group in each((cell[0], texts), name)] for texts in (1, cell[1])]
        return f"{median(alone) * cell[1] / median(among):.2f}" if alone and among else ""

    yield table(lambda cell, name: with_spread([group.speed for group in each(cell, name)]))
    yield table(lambda cell, name: with_spread([group.full_speed for group in each(cell, name)]))
    yield table(lambda cell, name: in_range(ratios(cell, name)), [name for name in names if name != "auto"])
    yield table(lambda cell, name: f"{median([group.first_s for group in each(cell, name)] or [0]):.2f}")
    yield table(company)


def with_spread(values: Sequence[float]) -> str:
    """The median, and half the distance of the quartiles."""
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else ""
    low, middle, high = quantiles(values, method="inclusive")
    return f"{middle:.1f} ±{(high - low) / 2:.1f}"


def in_range(values: Sequence[float]) -> str:
    """The median, the lowest and the highest."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""


class SharedLawEngine(LawEngine):
    """Decodes pieces of prompt of any size; they are not timed."""

    @property
    def batch_rows(self) -> int:
        return self.engine.batch_rows


class Many:
    """The 7M model with a context for many texts; it answers groups of prompts in any mode on any law."""

    def __init__(self, model: Path, limit: int) -> None:
        settings = ModelSettings(context=CELLS, threads=1, threads_batch=1)
        self._session = Session(model, settings, DecodeSettings(mode="plain"), SamplingSettings(temp=0.0))
        largest = Capacity.of([DecodeSettings(), DecodeSettings(mode="lookahead")])
        capacity = replace(largest, sequences=MAX_SEQUENCES, max_outputs=MAX_SEQUENCES)
        self._engine = LlamaEngine(self._session.model, self._session.model_settings, capacity, backend_greedy=False)
        self._limit = limit

    def speed(self, tasks: Sequence[Task], texts: int, contender: str, law: Law, plain_s: float) -> float:
        """Tokens per plain step of all texts, of answers to the prompts in groups of `texts`."""
        settings = settings_of(contender, law)
        engine = SharedLawEngine(self._engine, law, plain_s)
        cost = law.cost(plain_s, law.rows) if contender == KNOWS else None
        decoder = Decoder(engine, settings.for_texts(texts), make_mode=AutoModes(cost))
        schedule = Schedule(decoder, texts)
        tokens, seconds = 0, 0.0
        with engine.clock():
            for begin in range(0, len(tasks), texts):
                group = [tasks[place % len(tasks)] for place in range(begin, begin + texts)]
                for task in group:
                    schedule.add(self._session.prompt(task.turns[0], task.system, raw=task.raw), self._limit)
                while schedule.texts:
                    counts = all(text.is_prefilled for text in schedule.texts)
                    before = engine.now
                    news = schedule.step()
                    if counts:
                        seconds += engine.now - before
                        tokens += sum(len(each.step.tokens) for each in news if each.step)
        return tokens * plain_s / seconds


def on_laws(arguments: argparse.Namespace) -> None:
    """Measure on the machines of the laws."""
    many, tasks = Many(arguments.model, arguments.limit), read_tasks(str(arguments.prompts))
    rows = []
    for law in laws():
        if not any(part in law.name for part in arguments.laws.split(",")):
            continue
        for kind in dict.fromkeys(task.kind for task in tasks):
            asked = [task for task in tasks if task.kind == kind]
            for texts in map(int, arguments.texts.split(",")):
                speeds = [many.speed(asked, texts, name, law, arguments.t1 / 1e3) for name in CONTENDERS]
                rows.append([law.name, kind, str(texts), *(f"{speed:.2f}" for speed in speeds)])
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    print(markdown(["machine", "prompts", "texts", *CONTENDERS], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("here", help="on this machine, llama-server beside")
    replaying = commands.add_parser("laws", help="on the machines of step_costs.jsonl")
    for command, limit in ((measuring, 64), (replaying, 128)):
        command.add_argument("--model", type=Path, required=True, help="a GGUF file")
        command.add_argument("--prompts", type=Path, default=FOLDER / "prompts.jsonl", help="a file of prompts")
        command.add_argument("--texts", default="1,2,4,8", help="numbers of texts at once, with commas")
        command.add_argument("--limit", type=int, default=limit, help="tokens of an answer")
    measuring.add_argument("--classes", default=",".join((*CLASSES, MIXED)), help="classes of prompts, with commas")
    measuring.add_argument("--contenders", default=",".join(HERE), help="modes and llama-servers, with commas")
    measuring.add_argument("--each", type=int, default=1, help="prompts for each text that is decoded at once")
    measuring.add_argument("--rounds", type=int, default=5, help="rounds")
    measuring.add_argument("--json", type=Path, default=Path("many.jsonl"), help="a file that rows are added to")
    measuring.set_defaults(run=here)
    replaying.add_argument("--laws", default="RTX 3090,Spark, 7B,EPYC", help="parts of names of laws, with commas")
    replaying.add_argument("--t1", type=float, default=15, help="milliseconds of a plain step")
    replaying.set_defaults(run=on_laws)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()

"""Mode auto on the machines of `step_costs.jsonl`: real texts and guesses of the demo model, a clock by each law.

    python -m benchmarks.replay                       all laws, the prompts that nobody tuned on
    python -m benchmarks.replay --half tune --laws "RTX,AMX" --t1 15

A law says what a step of b rows costs in plain steps, linear between its points and nothing beyond the last one. The
clock moves by that, times t(1), and by the time that lacli's own Python and numpy really take; so it needs no machine
of that kind, and a busy one hardly shows. "Learns" begins every answer with nothing known; "knows" has answered the
prompts of the other half on the same machine, and has been told the law. No test lives here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter, thread_time
from unittest.mock import patch

import numpy as np

from lacli.auto.experience import Experience
from lacli.auto.mode import Auto
from lacli.auto.recycling import RecyclingSource
from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.batch import Batch, Ints
from lacli.bench.tasks import Task, read_tasks
from lacli.check.replay import Recorder
from lacli.decode import Decoder
from lacli.engine import Engine, Floats
from lacli.hub.names import demo_model
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.modes import Mode, new_mode
from lacli.pool import NgramPool
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.text.format import markdown

FOLDER = Path(__file__).parent
FULL_ROWS = 64
"""Rows that a law must give for lookahead 15/5/15 to be asked."""

CONTENDERS = ("lookup", "lookahead", "auto learns", "auto knows")


@dataclass(frozen=True)
class Law:
    """What steps cost on a machine, in plain steps by rows, as its source gives it."""

    machine: str
    model: str
    relative: dict[int, float]

    @property
    def name(self) -> str:
        return f"{self.machine}, {self.model}"

    @property
    def max_rows(self) -> int:
        return max(self.relative)

    def __call__(self, rows: int) -> float:
        """Plain steps of a step of `rows` rows; further rows of a prefill cost what they do in the largest step."""
        if rows > self.max_rows:
            return self.relative[self.max_rows] * rows / self.max_rows
        return float(np.interp(rows, list(self.relative), list(self.relative.values())))

    def cost(self, plain_s: float) -> Cost:
        """The law as if it had been measured, with plain steps of `plain_s` seconds."""
        points = [Point(rows, cost * plain_s, cost * plain_s) for rows, cost in self.relative.items()]
        return Cost((StepCost(0, tuple(points)),))


def laws(path: Path = FOLDER / "step_costs.jsonl") -> list[Law]:
    """Read the laws; each line also names its source."""
    rows = map(json.loads, path.read_text().splitlines())
    return [Law(row["machine"], row["model"], {int(b): float(t) for b, t in row["relative"].items()}) for row in rows]


class LawEngine(Recorder):
    """A real engine on the clock of a law; `now`: seconds.

    What the engine itself takes is not counted, but what this thread does between its calls is.
    """

    def __init__(self, engine: Engine, law: Law, plain_s: float) -> None:
        super().__init__(engine)
        self.law, self.plain_s = law, plain_s
        self._law_s = self._engine_s = 0.0

    @property
    def batch_rows(self) -> int:
        return min(self.engine.batch_rows, self.law.max_rows)

    @property
    def now(self) -> float:
        return self._law_s + thread_time() - self._engine_s

    def decode(self, batch: Batch) -> bool:
        with self._free():
            fits = self.engine.decode(batch)
        self._law_s += self.plain_s * self.law(len(batch))
        return fits

    def greedy(self) -> Ints:
        with self._free():
            return self.engine.greedy()

    def logits(self) -> Floats:
        return self.engine.logits()

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Let every module of lacli that asks for the time read this clock."""
        with ExitStack() as stack:
            for name, module in list(sys.modules.items()):
                if name.startswith("lacli.") and getattr(module, "perf_counter", None) is perf_counter:
                    stack.enter_context(patch.object(module, "perf_counter", lambda: self.now))
            yield

    @contextmanager
    def _free(self) -> Iterator[None]:
        begin = thread_time()
        yield
        self._engine_s += thread_time() - begin


@dataclass(frozen=True)
class Answer:
    """One answer: its class, its tokens, and the seconds of its decode phase by the clock."""

    kind: str
    tokens: tuple[int, ...]
    steps: int
    seconds: float


class Replay:
    """The demo model and its prompts; answers them in any mode on any law."""

    def __init__(self, model: Path, limit: int) -> None:
        settings = ModelSettings(context=2048, threads=1, threads_batch=1)
        self.session = Session(model, settings, DecodeSettings(mode="plain"), SamplingSettings(temp=0.0))
        largest = [DecodeSettings(mode="plain"), DecodeSettings(mode="lookahead"), DecodeSettings()]
        self.engine = LlamaEngine(
            self.session.model, self.session.model_settings, Capacity.of(largest), backend_greedy=False
        )
        self.limit = limit

    def answer(self, task: Task, settings: DecodeSettings, law: Law, plain_s: float,
               experience: Experience | None = None) -> Answer:  # fmt: skip
        """Answer a prompt on the clock of `law`."""
        engine = LawEngine(self.engine, law, plain_s)

        def make_mode(
            settings: DecodeSettings, pool: NgramPool, engine: Engine, *, sampled: bool = False,
            before: Mode | None = None,
        ) -> Mode:  # fmt: skip
            if experience is None:
                return new_mode(settings, pool, engine)
            return Auto(settings, pool, engine.vocabulary, engine.is_end, experience)

        prompt = self.session.prompt(task.turns[0], task.system, raw=task.raw)
        decoder = Decoder(engine, settings, make_mode=make_mode)
        with engine.clock():
            begin = engine.now
            steps = list(decoder.generate(prompt, self.limit))
            seconds = engine.now - begin - decoder.prompt_s
        return Answer(task.kind, tuple(token for step in steps for token in step.tokens), len(steps), seconds)


def settings_for(contender: str, law: Law) -> DecodeSettings | None:
    """Settings of a contender that take no step beyond the law's last point; None where it cannot be asked."""
    match contender:
        case "lookup":
            return DecodeSettings(mode="lookup", lookup_draft=min(10, law.max_rows - 1))
        case "lookahead":
            return DecodeSettings(mode="lookahead") if law.max_rows >= FULL_ROWS else None
    return DecodeSettings(auto_rows=min(DecodeSettings().auto_rows, law.max_rows))


@dataclass
class Cell:
    """Answers of the contenders to the prompts of one law at one t(1)."""

    law: Law
    plain_ms: float
    answers: dict[str, list[Answer]]

    def speed(self, contender: str, kind: str = "") -> float:
        """Times as fast as plain decoding, over all answers or over those of one class."""
        ours, plain = ([a for a in self.answers[name] if not kind or a.kind == kind] for name in (contender, "plain"))
        return sum(answer.seconds for answer in plain) / sum(answer.seconds for answer in ours)

    def steps(self, contender: str, kind: str = "") -> float:
        """S of a contender."""
        ours = [answer for answer in self.answers[contender] if not kind or answer.kind == kind]
        return sum(len(answer.tokens) for answer in ours) / sum(answer.steps for answer in ours)


def measured(replay: Replay, law: Law, plain_s: float, asked: Sequence[Task], others: Sequence[Task],
             contenders: Sequence[str]) -> Cell:  # fmt: skip
    """Ask every contender the prompts on one law; `others`: those that the knowing one has answered before."""
    cell = Cell(law, plain_s * 1e3, {})
    for name in ("plain", *contenders):
        settings = settings_for(name, law) if name != "plain" else DecodeSettings(mode="plain")
        if settings is None:
            continue
        if name == "auto knows":
            known = Experience(settings, law.cost(plain_s))
            for task in others:
                replay.answer(task, settings, law, plain_s, refreshed(known, settings))
            cell.answers[name] = [
                replay.answer(task, settings, law, plain_s, refreshed(known, settings)) for task in asked
            ]
        else:
            learns = name == "auto learns"
            cell.answers[name] = [
                replay.answer(task, settings, law, plain_s, Experience(settings) if learns else None) for task in asked
            ]
        for ours, plain in zip(cell.answers[name], cell.answers["plain"], strict=True):
            assert ours.tokens == plain.tokens or len(ours.tokens) > 0
    return cell


def refreshed(known: Experience, settings: DecodeSettings) -> Experience:
    """The same knowledge without anybody's text, as a new process has it."""
    known.recycling = RecyclingSource(known.recycling.acceptance)
    return known


def tables(cells: Sequence[Cell], kinds: Sequence[str], contenders: Sequence[str]) -> str:
    """Speeds by law and t(1) for each contender, by class for auto, and where auto is not the best."""
    rows = []
    for cell in cells:
        row = [cell.law.name, f"{cell.plain_ms:g}"]
        for name in contenders:
            row.append(
                f"{geometric_mean(cell.speed(name, kind) for kind in kinds):.2f}" if name in cell.answers else ""
            )
            if name.startswith("auto"):
                row += [f"{cell.speed(name, kind):.2f}" for kind in kinds]
        rows.append(row)
    header = ["machine", "t(1) ms"]
    for name in contenders:
        header.append(name)
        if name.startswith("auto"):
            header += [f"{kind}" for kind in kinds]
    return markdown(header, rows, left=1) + "\n\n" + misses(cells, kinds, contenders)


def misses(cells: Sequence[Cell], kinds: Sequence[str], contenders: Sequence[str]) -> str:
    """Sentences about cells in which auto is below 0.99, or more than 1% behind another contender."""
    lines = []
    autos = [name for name in contenders if name.startswith("auto")]
    for name in autos:
        values = [(cell.speed(name, kind), cell, kind) for cell in cells for kind in kinds]
        slow = [(value, cell, kind) for value, cell, kind in values if value < 0.99]
        behind = [
            (value, best, cell, kind)
            for value, cell, kind in values
            for best in [
                max((cell.speed(other, kind), other) for other in cell.answers if not other.startswith("auto"))
            ]
            if value < 0.99 * best[0]
        ]
        mean = geometric_mean(value for value, _, _ in values)
        lines.append(
            f"{name}: geometric mean {mean:.3f}, worst {min(v[0] for v in values):.3f}; "
            f"{len(slow)} of {len(values)} cells below 0.99, {len(behind)} more than 1% behind the best"
        )
        lines += [f"  {v:.3f} {cell.law.name} {cell.plain_ms:g} ms {kind}" for v, cell, kind in slow]
        lines += [
            f"  {v:.3f} against {best[1]} {best[0]:.3f} {cell.law.name} {cell.plain_ms:g} ms {kind}"
            for v, best, cell, kind in behind
        ]
    return "\n".join(lines)


def halves(tasks: Sequence[Task], half: str) -> tuple[list[Task], list[Task]]:
    """The tasks of a half, and the others: every second one of each class."""
    place: dict[str, int] = {}
    found: tuple[list[Task], list[Task]] = [], []
    for task in tasks:
        place[task.kind] = place.get(task.kind, 0) + 1
        found[place[task.kind] % 2].append(task)
    return found if half == "tune" else (found[1], found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=demo_model(), help="a GGUF file")
    parser.add_argument("--prompts", default=str(FOLDER / "prompts.jsonl"), help="files of prompts, with commas")
    parser.add_argument("--half", choices=("tune", "report", "all"), default="report", help="of laws and of prompts")
    parser.add_argument("--laws", default="", help="parts of machines' names, with commas, in place of a half")
    parser.add_argument("--t1", default="5,15,60", help="milliseconds of a plain step, with commas")
    parser.add_argument("--limit", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--only", default=",".join(CONTENDERS), help="some contenders, with commas")
    arguments = parser.parse_args()
    contenders = arguments.only.split(",")
    asked, others = halves(
        [task for path in arguments.prompts.split(",") for task in read_tasks(path)],
        "tune" if arguments.half == "tune" else "report",
    )
    known = laws()
    if arguments.laws:
        known = [law for law in known if any(part in law.name for part in arguments.laws.split(","))]
    elif arguments.half != "all":
        known = known[arguments.half == "tune" :: 2]
    replay = Replay(arguments.model, arguments.limit)
    cells = []
    for law in known:
        for plain_ms in map(float, arguments.t1.split(",")):
            cells.append(measured(replay, law, plain_ms / 1e3, asked, others, contenders))
            print(law.name, plain_ms, file=sys.stderr, flush=True)
    print(tables(cells, list(dict.fromkeys(task.kind for task in asked)), contenders))


if __name__ == "__main__":
    main()

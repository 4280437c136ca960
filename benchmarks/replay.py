"""Mode auto on the machines of `step_costs.jsonl`: real texts and guesses of the demo model, a clock by each law.

    python -m benchmarks.replay                                  every law, the half of the prompts that nobody tuned on
    python -m benchmarks.replay --half tune --laws RTX,Xeon --t1 15

A law says what a step of b rows costs in plain steps: linear between its points, nothing beyond the last one, cliffs
included. The clock moves by that, times t(1), and by the time that lacli's own Python and numpy really take, so a busy
machine hardly shows. "auto learns" begins every answer with nothing known. "auto knows" was told the law, and begins
with what answers to the other half of the prompts on the same machine have taught, as `lacli` keeps it between runs.
Laws and prompts take turns between the half to tune on and the half to report. No test lives here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from time import thread_time
from typing import TypeVar

from benchmarks.simulated import SimulatedEngine, Stairs
from lacli.auto.experience import Experience
from lacli.auto.mode import Auto
from lacli.auto.text_guesses import TextGuesses
from lacli.bench.tasks import Task, read_tasks
from lacli.decode import Decoder
from lacli.engine import Engine, Successors
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

LEARNS, KNOWS = "auto learns", "auto knows"
CONTENDERS = ("lookup", "lookahead", LEARNS, KNOWS)

LEAST, BEHIND = 0.99, 0.99
"""Speeds below which auto is named: relative to plain decoding, and to the best other contender."""

Item = TypeVar("Item")


class Law(Stairs):
    """What steps cost on the machine `name`, in plain steps by rows, as its source gives it."""

    def __init__(self, name: str, relative: dict[int, float]) -> None:
        super().__init__(list(relative.items()))
        self.name = name
        self.max_rows = max(relative)


def laws(path: Path = FOLDER / "step_costs.jsonl") -> list[Law]:
    """Read the laws; each line of the file names its source."""
    rows = map(json.loads, path.read_text().splitlines())
    return [
        Law(f"{row['machine']}, {row['model']}", {int(size): float(cost) for size, cost in row["relative"].items()})
        for row in rows
    ]


class LawEngine(SimulatedEngine):
    """A real engine on the clock of a law, which this thread's own work between the engine's calls moves too."""

    def __init__(self, engine: Engine, law: Law, plain_s: float) -> None:
        super().__init__(engine, law, plain_s=plain_s)
        self._max_rows = law.max_rows

    @property
    def batch_rows(self) -> int:
        return min(self.engine.batch_rows, self._max_rows)

    @property
    def now(self) -> float:
        return super().now + thread_time() - self.spent_s

    def successors(self, count: int) -> Successors:
        # Looking for the best tokens of a row is mode auto's own work.
        return self.engine.successors(count)


@dataclass(frozen=True)
class Answer:
    """One answer: its class, its tokens, its steps, and the seconds of its decode phase by the clock."""

    kind: str
    tokens: tuple[int, ...]
    steps: int
    seconds: float


class Replay:
    """The demo model with a context for all contenders; it answers prompts in any mode on any law."""

    def __init__(self, model: Path, limit: int) -> None:
        settings = ModelSettings(context=2048, threads=1, threads_batch=1)
        self._session = Session(model, settings, DecodeSettings(mode="plain"), SamplingSettings(temp=0.0))
        capacity = Capacity.of([DecodeSettings(mode="plain"), DecodeSettings(mode="lookahead"), DecodeSettings()])
        self._engine = LlamaEngine(self._session.model, self._session.model_settings, capacity, backend_greedy=False)
        self._limit = limit

    def answer(
        self, task: Task, settings: DecodeSettings, law: Law, plain_s: float, experience: Experience | None = None
    ) -> Answer:
        """Answer a prompt on a law's clock; `experience`: that of mode auto, which learns."""
        engine = LawEngine(self._engine, law, plain_s)
        prompt = self._session.prompt(task.turns[0], task.system, raw=task.raw)

        def auto(settings: DecodeSettings, pool: NgramPool, engine: Engine, **_: object) -> Mode:
            assert experience is not None
            return Auto(TextGuesses(settings, pool, engine.vocabulary, engine.is_end, experience))

        decoder = Decoder(engine, settings, make_mode=auto if experience else new_mode)
        with engine.clock():
            begin = engine.now
            steps = list(decoder.generate(prompt, self._limit))
            seconds = engine.now - begin - decoder.prompt_s
        return Answer(task.kind, tuple(token for step in steps for token in step.tokens), len(steps), seconds)


def settings_of(contender: str, law: Law) -> DecodeSettings | None:
    """Return settings that take no step beyond a law's last point, None for a contender that needs larger ones."""
    match contender:
        case "plain":
            return DecodeSettings(mode="plain")
        case "lookup":
            return DecodeSettings(mode="lookup", lookup_draft=min(10, law.max_rows - 1))
        case "lookahead":
            return DecodeSettings(mode="lookahead") if law.max_rows >= FULL_ROWS else None
    return DecodeSettings(auto_rows=min(DecodeSettings().auto_rows, law.max_rows))


@dataclass(frozen=True)
class Cell:
    """The answers of each contender to the same prompts, on one law with plain steps of `plain_ms` milliseconds."""

    name: str
    plain_ms: float
    answers: dict[str, list[Answer]]

    def speed(self, contender: str, kind: str) -> float:
        """Times as fast as plain decoding in the prompts of a class."""
        seconds = [
            sum(answer.seconds for answer in self.answers[name] if answer.kind == kind) for name in ("plain", contender)
        ]
        return seconds[0] / seconds[1]

    def best_other(self, kind: str) -> tuple[float, str]:
        """Return the speed and the name of the fastest contender beside auto."""
        return max((self.speed(name, kind), name) for name in self.answers if name not in (LEARNS, KNOWS))


def measured(
    replay: Replay, law: Law, plain_s: float, asked: Sequence[Task], others: Sequence[Task], contenders: Iterable[str]
) -> Cell:
    """Ask every contender the prompts on one law; `others`: those that the knowing one has answered before."""
    answers: dict[str, list[Answer]] = {}
    for name in ("plain", *contenders):
        settings = settings_of(name, law)
        if settings is None:
            continue
        if name not in (LEARNS, KNOWS):
            answers[name] = [replay.answer(task, settings, law, plain_s) for task in asked]
            continue
        known = None
        if name == KNOWS:
            for task in others:
                known = _answered(replay, task, settings, law, plain_s, known)[1]
        answers[name] = []
        for task in asked:
            found, learned = _answered(replay, task, settings, law, plain_s, known, told=name == KNOWS)
            answers[name].append(found)
            known = learned if name == KNOWS else None
    return Cell(law.name, plain_s * 1e3, answers)


def _answered(
    replay: Replay, task: Task, settings: DecodeSettings, law: Law, plain_s: float, known: object, *, told: bool = True
) -> tuple[Answer, object]:
    """Answer as a new process that begins from what is `known`, and return what the next one will know."""
    cost = law.cost(plain_s, law.rows) if told else None
    experience = Experience(settings, cost)
    if known:
        experience.begin_from(known, 0.0)
    return replay.answer(task, settings, law, plain_s, experience), experience.numbers()


def table(cells: Sequence[Cell], kinds: Sequence[str]) -> str:
    """Speeds by law and t(1): the geometric mean over the classes of each contender, and auto's by class."""
    contenders = [name for name in CONTENDERS if any(name in cell.answers for cell in cells)]
    header, rows = ["machine", "t(1), ms"], [[cell.name, f"{cell.plain_ms:g}"] for cell in cells]
    for name in contenders:
        shown = kinds if name in (LEARNS, KNOWS) else ()
        header += [name, *shown]
        for row, cell in zip(rows, cells, strict=True):
            speeds = [cell.speed(name, kind) for kind in kinds] if name in cell.answers else []
            row.append(f"{geometric_mean(speeds):.2f}" if speeds else "")
            row += [f"{speed:.2f}" for speed in speeds[: len(shown)]]
    return markdown(header, rows)


def misses(cells: Sequence[Cell], kinds: Sequence[str], contender: str) -> str:
    """Name the cells in which auto is slower than LEAST, or than BEHIND times the best other contender."""
    speeds = [(cell.speed(contender, kind), cell, kind) for cell in cells for kind in kinds]
    lines = []
    for speed, cell, kind in speeds:
        best, other = cell.best_other(kind)
        if speed < max(LEAST, BEHIND * best):
            lines.append(f"- {speed:.3f}, {other} {best:.3f}: {kind}, {cell.name}, {cell.plain_ms:g} ms")
    mean, worst = geometric_mean(speed for speed, _, _ in speeds), min(speed for speed, _, _ in speeds)
    return "\n".join([f"{contender}: mean {mean:.3f}, worst {worst:.3f}, missed {len(lines)} of {len(speeds)}", *lines])


def halves(items: Sequence[Item], half: str) -> tuple[list[Item], list[Item]]:
    """Return the items of a half, `tune` or `report`, and the others: they take turns."""
    begin = half == "tune"
    return list(items[begin::2]), list(items[1 - begin :: 2])


def prompts(paths: Iterable[str], half: str) -> tuple[list[Task], list[Task]]:
    """Return the prompts of a half and the others, by halves of each class."""
    tasks = [task for path in paths for task in read_tasks(path)]
    asked, others = list[Task](), list[Task]()
    for kind in dict.fromkeys(task.kind for task in tasks):
        mine, rest = halves([task for task in tasks if task.kind == kind], half)
        asked += mine
        others += rest
    return asked, others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=demo_model(), help="a GGUF file")
    parser.add_argument("--prompts", default=str(FOLDER / "prompts.jsonl"), help="files of prompts, with commas")
    parser.add_argument("--half", choices=("tune", "report"), default="report", help="of the prompts, and of the laws")
    parser.add_argument("--laws", default="", help="parts of names of laws, with commas, in place of a half; all")
    parser.add_argument("--t1", default="5,15,60", help="milliseconds of a plain step, with commas")
    parser.add_argument("--limit", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--only", default=",".join(CONTENDERS), help="some contenders, with commas")
    arguments = parser.parse_args()
    contenders = arguments.only.split(",")
    asked, others = prompts(arguments.prompts.split(","), arguments.half)
    wanted = arguments.laws.split(",")
    chosen = [law for law in laws() if any(part in law.name for part in wanted)]
    chosen = halves(laws(), arguments.half)[0] if not arguments.laws else laws() if wanted == ["all"] else chosen
    replay, cells = Replay(arguments.model, arguments.limit), []
    for law in chosen:
        for plain_ms in map(float, arguments.t1.split(",")):
            cells.append(measured(replay, law, plain_ms / 1e3, asked, others, contenders))
            print(f"{law.name}, {plain_ms:g} ms", file=sys.stderr, flush=True)
    kinds = list(dict.fromkeys(task.kind for task in asked))
    autos = [name for name in (LEARNS, KNOWS) if name in contenders]
    print("\n\n".join([table(cells, kinds), *(misses(cells, kinds, name) for name in autos)]))


if __name__ == "__main__":
    main()

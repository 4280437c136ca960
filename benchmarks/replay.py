"""Replay recorded answers on the machines of `step_costs.jsonl`: the speed of each mode there, by class of prompts.

    python -m benchmarks.replay --model FILE --spec-bench FILE            replay the recorded answers
    python -m benchmarks.replay --model FILE --spec-bench FILE --record   first record the missing answers

A record is an answer of plain decoding, or of mode lookahead with the sizes W/N/G in --only. Modes replay a record on
the clock of a law. A law is the cost of a step by its rows, in plain steps, linear between its points. Steps have no
more rows than the law's last point. Lookahead's recorded steps are only added up, larger ones by the law's last slope.
The real time of lacli's Python counts too, except with lookahead. Each answer begins with nothing learned. "auto" has
the step costs, as after `lacli cost`; "auto learns" has none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from time import thread_time

from benchmarks.records import OWN_PROMPTS, Question, Record, RecordedContext, Records, questions
from benchmarks.simulated import SimulatedContext, Stairs
from lacli.auto.step_cost import Cost
from lacli.context import Context
from lacli.engine.engine import Engine, SequenceOptions
from lacli.settings import DecodeSettings
from lacli.text.format import markdown

FOLDER = Path(__file__).parent
CACHE = Path.home() / ".cache" / "lacli-replay"

LEARNS, KNOWS = "auto learns", "auto"
CONTENDERS = ("lookup", "15/5/15", LEARNS, KNOWS)

LEAST = 0.99
"""Classes in which mode auto is slower than this many times plain decoding are listed."""

SHOWN = "RTX 3090,7B shape,M2 Ultra,Qwen"
"""The default of --laws."""


class Law(Stairs):
    """The published cost of steps on the machine `name`, in plain steps by rows."""

    def __init__(self, name: str, relative: dict[int, float], plain_ms: float = 0.0, change: float = 0.0) -> None:
        """`plain_ms`: milliseconds of a plain step, 0 if the source does not say. `change`: as in Stairs."""
        super().__init__(list(relative.items()), change)
        self.name, self.plain_ms = name, plain_ms
        self.max_rows = max(relative)


def laws(path: Path = FOLDER / "step_costs.jsonl") -> list[Law]:
    """Read the laws from JSONL; each line of the file names its source."""
    found = []
    for row in map(json.loads, path.read_text().splitlines()):
        relative = {int(size): float(cost) for size, cost in row["relative"].items()}
        found.append(
            Law(
                f"{row['machine']}, {row['model']}",
                relative,
                float(row.get("plain_ms", 0)),
                float(row.get("change", 0)),
            )
        )
    return found


class LawContext(SimulatedContext):
    """A context on the clock of a law. This thread's processor time outside the context's calls counts too."""

    def __init__(self, engine: Context, law: Law, plain_s: float) -> None:
        super().__init__(engine, law, plain_s=plain_s)
        self._max_rows = law.max_rows

    @property
    def batch_rows(self) -> int:
        return min(self.context.batch_rows, self._max_rows)

    @property
    def now(self) -> float:
        return super().now + thread_time() - self.spent_s


@dataclass(frozen=True)
class Answer:
    """Counts of one answer of the class `kind`. `seconds`: of its decode phase, by the simulated clock.

    `changes`: steps after a step with a different number of rows. `beyond`: steps with more rows than the law has.
    """

    kind: str
    tokens: int
    steps: int
    rows: int
    seconds: float
    changes: int = 0
    beyond: int = 0


def answer(kind: str, record: Record, settings: DecodeSettings, law: Law, plain_s: float, cost: Cost | None) -> Answer:
    """Decode a recorded answer on a law's clock. `cost`: the step costs that mode auto has at first, None: none."""
    engine = LawContext(RecordedContext(record), law, plain_s)
    with engine.clock():
        begin = engine.now
        decoding = Engine(engine, settings, cost=cost)
        found = list(decoding.decode(record.prompt, SequenceOptions(len(record.answer))))
        steps = [each.step for each in found if each.step]
        prompt_s = found[0].sequence.prompt_s if found[0].sequence else 0.0
        seconds, changes = engine.now - begin - prompt_s, engine.changes - 1
    assert [token for step in steps for token in step.tokens] == record.answer, "every mode gives plain decoding's text"
    return Answer(kind, len(record.answer), len(steps), sum(step.rows for step in steps), seconds, changes)


def settings_of(contender: str, law: Law) -> DecodeSettings:
    """Return a contender's settings; their steps, except lookahead's, have no more rows than the law."""
    match contender:
        case "plain":
            return DecodeSettings(mode="plain")
        case "lookup":
            return DecodeSettings(mode="lookup", lookup_draft=min(10, law.max_rows - 1))
        case size if "/" in size:
            window, ngram, guesses = map(int, size.split("/"))
            return DecodeSettings(mode="lookahead", window=window, ngram=ngram, guesses=guesses)
    return DecodeSettings(auto_rows=min(DecodeSettings().auto_rows, law.max_rows))


@dataclass(frozen=True)
class Cell:
    """The answers of each contender on one law with plain steps of `plain_ms` milliseconds."""

    name: str
    plain_ms: float
    answers: dict[str, list[Answer]]

    def speed(self, contender: str, kind: str) -> float:
        """Return how many times as fast as plain decoding a contender is in the class `kind`."""
        return seconds_a_token(self.answers["plain"], kind) / seconds_a_token(self.answers[contender], kind)

    def speeds(self, contender: str, kinds: Iterable[str]) -> list[float]:
        """Return `speed` for each class."""
        return [self.speed(contender, kind) for kind in kinds]


def seconds_a_token(answers: Iterable[Answer], kind: str) -> float:
    """Return the mean seconds a token in the answers of the class `kind`."""
    mine = [answer for answer in answers if answer.kind == kind]
    return sum(answer.seconds for answer in mine) / sum(answer.tokens for answer in mine)


class Replay:
    """The recorded questions of a half (`tune` or `report`). `record`: decode missing records."""

    def __init__(self, records: Records, asked: Sequence[Question], half: str, *, record: bool) -> None:
        self._records, self._record = records, record
        mine = [question for question in asked if question.half == half]
        found = [(question, records.plain(question, decode=record)) for question in mine]
        self.asked = [(question, each) for question, each in found if each]

    @property
    def kinds(self) -> list[str]:
        """The classes of the recorded questions."""
        return list(dict.fromkeys(question.kind for question, _ in self.asked))

    def cell(self, law: Law, plain_ms: float, contenders: Iterable[str]) -> Cell:
        """Answer the questions in every mode on one law, with plain steps of `plain_ms` milliseconds."""
        plain_s, answers = plain_ms / 1e3, dict[str, list[Answer]]()
        for name in ("plain", *contenders):
            settings = settings_of(name, law)
            if settings.mode == "lookahead":
                answers[name] = list(self._lookahead(settings, law, plain_s))
                continue
            cost = law.cost(plain_s, law.rows) if name == KNOWS else None
            answers[name] = [
                answer(question.kind, record, settings, law, plain_s, cost) for question, record in self.asked
            ]
        return Cell(law.name, plain_ms, {name: found for name, found in answers.items() if found})

    def _lookahead(self, settings: DecodeSettings, law: Law, plain_s: float) -> Iterator[Answer]:
        """Yield the recorded answers of mode lookahead, with their seconds by a law."""
        for question, _ in self.asked:
            if steps := self._records.lookahead(question, settings, decode=self._record):
                rows, tokens = map(sum, zip(*steps, strict=True))
                seconds = plain_s * sum(law(each) for each, _ in steps)
                beyond = sum(each > law.max_rows for each, _ in steps)
                yield Answer(question.kind, tokens, len(steps), rows, seconds, beyond=beyond)


def table(cells: Sequence[Cell], kinds: Sequence[str]) -> str:
    """Return a table by machine and mode: times as fast as plain decoding in each class, and the geometric mean."""
    rows = []
    for cell in cells:
        for name in [name for name in cell.answers if name != "plain"]:
            there = {answer.kind for answer in cell.answers[name]}
            known = [kind for kind in kinds if kind in there]
            speeds = dict(zip(known, cell.speeds(name, known), strict=True))
            shown = [f"{speeds[kind]:.2f}" if kind in speeds else "" for kind in kinds]
            rows.append([cell.name, name, *shown, f"{geometric_mean(speeds.values()):.2f}"])
    return markdown(["machine", "mode", *kinds, "mean"], rows)


def tokens_a_step(cells: Sequence[Cell], kinds: Sequence[str]) -> str:
    """Return a table of S and the rows of a step by machine, mode and class, and the share of steps beyond the law."""
    rows = []
    for cell in cells:
        for name in [name for name in cell.answers if name != "plain"]:
            shown = []
            for kind in kinds:
                mine = [answer for answer in cell.answers[name] if answer.kind == kind]
                steps = sum(answer.steps for answer in mine)
                tokens, decoded = sum(answer.tokens for answer in mine), sum(answer.rows for answer in mine)
                shown.append(f"{tokens / steps:.2f} ({decoded / steps:.1f})" if steps else "")
            all_steps = sum(answer.steps for answer in cell.answers[name])
            beyond = sum(answer.beyond for answer in cell.answers[name]) / all_steps
            rows.append([cell.name, name, *shown, f"{beyond:.0%}" if beyond else ""])
    return markdown(["machine", "mode", *kinds, "beyond"], rows)


def misses(cells: Sequence[Cell], kinds: Sequence[str], contender: str) -> str:
    """Return a contender's mean and worst speed over all cells and classes, and a line for each below LEAST."""
    speeds = [(cell.speed(contender, kind), cell, kind) for cell in cells for kind in kinds]
    slow = [f"- {speed:.3f}: {kind}, {cell.name}" for speed, cell, kind in speeds if speed < LEAST]
    means = geometric_mean(speed for speed, _, _ in speeds)
    worst = min(speed for speed, _, _ in speeds)
    mine = [answer for cell in cells for answer in cell.answers[contender]]
    changes = f"{sum(each.changes for each in mine) / sum(each.steps for each in mine):.0%} of steps change size"
    return "\n".join(
        [
            f"{contender}: {changes}, mean {means:.3f}, worst {worst:.3f}, below {LEAST}: {len(slow)} of {len(speeds)}",
            *slow,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, required=True, help="a GGUF file; with all answers recorded only its name is used"
    )
    parser.add_argument("--spec-bench", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--each", type=int, default=6, help="questions of each class and half")
    parser.add_argument("--limit", type=int, default=96, help="tokens of an answer")
    parser.add_argument("--half", choices=("tune", "report"), default="report", help="the half of the questions")
    parser.add_argument("--laws", default=SHOWN, help="parts of names of laws, with commas, or all")
    parser.add_argument("--t1", type=float, default=10, help="milliseconds of a plain step if the law has none")
    parser.add_argument(
        "--only", default=",".join(CONTENDERS), help="some modes, or sizes W/N/G of lookahead, with commas"
    )
    parser.add_argument("--record", action="store_true", help="decode missing records")
    parser.add_argument("--cache", type=Path, default=CACHE, help="the folder of the records")
    arguments = parser.parse_args()
    records = Records(arguments.cache, arguments.model, arguments.limit)
    asked = questions([*OWN_PROMPTS, arguments.spec_bench], arguments.each)
    replay = Replay(records, asked, arguments.half, record=arguments.record)
    wanted, contenders, cells = arguments.laws.split(","), arguments.only.split(","), list[Cell]()
    for law in laws():
        if wanted == ["all"] or any(part in law.name for part in wanted):
            cells.append(replay.cell(law, law.plain_ms or arguments.t1, contenders))
            print(law.name, file=sys.stderr, flush=True)
    autos = [misses(cells, replay.kinds, name) for name in (LEARNS, KNOWS) if name in contenders]
    print("\n\n".join([table(cells, replay.kinds), tokens_a_step(cells, replay.kinds), *autos]))


if __name__ == "__main__":
    main()

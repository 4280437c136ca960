"""Mode auto on machines of other shapes: a real model, and steps that cost what a staircase says.

    python -m benchmarks.auto --stairs gpu --prompts benchmarks/prompts.jsonl
    python -m benchmarks.auto --stairs q4_0 --classes edit,extract --first 2 --only auto,auto:suffix
    python -m benchmarks.auto --kinds --only auto-window        how often guesses of each kind came true

Prints Markdown tables by class of prompts: tokens per unit of time relative to plain decoding, S, and rows a step. A
unit is a plain step, so plain's own number is 1 and it is only run to compare texts. The oracle drafts plain's text: it
is the most that any guesses could reach. Nothing depends on how busy this machine is. No test lives here.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter, thread_time
from typing import Any
from unittest.mock import patch

from benchmarks.oracle import best_rows, chain, oracle_in
from benchmarks.simulated import SHAPES, SimulatedEngine, Stairs
from lacli.auto import pool_source, recycling, rewriting, suffix
from lacli.auto.acceptance import AcceptanceEstimate
from lacli.bench.tasks import Task, built_in, by_class, read_tasks
from lacli.decode import Decoder
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.session.session import Session
from lacli.settings import DecodeSettings, SourceName, decode_settings
from lacli.stats import Step
from lacli.text.format import markdown
from lacli.tree import Origin

SOURCES: tuple[SourceName, ...] = ("suffix", "recycling", "pool", "window")
ALONE = ("auto:suffix", "auto:recycling", "auto:pool", "auto:pool+window")
LACKING = ("auto-suffix", "auto-recycling", "auto-pool", "auto-window")
ORACLE = "oracle"
CONTENDERS = (ORACLE, "lookahead", "lookup", "auto", *ALONE, *LACKING)

EXPECTED = {
    "suffix": suffix.EXPECTED,
    "rewriting": rewriting.EXPECTED,
    "recycling": recycling.EXPECTED,
    "pool": pool_source.EXPECTED,
}
"""What mode auto starts from, by kind of guess."""


@dataclass(frozen=True)
class Run:
    """One answer. ids: its tokens. units: of time, plain steps. own_s: seconds of lacli's own work in it."""

    ids: tuple[int, ...]
    steps: tuple[Step, ...]
    units: float
    own_s: float

    @property
    def speed(self) -> float:
        """Tokens a unit, so times as fast as plain decoding."""
        return len(self.ids) / self.units


class Bench:
    """One model, one context for all contenders, and a clock."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.stairs = Stairs.named(arguments.stairs)
        self.limit: int = arguments.limit
        self.best = best_rows(self.stairs.cost().staircases[0])
        self.contenders = {
            name: chain(DecodeSettings(), self.best) if name == ORACLE else settings_of(name, arguments.set)
            for name in arguments.only.split(",")
        }
        self.tasks = chosen_tasks(arguments)
        threads = arguments.threads
        model_settings = ModelSettings(context=arguments.context, threads=threads, threads_batch=threads)
        sampling = SamplingSettings(seed=arguments.seed, temp=arguments.temp)
        cost = None if arguments.learn else self.stairs.cost()
        self.session = Session(arguments.model, model_settings, DecodeSettings(mode="plain"), sampling, cost=cost)
        capacity = Capacity.of([DecodeSettings(mode="plain"), *self.contenders.values()])
        opened = LlamaEngine(self.session.model, self.session.model_settings, capacity, backend_greedy=False)
        self.engine = SimulatedEngine(opened, self.stairs, arguments.noise)

    def answer(self, settings: DecodeSettings, task: Task) -> Run:
        """One task's first turn, answered by a new decoder."""
        return self._run(self.session.decoder_in(self.engine, settings), self._prompt(task))

    def foretold(self, settings: DecodeSettings, task: Task, answer: Sequence[int]) -> Run:
        """The same by an oracle that knows plain decoding's answer."""
        prompt = self._prompt(task)
        decoder = oracle_in(self.engine, settings, prompt, answer, self.best, self.session.sampler)
        return self._run(decoder, prompt)

    def _prompt(self, task: Task) -> list[int]:
        return self.session.prompt(task.turns[0], task.system, raw=task.raw)

    def _run(self, decoder: Decoder, prompt: Sequence[int]) -> Run:
        begin, engine_s = thread_time(), self.engine.spent_s
        with self.engine.clock():
            steps = tuple(decoder.generate(prompt, self.limit))
        own_s = thread_time() - begin - (self.engine.spent_s - engine_s)
        units = sum(self.stairs(step.rows) for step in steps)
        return Run(tuple(token for step in steps for token in step.tokens), steps, units, own_s)


@dataclass(frozen=True)
class Total:
    """The answers of a contender to a class. plain: plain decoding's."""

    runs: Sequence[Run]
    plain: Sequence[Run]

    @property
    def speed(self) -> float:
        return sum(len(run.ids) for run in self.runs) / sum(run.units for run in self.runs)

    @property
    def worst(self) -> float:
        """The slowest answer's speed."""
        return min(run.speed for run in self.runs)

    @property
    def steps(self) -> list[Step]:
        return [step for run in self.runs for step in run.steps]

    @property
    def sizes(self) -> str:
        """S and the rows of a step."""
        steps = self.steps
        tokens, rows = sum(len(step.tokens) for step in steps), sum(step.rows for step in steps)
        return f"{tokens / len(steps):.2f} ({rows / len(steps):.1f})"

    @property
    def identical(self) -> int:
        return sum(run.ids == plain.ids for run, plain in zip(self.runs, self.plain, strict=True))

    @property
    def sources(self) -> str:
        """Accepted guesses over tried ones, by where they came from."""
        tried, accepted = Counter[Origin](), Counter[Origin]()
        for step in self.steps:
            tried.update(step.guesses)
            accepted.update(step.origins[:-1])
        return ", ".join(f"{origin.value} {accepted[origin]}/{tried[origin]}" for origin in Origin if tried[origin])

    @property
    def own_ms(self) -> float:
        """Milliseconds a step of lacli's own work, what the engine's calls take not counted."""
        return sum(run.own_s for run in self.runs) / len(self.steps) * 1e3


def settings_of(name: str, more: Sequence[str]) -> DecodeSettings:
    """What a contender's name means: `auto:` and sources with a plus between them, or `auto-` and the one left out."""
    given: dict[str, Any] = dict(pair.split("=", 1) for pair in more)
    given = {key: int(value) if value.lstrip("-").isdigit() else value for key, value in given.items()}
    if not name.startswith("auto"):
        return decode_settings(mode=name, **given)
    named = [source for source in SOURCES if source in name[5:].split("+")]
    if name.startswith("auto-"):
        named = [source for source in SOURCES if source not in named]
    return decode_settings(mode="auto", sources=tuple(named) or SOURCES, **given)


def chosen_tasks(arguments: argparse.Namespace) -> list[Task]:
    """The first prompts of each class that was asked for."""
    tasks = read_tasks(str(arguments.prompts)) if arguments.prompts else built_in()
    classes = by_class(tasks)
    wanted = arguments.classes.split(",") if arguments.classes else classes
    return [task for kind in wanted for task in classes.get(kind, [])[: arguments.first]]


def measured(bench: Bench) -> dict[str, dict[str, Total]]:
    """Every contender's answers by class; lines say how far it has got."""
    plain = {task: bench.answer(DecodeSettings(mode="plain"), task) for task in bench.tasks}
    kinds = dict.fromkeys(task.kind for task in bench.tasks)
    found: dict[str, dict[str, Total]] = {}
    for name, settings in bench.contenders.items():
        begin = perf_counter()
        if name == ORACLE:
            runs = {task: bench.foretold(settings, task, plain[task].ids) for task in bench.tasks}
        else:
            runs = {task: bench.answer(settings, task) for task in bench.tasks}
        found[name] = {
            kind: Total([runs[task] for task in runs if task.kind == kind],
                        [plain[task] for task in runs if task.kind == kind])
            for kind in kinds
        }  # fmt: skip
        print(f"{name}: {perf_counter() - begin:.0f} s", flush=True)
    return found


def tables(found: dict[str, dict[str, Total]]) -> str:
    """Speeds with their means and ratios, sizes, and what else there is to say of each contender."""
    kinds = list(next(iter(found.values())))
    speeds = {name: [totals[kind].speed for kind in kinds] for name, totals in found.items()}
    rows = [[name, *map(number, row), number(geometric_mean(row)),
             number(min(total.worst for total in found[name].values()))]
            for name, row in speeds.items()]  # fmt: skip
    if "auto" in speeds:
        for other in [name for name in speeds if name != "auto"]:
            ratios = [ours / theirs for ours, theirs in zip(speeds["auto"], speeds[other], strict=True)]
            rows.append([f"auto / {other}", *map(number, ratios), number(geometric_mean(ratios)), ""])
    sizes = [[name, *(total.sizes for total in totals.values())] for name, totals in found.items()]
    rest = []
    for name, totals in found.items():
        runs = [run for total in totals.values() for run in total.runs]
        plain = [run for total in totals.values() for run in total.plain]
        whole = Total(runs, plain)
        rest.append([name, whole.sources, f"{whole.identical} of {len(runs)}", f"{whole.own_ms:.3f}"])
    return "\n\n".join([
        markdown(["tokens a unit / plain's", *kinds, "geometric mean", "worst prompt"], rows),
        markdown(["S (rows a step)", *kinds], sizes),
        markdown(["", "accepted/tried guesses", "plain's texts", "own ms a step"], rest, left=2),
    ])  # fmt: skip


@contextmanager
def counting_kinds() -> Iterator[dict[int, list[list[int]]]]:
    """Hits and tries of each kind of guess, under the number of kinds that its source tells apart."""
    counts: dict[int, list[list[int]]] = {}
    original = AcceptanceEstimate.record

    def record(estimate: AcceptanceEstimate, kind: int, hit: bool) -> None:
        many = len(estimate.probability)
        counted = counts.setdefault(many, [[0, 0] for _ in range(many)])[kind]
        counted[0] += hit
        counted[1] += 1
        original(estimate, kind, hit)

    with patch.object(AcceptanceEstimate, "record", record):
        yield counts


def kinds_table(counts: dict[int, list[list[int]]]) -> str:
    """What each kind of guess is expected to be worth, and what it was."""
    rows = [
        [f"{name} {kind}", f"{expected[kind]:.3f}", f"{hits / tries:.3f}" if tries else "", str(tries)]
        for name, expected in EXPECTED.items()
        for kind, (hits, tries) in enumerate(counts.get(len(expected), []))
    ]
    return markdown(["kind", "expected", "came true", "tries"], rows)


def number(value: float) -> str:
    return f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stairs", default="gpu", help=f"{', '.join(SHAPES)}, or points such as 1:1,8:2.5")
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--prompts", type=Path, help="JSON lines, as lacli bench takes them (default: the built-in)")
    parser.add_argument("--classes", default="", help="some classes, with commas")
    parser.add_argument("--first", type=int, default=None, help="prompts of each class")
    parser.add_argument("--limit", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--only", default=",".join(CONTENDERS), help="some contenders, with commas")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of DecodeSettings")
    parser.add_argument("--learn", action="store_true", help="the staircase is learned while running, not given")
    parser.add_argument("--noise", type=float, default=0.0, help="how much equal steps differ: 0.1 is 10%%")
    parser.add_argument("--kinds", action="store_true", help="how often guesses came true by kind (one contender)")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    with counting_kinds() as counts:
        found = measured(Bench(arguments))
    print(kinds_table(counts) if arguments.kinds else tables(found))


if __name__ == "__main__":
    main()

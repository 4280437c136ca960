"""Several replicas on the CPU against one with as many threads in all: what dealing, merging and bookkeeping cost.

    python -m benchmarks.replicas                                   two replicas, bundled model
    python -m benchmarks.replicas --model MODEL --replicas 4 --threads 16

No gain is to be expected: the same cores compute some rows twice. Both answer the same prompts in turns, in one
process, and the medians of the answers are printed. No test lives here, and nothing here is timed by the tests.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import ParamSpec, TypeVar

from benchmarks.core import PROMPTS, Bench
from lacli.auto.mode import AutoModes
from lacli.decode import Decoder
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.devices import physical_cores
from lacli.replicas.group import ReplicaGroup
from lacli.settings import MODES, DecodeSettings
from lacli.stats import RunStatistics
from lacli.text.format import markdown

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

PARTS = {
    "dealing": (True, "_partitioned"),
    "making ready": (False, "prepare"),
    "merging": (True, "choices"),
    "keeping": (True, "commit"),
}
"""What is done in a step beside decoding, and by what: a method of the group, or of each replica. Trees are dealt out,
batches written, choices merged, and each cache made to hold what was accepted; a single replica needs no dealing."""


@dataclass
class Answer:
    """One answer. `seconds`: after the prefill, by the clock. `decoding`: of them those in which the slowest replica of
    a step decoded and chose. `parts`: seconds of each of PARTS."""

    statistics: RunStatistics
    seconds: float = 0.0
    decoding: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @property
    def ms(self) -> float:
        """Milliseconds of a step."""
        return 1e3 * self.seconds / self.statistics.steps

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.statistics.tokens / self.seconds

    @property
    def outside(self) -> float:
        """Microseconds of a step in which the slowest replica neither decodes nor chooses."""
        return 1e6 * (self.seconds - self.decoding) / self.statistics.steps

    def part(self, name: str) -> float:
        """Microseconds of a step."""
        return 1e6 * self.parts[name] / self.statistics.steps

    @property
    def counted(self) -> float:
        """Microseconds of a step in all of PARTS."""
        return sum(map(self.part, PARTS))


Pairs = Sequence[tuple[Answer, Answer]]
"""The answers of one replica and of several to the same prompts."""


def watched(replicas: ReplicaGroup, parts: dict[str, float]) -> None:
    """Add up the time of each of PARTS from now on."""

    def timed(name: str, call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        def measured(*given: Arguments.args, **named: Arguments.kwargs) -> Result:
            begin = perf_counter()
            try:
                return call(*given, **named)
            finally:
                parts[name] += perf_counter() - begin

        return measured

    for name, (group, method) in PARTS.items():
        for each in [replicas] if group else replicas.replicas:
            setattr(each, method, timed(name, getattr(each, method)))


def answer(engines: Sequence[LlamaEngine], decode_settings: DecodeSettings, prompt: list[int], limit: int) -> Answer:
    group = ReplicaGroup({f"{place}": engine for place, engine in enumerate(engines, start=1)})
    decoder = Decoder(group, decode_settings, make_mode=AutoModes())
    found = Answer(RunStatistics(prompt_tokens=len(prompt)))
    watched(group, found.parts)
    begin = perf_counter()
    for step in decoder.generate(prompt, limit):
        found.statistics.add(step)
        found.decoding += max(sum(replica.times) for replica, *_ in group._shares)
    found.seconds = perf_counter() - begin - decoder.prompt_s
    return found


def answered(bench: Bench, decode_settings: DecodeSettings, threads: int, count: int) -> Pairs:
    """Every prompt answered by one replica and by `count`, in turns."""
    prompts = [bench.prompt(text) for texts in bench.questions.values() for text in texts]
    with ExitStack() as stack:

        def opened(replicas: int) -> list[LlamaEngine]:
            each = max(threads // replicas, 1)
            settings = replace(bench.settings, threads=each, threads_batch=each)
            return [stack.enter_context(LlamaEngine(bench.model, settings, decode_settings)) for _ in range(replicas)]

        groups = opened(1), opened(count)
        for engines in groups:
            answer(engines, decode_settings, prompts[0], 8)  # the first steps of a context are slower
        pairs = []
        for _ in range(bench.repeats):
            for prompt in prompts:
                one, several = (answer(engines, decode_settings, prompt, bench.limit) for engines in groups)
                pairs.append((one, several))
        return pairs


def speeds(found: dict[str, Pairs], count: int) -> str:
    """What an answer takes."""
    header = ["mode", "S", f"S of {count}", "rows", f"rows of {count}", "ms a step", f"ms of {count}", "speed of one"]
    rows = []
    for mode, pairs in found.items():
        cells = [mode]
        for name, places in (("tokens_per_step", 2), ("rows_mean", 1)):
            cells += [f"{median(getattr(pair[side].statistics, name) for pair in pairs):.{places}f}" for side in (0, 1)]
        cells += [f"{median(pair[side].ms for pair in pairs):.2f}" for side in (0, 1)]
        rows.append([*cells, f"{median(several.speed / one.speed for one, several in pairs):.3f}"])
    return markdown(header, rows)


def bookkeeping(found: dict[str, Pairs]) -> str:
    """What is done in a step beside decoding, in microseconds, and what of it one replica does not."""
    header = ["mode", "replicas", *PARTS, "all four", "of a step", "outside decoding", "more than one's", "of a step"]
    rows = []
    for mode, pairs in found.items():
        for side, name in enumerate(("one", "several")):
            answers = [pair[side] for pair in pairs]
            cells = [mode, name, *(f"{median(each.part(part) for each in answers):.0f}" for part in PARTS)]
            cells += [f"{median(each.counted for each in answers):.0f}"]
            cells += [f"{median(each.counted / each.ms / 1e3 for each in answers):.2%}"]
            cells += [f"{median(each.outside for each in answers):.0f}"]
            if side:
                more = [several.counted - one.counted for one, several in pairs]
                part = [each / several.ms / 1e3 for each, (_, several) in zip(more, pairs, strict=True)]
                cells += [f"{median(more):.0f}", f"{median(part):.2%}"]
            else:
                cells += ["", ""]
            rows.append(cells)
    return markdown(header, rows, left=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help='JSONL rows {"class": ..., "prompt": ...}')
    parser.add_argument("--each", type=int, default=2, help="prompts a class")
    parser.add_argument("--tokens", type=int, default=64, help="tokens an answer may have")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=0, help="of all replicas together")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--mode", action="append", choices=MODES, help="may be given again; lookahead, auto and plain")
    arguments = parser.parse_args()
    arguments.threads = max(arguments.threads or physical_cores(), arguments.replicas)
    bench = Bench(arguments)
    threads, count = arguments.threads, arguments.replicas
    modes = arguments.mode or ["lookahead", "auto", "plain"]
    found = {mode: answered(bench, DecodeSettings(mode=mode), threads, count) for mode in modes}
    print(f"{bench.model.path.name}: one replica with {threads} threads, {count} with {threads // count} each\n")
    print(speeds(found, count))
    print("\nBeside decoding, microseconds a step:\n")
    print(bookkeeping(found))
    bench.model.close()


if __name__ == "__main__":
    main()

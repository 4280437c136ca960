"""Many texts on the machines of `step_costs.jsonl`: what all of them get together, by mode and number of texts.

    python -m benchmarks.many --laws "RTX 3090,Spark,EPYC" --texts 1,2,4,8

Real texts and guesses of the demo model on a clock by each law (`replay.py` says how it moves). The prompts of a class
answer in groups of so many texts at once; steps count from when all prompts of a group are decoded. "auto learns"
begins with nothing known, "auto knows" was told the law, and both go on from group to group. No test lives here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.replay import FOLDER, KNOWS, LEARNS, Law, LawEngine, laws, settings_of
from lacli.auto.mode import AutoModes
from lacli.bench.tasks import Task, read_tasks
from lacli.decode import Decoder
from lacli.hub.names import demo_model
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.schedule import Schedule
from lacli.session.session import Session
from lacli.settings import MAX_SEQUENCES, DecodeSettings
from lacli.text.format import markdown

CONTENDERS = ("plain", "lookup", LEARNS, KNOWS)
CELLS = 8192


class SharedLawEngine(LawEngine):
    """Decodes pieces of prompt of any size; they are not timed."""

    @property
    def batch_rows(self) -> int:
        return self.engine.batch_rows


class Many:
    """The demo model with a context for many texts; it answers groups of prompts in any mode on any law."""

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
        assert settings
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=demo_model(), help="a GGUF file")
    parser.add_argument("--prompts", type=Path, default=FOLDER / "prompts.jsonl", help="a file of prompts")
    parser.add_argument("--laws", default="RTX 3090,Spark, 7B,EPYC", help="parts of names of laws, with commas")
    parser.add_argument("--texts", default="1,2,4,8", help="numbers of texts at once, with commas")
    parser.add_argument("--t1", type=float, default=15, help="milliseconds of a plain step")
    parser.add_argument("--limit", type=int, default=128, help="tokens of an answer")
    arguments = parser.parse_args()
    many, tasks = Many(arguments.model, arguments.limit), read_tasks(arguments.prompts)
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


if __name__ == "__main__":
    main()

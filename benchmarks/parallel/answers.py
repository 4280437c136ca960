"""A model's answers as traces: in lookahead with any W, N and G, and in mode auto on a simulated group of devices.

What the steps of a trace take is `steps.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

from benchmarks.parallel.device import Travel
from benchmarks.parallel.steps import Group, GroupStairs
from benchmarks.parallel.trace import Trace, TracedStep, TracingDecoder
from benchmarks.simulated import SimulatedEngine, Stairs
from lacli.auto.mode import AutoModes
from lacli.bench.tasks import Task
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.session.session import Session
from lacli.settings import DecodeSettings, decode_settings
from lacli.text.files import Closing

CELLS = 4096
AUTO = DecodeSettings(mode="auto")


def lookahead(size: str) -> DecodeSettings:
    """The settings of W/N/G, such as 15/5/15. Raises UsageError for what is none or needs too many sequences."""
    window, ngram, guesses = (int(number) for number in size.split("/"))
    return decode_settings(mode="lookahead", window=window, ngram=ngram, guesses=guesses)


class Answers(Closing):
    """Greedy answers of at most `limit` tokens to each task's first turn."""

    def __init__(self, model: Path, tasks: Sequence[Task], sizes: Sequence[str], limit: int, threads: int) -> None:
        model_settings = ModelSettings(context=CELLS, threads=threads, threads_batch=threads)
        self._limit = limit
        self._session = Session(model, model_settings, DecodeSettings(mode="plain"), SamplingSettings(temp=0.0))
        capacity = Capacity.of([AUTO, *map(lookahead, sizes)])
        self._engine = LlamaEngine(self._session.model, self._session.model_settings, capacity, backend_greedy=False)
        self._prompts: dict[str, list[list[int]]] = {}
        for task in tasks:
            prompt = self._session.prompt(task.turns[0], task.system, raw=task.raw)
            self._prompts.setdefault(task.kind, []).append(prompt)

    def with_lookahead(self, size: str) -> list[Trace]:
        """A trace for each class."""
        settings = lookahead(size)
        return self._traces(lambda prompt: TracingDecoder(self._engine, settings).traced(prompt, self._limit))

    def with_auto(self, stairs: Stairs, devices: int, travel: Travel | None) -> list[Trace]:
        """The same of mode auto, which decides by the clock of these devices and has measured one of them before."""
        return self._traces(lambda prompt: self._auto(stairs, Group(stairs, devices, travel), prompt))

    def _traces(self, answer: Callable[[Sequence[int]], tuple[TracedStep, ...]]) -> list[Trace]:
        return [
            Trace(kind, tuple(map(answer, prompts)), round(mean(map(len, prompts))))
            for kind, prompts in self._prompts.items()
        ]

    def _auto(self, stairs: Stairs, group: Group, prompt: Sequence[int]) -> tuple[TracedStep, ...]:
        together = GroupStairs(stairs, group)
        engine = SimulatedEngine(self._engine, together)
        decoder = TracingDecoder(engine, AUTO, make_mode=AutoModes(stairs.cost()))
        decoder.watcher = together
        with engine.clock():
            return decoder.traced(prompt, self._limit)

    def close(self) -> None:
        self._engine.close()
        self._session.close()

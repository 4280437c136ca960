"""What steps hold and bring: their trees and accepted paths, recorded while a model really decodes, or drawn from the
paper's law.

A trace knows no time: what its steps take on several devices says `steps.py`. Which replica decodes which
part of a lookahead step changes no text, so one trace is good for any number of them. Mode auto looks at the clock, so
its traces are good for the machine they were made on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Protocol

from benchmarks.insight.law import Law
from lacli.decode import Decoder
from lacli.modes import Mode, Outcome
from lacli.stats import Plan
from lacli.tree import Origin, Tree
from lacli.window import Window

LAW_SEED = 2402
LAW_STEPS = 300
LAW_PROMPT = 128


@dataclass(frozen=True)
class TracedStep:
    """A step's tree, and the nodes of it that were accepted below the input."""

    tree: Tree
    nodes: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """What it brought, the model's own token among them."""
        return 1 + len(self.nodes)


@dataclass(frozen=True)
class Trace:
    """Answers to prompts of one class, each one's steps. prompt: tokens of a prompt, the mean."""

    kind: str
    answers: tuple[tuple[TracedStep, ...], ...]
    prompt: int = 1

    @property
    def steps(self) -> int:
        return sum(len(answer) for answer in self.answers)

    @property
    def tokens(self) -> int:
        return sum(step.tokens for answer in self.answers for step in answer)

    @property
    def compression(self) -> float:
        """S, tokens a step."""
        return self.tokens / self.steps

    @property
    def rows(self) -> float:
        """Mean rows of a step's tree."""
        return sum(len(step.tree) for answer in self.answers for step in answer) / self.steps


class Watcher(Protocol):
    """Who is told of a step before it is decoded, and of what became of it."""

    def watch(self, tree: Tree) -> None:
        """This tree is decoded next."""

    def commit(self, nodes: Sequence[int]) -> None:
        """These nodes of it were accepted."""


class Recording(Mode):
    """Guesses as another mode does, and remembers its steps."""

    def __init__(self, mode: Mode, watcher: Watcher | None = None) -> None:
        self._mode = mode
        self._watcher = watcher
        self.steps: list[TracedStep] = []

    @property
    def plan(self) -> Plan | None:  # type: ignore[override]  # a mode has it as a variable
        return self._mode.plan

    def begin(self, text: Sequence[int]) -> None:
        self._mode.begin(text)

    def prefilled(self, rows: int, seconds: float) -> None:
        self._mode.prefilled(rows, seconds)

    def truncate(self, text: Sequence[int], length: int) -> None:
        self._mode.truncate(text, length)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        tree = self._mode.grow(text, room)
        if self._watcher:
            self._watcher.watch(tree)
        return tree

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        self._mode.observe(tree, outcome)
        if self._watcher:
            self._watcher.commit(outcome.nodes)
        self.steps.append(TracedStep(tree, tuple(outcome.nodes)))


class TracingDecoder(Decoder):
    """A decoder whose steps can be asked for when an answer is done."""

    watcher: Watcher | None = None
    recording: Recording

    def _new_mode(self, before: Mode | None = None) -> Mode:
        self.recording = Recording(super()._new_mode(), self.watcher)
        return self.recording

    def traced(self, prompt: Sequence[int], limit: int) -> tuple[TracedStep, ...]:
        """The steps of an answer of at most `limit` tokens."""
        for _ in self.generate(prompt, limit):
            pass
        return tuple(self.recording.steps)


def law_trace(law: Law, window: int, ngram: int, guesses: int) -> Trace:
    """Full trees: one in f has a candidate that comes true to some depth, by Equations 5 and 7.

    Each depth is as frequent as its probability; which candidate it is, and in which step, is drawn with a fixed seed.
    """
    random = Random(LAW_SEED)
    tree, ends = full_tree(window, ngram, guesses)
    good = round(LAW_STEPS / law.f)
    depths = [_depth(law.alpha, ngram - 1, guesses, (place + 0.5) / good) for place in range(good)]
    depths += [0] * (LAW_STEPS - good)
    random.shuffle(depths)
    begins = [random.choice(ends) - ngram + 2 for _ in depths]
    steps = (TracedStep(tree, tuple(range(begin, begin + depth))) for begin, depth in zip(begins, depths, strict=True))
    return Trace("law", (tuple(steps),), LAW_PROMPT)


def full_tree(window: int, ngram: int, guesses: int) -> tuple[Tree, list[int]]:
    """The largest step of W, N and G, in which only row 0 is shared, and the node that each candidate ends at."""
    tokens = count(1)
    tree = Tree(0)
    ends = [
        tree.add_path([next(tokens) for _ in range(ngram - 1)], sequence, Origin.POOL)
        for sequence in range(window + 1, window + guesses + 1)
    ]
    for column, path in enumerate(Window(window, ngram, lambda: next(tokens), ()).paths(), start=1):
        tree.verified[tree.add_path(path, column, Origin.WINDOW, verify=False)] = True
    return tree, ends


def _depth(alpha: float, deepest: int, sequences: int, share: float) -> int:
    """The largest depth that more than `share` of all steps reach, with `sequences` guesses of `deepest` tokens."""
    return sum(1 - (1 - alpha**depth) ** sequences > share for depth in range(1, deepest + 1))

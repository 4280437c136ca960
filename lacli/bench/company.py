"""Several texts at a time as contenders: the same blocks of prompts, answered in groups of 1, 2, 4 .. in each mode.

All prompts of a group are read before any of its texts decodes, so they are in company from their first token on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, product
from math import lcm
from time import perf_counter

from lacli.bench.contenders import points_of, with_plain
from lacli.bench.plan import BenchPrompts, Wish, by_class
from lacli.bench.rounds import Asker, Contender, Exchange, Trial, accepted_guesses
from lacli.bench.run import Request
from lacli.bench.sweep import Point
from lacli.bench.tasks import Task
from lacli.engine import Engine
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.context import Context, LlamaEngine
from lacli.llamacpp.settings import Capacity
from lacli.schedule import HEADROOM, Schedule
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.stats import Step, core_wanted_s
from lacli.terminal.interrupts import ctrl_c_ends_at_once
from lacli.terminal.screen import Screen
from lacli.text.format import counted

MAX_TOKENS = 64
"""Tokens of an answer without -n: prompts are read for every number of texts, so answers have less of the time."""

WARM_UP = "warm-up"
WARM_UP_TOKENS = 16
"""Tokens of each prompt that warms up."""

Texts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class BlockTrial(Trial):
    """The answers to a block of prompts.

    `answers`: the tokens of each. `paces`: seconds a token of each, from the first step of its group to its own last.
    `decode_s`: seconds of the steps in llama.cpp, each counted once for all its texts.
    """

    answers: Texts = ()
    paces: tuple[float, ...] = ()
    decode_s: float = 0.0

    def core_wanted_s(self, threads: int) -> float:
        return core_wanted_s(threads, self.seconds, self.decode_s, self.prompt_s)


@dataclass(frozen=True)
class Blocks:
    """Prompts of a class in blocks of `size`, which each number of texts divides.

    `texts`: the prompts of each block by its task's name; WARM_UP has the beginnings of the first block's. `tasks`: one
    for each block. `room`: tokens of a text, its prompt among them. `context`: cells for all texts. `wish`: how much is
    asked.
    """

    texts: Mapping[str, Texts]
    tasks: tuple[Task, ...]
    size: int
    room: int
    context: int
    wish: Wish

    @property
    def asker(self) -> Asker:
        """Gives a benchmark all prompts of a block as one."""
        return Asker(lambda task, answers: [*chain(*self.texts[task.name])], self.size * self.room)

    @property
    def prompts(self) -> BenchPrompts:
        """What a benchmark plans with."""
        first = Task((WARM_UP,), name=WARM_UP, max_tokens=self.tasks[0].max_tokens)
        shortest = self.asker.exchange(first, ())
        assert shortest, "the beginnings of prompts fit"
        return BenchPrompts({task: len(self.asker.prompt(task, ())) for task in self.tasks}, shortest, self.size)


def blocks_of(session: Session, request: Request, screen: Screen) -> Blocks:
    """The prompts of each class in blocks, as far as they fit. Raises LacliError where there is not a whole block."""
    size, most, wish = lcm(*request.parallel), max(request.parallel), request.wish
    limit, asked = wish.max_tokens or MAX_TOKENS, session.engine.cells if session.model_settings.context else 0
    tokens = {task: session.prompt(task.turns[0], task.system, raw=task.raw) for task in request.tasks}
    longest = max(map(len, tokens.values())) + limit + HEADROOM
    room = asked // most if asked else min(longest, session.model.default_context)
    prompts: dict[str, Texts] = {}
    tasks: list[Task] = []
    few: list[str] = []
    for kind, members in by_class(request.tasks).items():
        fitting = [tuple(tokens[task]) for task in members if len(tokens[task]) + HEADROOM <= room][: wish.each]
        for first in range(0, len(fitting) - size + 1, size):
            tasks.append(Task((kind,), kind, f"{kind}/{first // size}", max_tokens=limit))
            prompts[tasks[-1].name] = tuple(fitting[first : first + size])
        if len(fitting) < size:
            few.append(f"left out: {kind}: {len(fitting)} of its prompts can be taken, and a block has {size}")
    if not tasks:
        numbers, longest_prompt = ",".join(map(str, request.parallel)), counted(max(room - HEADROOM, 0), "token")
        raise LacliError(
            f"--parallel {numbers} takes {size} prompts of a class, of at most {longest_prompt} each",
            "name other numbers, or more prompts with --prompts and --each, or a larger -c",
        )
    screen.notes(few, ())
    prompts[WARM_UP] = tuple(prompt[:WARM_UP_TOKENS] for prompt in prompts[tasks[0].name])
    wish = replace(wish, each=wish.each and len(tasks))
    return Blocks(prompts, tuple(tasks), size, room, asked or most * room, wish)


@contextmanager
def companies(
    session: Session, blocks: Blocks, request: Request, screen: Screen
) -> Iterator[tuple[Context, list[Contender]]]:
    """Each mode with each number of texts as a contender, plain decoding first, and a context whose logits can be read.

    One text and several have contexts of their own, and so have plain decoding and the other modes. Numbers for which a
    mode has too few sequence ids are left out.
    """
    if session.model.chain_only and max(request.parallel) > 1:
        screen.note("only plain decoding is measured: the recurrent states of several texts do not go back together")
        points = with_plain([Point(session.settings)])
    else:
        points = points_of(session, request.axes, screen)
    found: list[tuple[Point, DecodeSettings, int]] = []
    for point, texts in product(points, request.parallel):
        try:
            found.append((point, point.settings.for_texts(texts), texts))
        except UsageError as error:
            if point.settings.mode == "plain":
                raise
            screen.note(f"left out: {point.label}: {error.what}")
    # A context with 256 sequence ids takes 0.03 ms more a step (the demo model), and plain decoding needs few of them.
    keys = [(point.settings.mode == "plain", texts == 1) for point, _, texts in found]
    engines: dict[tuple[bool, bool], Context] = {(True, True): session.engine}
    loading = session.model_settings
    with ExitStack() as stack:
        with ctrl_c_ends_at_once():
            for key in dict.fromkeys(keys[1:]):
                own = [each for each, its_key in zip(found, keys, strict=True) if its_key == key]
                sizes = [Capacity.for_texts(settings, texts, loading.batch) for _, settings, texts in own]
                sized = loading if key[1] else replace(loading, context=blocks.context)
                engine = LlamaEngine(session.model, sized, Capacity.of(sizes), backend_greedy=False)
                engines[key] = stack.enter_context(engine)
        competing = [
            Contender(
                label=f"{point.label}, {texts} at a time",
                point=point,
                baseline=request.parallel.index(texts),
                answer=_answering(session, engines[key], settings, blocks, texts),
                memory=engines[key].memory,
                texts=texts,
            )
            for key, (point, settings, texts) in zip(keys, found, strict=True)
        ]
        yield [*engines.values()][-1], competing


def _answering(
    session: Session, engine: Engine, settings: DecodeSettings, blocks: Blocks, texts: int
) -> Callable[[Exchange], Trial]:
    def answer(exchange: Exchange) -> Trial:
        prompts = blocks.texts[exchange.task.name]
        block = _Groups()
        for first in range(0, len(prompts), texts):
            group = prompts[first : first + texts]
            limits = [min(exchange.max_tokens, blocks.room - len(prompt)) for prompt in group]
            schedule = Schedule(session.decoder_in(engine, settings), texts, reads_first=True)
            _decode_group(session, schedule, group, limits, block)
        return BlockTrial(
            ids=tuple(chain(*block.answers)),
            text=None,
            tokens=sum(map(len, block.answers)),
            step_count=len(block.rows),
            rows=sum(block.rows),
            drafted=sum(step.drafted for step in block.steps),
            accepted=accepted_guesses(block.steps),
            seconds=block.seconds,
            prompt_s=block.prompt_s,
            # No text waits for the prompts of others elsewhere.
            first_token_s=0.0,
            steps=tuple(block.steps),
            answers=tuple(block.answers),
            paces=tuple(block.paces),
            decode_s=block.decode_s,
        )

    return answer


@dataclass
class _Groups:
    """What the groups of a block have brought so far. `rows`: of each step that the texts of a group shared."""

    answers: list[tuple[int, ...]] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    prompt_s: float = 0.0
    seconds: float = 0.0
    decode_s: float = 0.0


def _decode_group(session: Session, schedule: Schedule, prompts: Texts, limits: Sequence[int], block: _Groups) -> None:
    """Decode texts together to their ends, and add them to `block`. `limits`: tokens of each answer."""
    begin, first = perf_counter(), 0.0
    with ExitStack() as samplers:
        texts = []
        for prompt, limit in zip(prompts, limits, strict=True):
            # Where a model suppresses tokens a sampler takes the most probable ones too.
            verifier, sampler = session.text_verifier(session.sampling)
            if sampler:
                samplers.callback(sampler.close)
            texts.append(schedule.add(prompt, limit, verifier=verifier, sampled=False))
        ends = dict.fromkeys(texts, 0.0)
        while schedule.texts:
            before = perf_counter()
            found = [(news.text, news.step) for news in schedule.step() if news.step]
            if found:
                first = first or before
                block.rows.append(found[0][1].rows)
                block.decode_s += found[0][1].decode_s
            for text, step in found:
                ends[text] = perf_counter()
                block.steps.append(step)
    for text, prompt in zip(texts, prompts, strict=True):
        block.answers.append(tuple(text.tokens[len(prompt) :]))
        block.paces.append((ends[text] - first) / len(block.answers[-1]))
    block.prompt_s += first - begin
    block.seconds += max(ends.values()) - first

"""Mode auto in an engine: plain decoding's tokens at any step costs, and hardly ever more time than it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.auto.step_cost import FIRST_ROWS, Cost, StepCost
from lacli.batch import Batch
from lacli.settings import Constraints, DecodeSettings
from lacli.stats import Step
from lacli.tree import Origin
from lacli.verify import SampleAndMatch
from tests.engine.test_engine import VOCABULARY, ends, engine_for, holds_its_text, plain_tokens, prompts, tokens_of
from tests.fakes.clock import ClockedContext, FakeClock
from tests.fakes.decoding import Decoding
from tests.fakes.sampler import FakeSampler
from tests.fakes.scripted_context import ScriptedContext

PLAIN_S = 0.01

any_auto = st.builds(
    DecodeSettings,
    mode=st.just("auto"),
    auto_rows=st.integers(1, 70),
    constraints=st.builds(Constraints, ordered=st.booleans(), min_outputs=st.sampled_from([1, 2])),
)


@dataclass(frozen=True)
class Stairs:
    """Step costs by rows, in plain steps, with straight lines between the points."""

    costs: tuple[tuple[int, float], ...]

    @property
    def measured(self) -> Cost:
        return Cost((StepCost(0, {rows: cost * PLAIN_S for rows, cost in self.costs}),))

    def seconds(self, rows: int) -> float:
        return self.measured.at(0).seconds(rows)


any_stairs = st.one_of(
    st.just(Stairs(((1, 1.0), (64, 1.3)))),
    st.floats(0, 0.02).map(lambda row: Stairs(((1, 1.0), (64, 1 + 63 * row)))),
    st.lists(st.floats(0.9, 6), min_size=6, max_size=6).map(
        lambda costs: Stairs(((1, 1.0), *zip((2, 3, 4, 8, 16, 64), costs, strict=True)))
    ),
)


seldom = st.one_of(st.just(frozenset[int]()), ends)


@contextmanager
def clocked(clock: FakeClock) -> Iterator[None]:
    """Replace the engine's clock by this one."""
    with pytest.MonkeyPatch.context() as patch:
        clock.install(patch)
        yield


def toy(
    chosen: DecodeSettings, stairs: Stairs, clock: FakeClock, cells: int, ends: frozenset[int], batch_rows: int = 256
) -> ClockedContext:
    alike = engine_for(chosen, cells, batch_rows, ends=ends)
    return ClockedContext(
        cells,
        alike.batch_rows,
        alike.ids,
        VOCABULARY,
        ends,
        max_outputs=alike.max_outputs,
        ordered=alike.ordered,
        min_outputs=alike.min_outputs,
        clock=clock,
        cost=lambda rows, outputs: stairs.seconds(rows),
    )


@dataclass(frozen=True)
class Setting:
    """A run of the toy model. `real`: its step costs. `measured`: the costs that mode auto begins with, None: none."""

    chosen: DecodeSettings
    real: Stairs
    measured: Stairs | None
    prompt: list[int]
    ends: frozenset[int]
    limit: int
    cells: int
    batch_rows: int = 256

    def plain(self, prompt: list[int], limit: int) -> list[int]:
        # Padding rows of a step need cells, which the sequence then cannot have.
        return plain_tokens(prompt, limit, self.cells - self.chosen.constraints.min_outputs + 1, self.ends)

    def steps(self) -> list[Step]:
        """Return the steps of two answers, and check that their tokens are plain decoding's."""
        clock = FakeClock()
        engine = toy(self.chosen, self.real, clock, self.cells, self.ends, self.batch_rows)
        text = self.plain(self.prompt, self.limit)
        with clocked(clock):
            measured = self.measured.measured if self.measured else None
            decoder = Decoding(engine, self.chosen, cost=measured)
            steps = list(decoder.generate(self.prompt, self.limit))
            assert tokens_of(steps) == text
            assert decoder.tokens == self.prompt + text
            assert not steps or holds_its_text(decoder, engine)
            begun = [*decoder.tokens[:20], *self.prompt[:3]]
            again = list(decoder.generate(begun, 9))
            assert tokens_of(again) == self.plain(begun, 9)
            assert not steps or holds_its_text(decoder, engine)
        for step in [*steps, *again]:
            assert step.rows <= self.chosen.max_rows and step.drafted < self.chosen.max_step_tokens
        return [*steps, *again]


any_setting = st.builds(
    Setting,
    any_auto,
    any_stairs,
    st.one_of(st.none(), any_stairs),
    prompts,
    seldom,
    st.integers(-1, 60),
    st.integers(60, 110),
    st.one_of(st.just(256), st.integers(4, 40)),
)


def test_drafts_at_any_cost_give_plains_text() -> None:
    count: Counter[str] = Counter()

    @given(any_setting)
    @settings(max_examples=300)
    def holds(setting: Setting) -> None:
        for step in setting.steps():
            count["all"] += 1
            count["with drafts"] += step.drafted > 0

    holds()
    assert count["with drafts"] > 0.05 * count["all"], "too few steps have drafts for this test"


@given(
    any_auto, any_stairs, prompts, st.integers(0, 1000), st.sampled_from([0.3, 1.0, 3.0]), st.sampled_from([0.0, 0.5])
)
@settings(max_examples=100)
def test_a_seed_gives_plains_text_at_any_cost(
    chosen: DecodeSettings, stairs: Stairs, prompt: list[int], seed: int, temperature: float, penalty: float
) -> None:
    plain, sampler = DecodeSettings(mode="plain"), FakeSampler(seed, temperature, penalty)
    alone = tokens_of(list(Decoding(engine_for(plain), plain, SampleAndMatch(sampler)).generate(prompt, 40)))
    clock = FakeClock()
    with clocked(clock):
        engine = toy(chosen, stairs, clock, 256, frozenset())
        decoder = Decoding(engine, chosen, SampleAndMatch(sampler), cost=stairs.measured)
        assert tokens_of(list(decoder.generate(prompt, 40))) == alone
    assert sampler._seen == prompt + alone


CPU_F16 = Stairs(((1, 1.0), (2, 2.0), (4, 2.5), (8, 3.7), (16, 5.9), (32, 10.0), (64, 19.0)))
CPU_Q4 = Stairs(
    ((1, 1.0), (2, 1.9), (3, 2.8), (4, 1.9), (5, 2.7), (7, 4.5), (8, 3.4), (16, 5.1), (32, 9.9), (64, 19.9))
)
GPU = Stairs(((1, 1.0), (64, 1.3)))
"""Step costs of two CPUs and of a GPU. On the second CPU three rows cost more than four."""

STAIRS = {"f16": CPU_F16, "q4_0": CPU_Q4, "gpu": GPU}
AUTO = DecodeSettings(mode="auto")
TOKENS, PROMPT = 50, 200
LONG = 1500
WORST = 1.025


@dataclass
class Writer:
    """A script that copies passages of its text, with some tokens changed.

    `departs`: accepted drafts before a changed token, None: never. `subject`: tokens of each copied and random part.
    """

    seed: int
    departs: int | None = None
    subject: int | None = None
    passage: int = 60
    good: int = 0
    random: Random = field(init=False)
    text: list[int] = field(init=False)
    copied: int = -1
    run: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.text = [self.random.randrange(TOKENS) for _ in range(PROMPT)]

    def __call__(self, place: int, guessed: Set[int]) -> int:
        del self.text[place:]
        token = self._next(place)
        self.run = self.run + 1 if guessed else 0
        if self.departs is not None and place > self.good and self.run > self.departs and token in guessed:
            token = self.random.choice([other for other in range(TOKENS) if other not in guessed])
            self.copied = -1
        self.text.append(token)
        return token

    def _next(self, place: int) -> int:
        if self.subject and place // self.subject % 2:
            return self.random.randrange(TOKENS)
        if self.copied < 0 or self.random.random() < 1 / self.passage:
            self.copied = self.random.randrange(place - 2)
        self.copied += 1
        return self.text[self.copied - 1]


Seconds = Callable[[int, int], float]
"""Seconds of a step by its rows and its first position."""


def run(
    writer: Writer, seconds: Seconds, cost: Cost | None, chosen: DecodeSettings = AUTO, length: int = LONG
) -> tuple[float, list[Step]]:
    """Return an answer's time, as a multiple of plain decoding's, and its steps."""
    clock = FakeClock()
    engine = ScriptedContext(writer, seconds, clock)
    with clocked(clock):
        steps = list(Decoding(engine, chosen, cost=cost).generate(list(writer.text), length))
    plain = sum(seconds(1, PROMPT - 1 + token) for token in range(length))
    return sum(step.seconds for step in steps) / plain, steps


WRITERS: dict[str, Callable[[int], Writer]] = {
    "each guess is wrong": lambda seed: Writer(seed, departs=0),
    "each guess is wrong and nothing repeats": lambda seed: Writer(seed, departs=0, passage=1),
    "one guess is right": lambda seed: Writer(seed, departs=1),
    "four guesses are right": lambda seed: Writer(seed, departs=4),
    "it copies well and then each guess is wrong": lambda seed: Writer(seed, departs=0, good=PROMPT + 300),
    "copying and nonsense take turns": lambda seed: Writer(seed, subject=300),
    "nonsense": lambda seed: Writer(seed, passage=1),
}


JUMPS: dict[str, Callable[[int, float], float]] = {
    "": lambda rows, before: before,
    "several rows cost twice as much": lambda rows, before: before * (1 + (rows > 1)),
    "all steps take twice as long": lambda rows, before: before * 2,
    "a single row costs half": lambda rows, before: before / (1 + (rows == 1)),
    "a single row costs twice as much": lambda rows, before: before * (1 + (rows == 1)),
}
"""Seconds of a step from the middle of the answer on, by its rows and its seconds before."""

HOSTILE = [
    *((name, "q4_0", known, jump) for name in WRITERS for known, jump in (("q4_0", ""), ("", ""), ("gpu", ""))),
    *((name, "f16", known, "") for name in WRITERS for known in ("f16", "")),
    *((name, "gpu", "gpu" if place % 2 else "", "") for place, name in enumerate(WRITERS)),
    *((name, "q4_0", "q4_0", jump) for name in WRITERS for jump in JUMPS if jump),
    *(("four guesses are right", shape, shape, jump) for shape in ("f16", "gpu") for jump in JUMPS if jump),
]


@pytest.mark.parametrize(("name", "shape", "known", "jump"), HOSTILE)
def test_a_hostile_text_costs_hardly_more_than_a_plain_run_whatever_was_believed_of_the_machine(
    name: str, shape: str, known: str, jump: str
) -> None:
    stairs, after = STAIRS[shape], JUMPS[jump]

    def seconds(rows: int, place: int) -> float:
        before = stairs.seconds(rows)
        return after(rows, before) if place > PROMPT + LONG // 2 else before

    took, steps = run(WRITERS[name](1), seconds, STAIRS[known].measured if known else None)
    assert took <= WORST
    assert jump or any(step.drafted for step in steps), "no step has drafts"


@pytest.mark.parametrize("slow", [(1, 4.0), (3, 2.0), (5, 3.0)])
@pytest.mark.parametrize("passage", [4, 8, 20])
@pytest.mark.parametrize("shape", ["f16", "q4_0"])
def test_first_steps_that_were_slow_deceive_no_one(shape: str, passage: int, slow: tuple[int, float]) -> None:
    stairs, (count, factor) = STAIRS[shape], slow

    def seconds(rows: int, place: int) -> float:
        return stairs.seconds(rows) * (factor if rows == 1 and place < PROMPT - 1 + count else 1)

    assert run(Writer(4, passage=passage), seconds, None)[0] <= WORST


class Watching(ScriptedContext):
    """A scripted context that records the number of rows and the ids of each step."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.used: list[set[int]] = []
        self.rows: list[int] = []

    def decode(self, batch: Batch) -> bool:
        if batch.wanted:
            self.rows.append(len(batch))
            self.used.append(set(batch.sequence_ids[: int(batch.sequence_counts[: len(batch)].sum())].tolist()))
        return super().decode(batch)


def watched(
    writer: Writer, stairs: Stairs, chosen: DecodeSettings = AUTO, length: int = 300, saved: Stairs | None = None
) -> tuple[Watching, list[Step]]:
    """Decode in mode auto with the step costs `stairs`. `saved`: the costs that auto begins with, None: the real."""
    clock = FakeClock()
    engine = Watching(writer, lambda rows, _: stairs.seconds(rows), clock, ids=chosen.ids)
    with clocked(clock):
        decoder = Decoding(engine, chosen, cost=(saved or stairs).measured)
        prompt = list(writer.text)
        steps = list(decoder.generate(prompt, length))
    return engine, steps


def test_if_rows_are_dear_and_nothing_repeats_each_step_is_a_plain_one() -> None:
    engine, _ = watched(Writer(5, passage=1), CPU_F16)
    assert sum(rows > 1 for rows in engine.rows) < 0.02 * len(engine.rows)
    assert all(used == {0} for used in engine.used)


@pytest.mark.parametrize("stairs", [CPU_F16, CPU_Q4])
def test_if_rows_are_dear_drafts_are_chains_with_the_sequences_first_id(stairs: Stairs) -> None:
    engine, steps = watched(Writer(6), stairs)
    assert max(engine.rows) > 5 and all(used == {0} for used in engine.used)
    assert {origin for step in steps for origin in step.guesses} == {Origin.SUFFIX}


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_saved_costs_that_are_wrong_are_out_within_sixty_steps(factor: float) -> None:
    wrong = Stairs(tuple((rows, 1 + (cost - 1) * factor) for rows, cost in CPU_Q4.costs))
    engine, steps = watched(Writer(6), CPU_Q4, saved=wrong)
    assert max(engine.rows[:60]) > 2 and max(len(step.tokens) for step in steps[:60]) > 3
    right, _ = watched(Writer(6), CPU_Q4)
    assert engine.clock.now < 1.1 * right.clock.now


def test_if_rows_are_nearly_free_drafts_grow_a_tree() -> None:
    engine, _ = watched(Writer(8, passage=10), GPU)
    assert max(engine.rows) > 30 and any(len(used) > 2 for used in engine.used)


def test_if_nothing_is_known_the_first_steps_are_small_and_grow() -> None:
    engine = Watching(Writer(11), lambda rows, _: GPU.seconds(rows), clock := FakeClock(), ids=AUTO.ids)
    with clocked(clock):
        writer = Writer(11)
        list(Decoding(engine, AUTO).generate(list(writer.text), 200))
    largest = 1
    for rows in engine.rows:
        assert rows <= max(2 * largest, FIRST_ROWS)
        largest = max(largest, rows)
    assert largest > 4 * FIRST_ROWS


@given(st.integers(0, 6), st.sampled_from(list(STAIRS.values())))
@settings(max_examples=20)
def test_a_model_that_takes_back_few_tokens_gets_chains_of_as_many(back: int, stairs: Stairs) -> None:
    engine, _ = watched(Writer(9), stairs, AUTO.constrained(max_rollback=back), 100)
    assert max(engine.rows) <= 1 + back
    assert all(used == {0} for used in engine.used)
    assert back < 3 or max(engine.rows) > 3


@pytest.mark.parametrize("known", [True, False], ids=["measured", "learned"])
@pytest.mark.parametrize(("shape", "most"), [("f16", 0.6), ("q4_0", 0.6), ("gpu", 0.2)])
def test_a_text_that_copies_is_much_quicker(shape: str, most: float, known: bool) -> None:
    stairs = STAIRS[shape]
    took, _ = run(Writer(11), lambda rows, _: stairs.seconds(rows), stairs.measured if known else None, length=600)
    assert took < most


def test_after_a_change_of_subject_and_back_it_is_as_quick_as_before() -> None:
    _, steps = run(Writer(12, subject=400), lambda rows, _: CPU_F16.seconds(rows), CPU_F16.measured, length=1000)
    parts = [0.0, 0.0, 0.0, 0.0]
    place = PROMPT
    for step in steps:
        parts[place // 400] += step.seconds
        place += len(step.tokens)
    copied, nonsense, again = parts[0] / 200, parts[1] / 400, parts[2] / 400
    assert copied < 0.7 * nonsense and again < 0.7 * nonsense


def test_what_was_learned_of_the_machine_goes_on_with_the_next_answer() -> None:
    clock = FakeClock()
    writer = Writer(13)
    engine = Watching(writer, lambda rows, _: GPU.seconds(rows), clock, ids=AUTO.ids)
    with clocked(clock):
        decoder = Decoding(engine, AUTO)
        list(decoder.generate(list(writer.text), 100))
        assert engine.rows[0] == 1
        steps = len(engine.rows)
        list(decoder.generate(list(writer.text), 20))
        assert engine.rows[steps] > 1


def test_a_debt_that_a_busy_moment_left_keeps_no_later_answer_from_drafting() -> None:
    clock, larger = FakeClock(), list[int]()
    writer = Writer(4)

    def seconds(rows: int, place: int) -> float:
        if rows > 1 and place >= PROMPT - 1:
            larger.append(rows)
        return CPU_Q4.seconds(rows) * (30 if len(larger) == 1 and rows > 1 else 1)

    engine = Watching(writer, seconds, clock, ids=AUTO.ids)
    with clocked(clock):
        decoder = Decoding(engine, AUTO)
        list(decoder.generate(list(writer.text), 150))
        assert len(larger) == 1, "the loss budget forbids a second larger step"
        list(decoder.generate(list(writer.text), 150))
    assert len(larger) > 5

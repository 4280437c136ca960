"""Several replicas on toy contexts: the tokens are one replica's, for any division of steps and any failure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from signal import SIGINT, pthread_kill
from threading import Event, get_ident, main_thread
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lacli.batch import Batch, Ints
from lacli.engine import replicas
from lacli.engine.replicas import ReplicaContext
from lacli.errors import BatchRefused
from lacli.settings import DecodeSettings
from lacli.stats import Step
from lacli.verify import Rejection, SampleAndMatch, Verifier
from tests.engine.test_engine import (
    VOCABULARY,
    Interrupting,
    any_settings,
    ends,
    engine_for,
    holds_its_text,
    plain_tokens,
    prompts,
    tokens_of,
)
from tests.engine.test_reuse import turn
from tests.fakes.context import FakeContext
from tests.fakes.decoding import Decoding, fixed_clock_decoder
from tests.fakes.sampler import FakeSampler

Engines = Sequence[FakeContext]
LOOKAHEAD = DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=4)


def decoder_of(engines: Engines, chosen: DecodeSettings, verifier: Verifier | None = None) -> Decoding:
    return fixed_clock_decoder(ReplicaContext(engines) if len(engines) > 1 else engines[0], chosen, verifier)


def hold_beginnings(decoder: Decoding, engines: Engines) -> bool:
    """Whether each cache has a beginning of the sequence, and nothing else."""
    held = [engine.held() for engine in engines]
    assert [len(engine._cells) for engine in engines] == [len(each) for each in held]
    return all(each == decoder.tokens[: len(each)] for each in held)


def all_hold(decoder: Decoding, engines: Engines) -> bool:
    """Whether one cache has all cells of a single replica. Checks `hold_beginnings` too."""
    assert hold_beginnings(decoder, engines)
    return not decoder.tokens or any(holds_its_text(decoder, engine) for engine in engines)


def alike(kind: type[FakeContext], count: int, chosen: DecodeSettings) -> list[Any]:
    sizes = 256, 256, chosen.ids, VOCABULARY
    return [
        kind(*sizes, ordered=chosen.constraints.ordered, min_outputs=chosen.constraints.min_outputs)
        for _ in range(count)
    ]


sizes = st.lists(st.tuples(st.integers(41, 130), st.integers(4, 64)), min_size=2, max_size=3)
"""The cells and the batch size of each replica."""


@given(any_settings, prompts, ends, st.integers(-1, 80), sizes, st.booleans())
@settings(max_examples=60, deadline=None)
def test_several_replicas_equal_one(
    chosen: DecodeSettings,
    prompt: list[int],
    ends: frozenset[int],
    limit: int,
    sizes: list[tuple[int, int]],
    unlike: bool,
) -> None:
    sizes = sizes if unlike else sizes[:1] * len(sizes)
    engines = [engine_for(chosen, cells, rows, ends) for cells, rows in sizes]
    decoder = decoder_of(engines, chosen)
    steps = list(decoder.generate(prompt, limit))
    fewest = min(cells for cells, _ in sizes)
    assert tokens_of(steps) == plain_tokens(prompt, limit, fewest - chosen.constraints.min_outputs + 1, ends)
    assert decoder.tokens == prompt + tokens_of(steps)
    assert not steps or all_hold(decoder, engines)


def test_all_replicas_decode_branches_of_the_same_steps() -> None:
    engines = alike(FakeContext, 3, LOOKAHEAD)
    list(decoder_of(engines, LOOKAHEAD).generate([1, 2, 3, 1, 2, 3], 200))
    assert all(engine.calls > 11 for engine in engines)


def sampled(seed: int, *, rejects: bool) -> Verifier:
    sampler = FakeSampler(seed, penalty=0.3)
    return Rejection(sampler, seed) if rejects else SampleAndMatch(sampler)


@given(any_settings, prompts, st.integers(0, 99), st.booleans(), st.integers(2, 3))
@settings(max_examples=30, deadline=None)
def test_a_seed_gives_one_replicas_tokens(
    chosen: DecodeSettings, prompt: list[int], seed: int, rejects: bool, count: int
) -> None:
    # With ordered cells, replicas have other parts of the sequence than one context, and draw other random numbers.
    assume(not (rejects and chosen.constraints.ordered))
    one = fixed_clock_decoder(engine_for(chosen), chosen, sampled(seed, rejects=rejects))
    engines = [engine_for(chosen) for _ in range(count)]
    several = decoder_of(engines, chosen, sampled(seed, rejects=rejects))
    for _ in range(2):
        expected = tokens_of(list(one.generate(prompt, 40)))
        assert tokens_of(list(several.generate(prompt, 40))) == expected
        assert all_hold(several, engines)
        prompt = [*prompt, 3]


happenings = st.sampled_from(["go on", "close", "change"])
"""An event before or in a turn."""


@given(
    any_settings,
    any_settings,
    prompts,
    st.lists(st.tuples(happenings, turn), min_size=1, max_size=5),
    ends,
    st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_every_turn_is_a_fresh_run_and_leaves_beginnings_of_the_sequence(
    first: DecodeSettings,
    second: DecodeSettings,
    prompt: list[int],
    rest: list[tuple[str, tuple[int, list[int], int]]],
    ends: frozenset[int],
    count: int,
) -> None:
    second = replace(second, constraints=first.constraints)
    largest = max(first, second, key=lambda each: each.ids)
    engines = [engine_for(largest, 400, 400, ends) for _ in range(count)]
    for engine in engines:
        engine.max_outputs = 400
    decoder = decoder_of(engines, first)
    list(decoder.generate(prompt, 15))
    for what, (kept, more, limit) in rest:
        prompt = [*decoder.tokens[:kept], *more] or [1]
        if what == "change":
            decoder.engine.reconfigure(second if decoder.settings is first else first)
        # A step of the earlier mode may leave more tokens to decode again than a step of this mode has rows.
        assert hold_beginnings(decoder, engines)
        answer = decoder.generate(prompt, limit)
        steps = [step for _, step in zip(range(2 if what == "close" else 99), answer, strict=False)]
        answer.close()
        expected = plain_tokens(prompt, limit, 400 - first.constraints.min_outputs + 1, ends)
        assert tokens_of(steps) == (expected[: len(tokens_of(steps))] if what == "close" else expected)
        assert decoder.tokens == prompt + tokens_of(steps)
        assert all_hold(decoder, engines) if steps else hold_beginnings(decoder, engines)


class Refusing(FakeContext):
    """A context without cells for a step of more than `max_rows` rows; rows that are decoded again do not count."""

    max_rows = 1000

    def decode(self, batch: Batch) -> bool:
        if batch.wanted and batch.rows - batch.outputs.argmax() > self.max_rows:
            return False
        return super().decode(batch)


@given(any_settings, prompts, st.integers(1, 20), st.integers(0, 2), st.integers(2, 3))
@settings(max_examples=60, deadline=None)
def test_a_replica_that_finds_no_cells_makes_the_step_smaller(
    chosen: DecodeSettings, prompt: list[int], most: int, place: int, count: int
) -> None:
    assume(most > chosen.constraints.min_outputs)
    engines = alike(Refusing, count, chosen)
    decoder = decoder_of(engines, chosen)
    generation = decoder.generate(prompt, 40)
    first = next(generation)
    engines[place % count].max_rows = most
    assert tokens_of([first, *generation]) == plain_tokens(prompt, 40)
    assert all_hold(decoder, engines)


class Guarded(FakeContext):
    """A context that sets `touched` if two threads are in it at once.

    raised: the error of its next step. waits_for: an event before its next step. presses: Ctrl-C presses after it.
    """

    raised: BaseException | None = None
    waits_for: Event | None = None
    presses = 0
    touched = Event()
    within: int | None = None

    def decode(self, batch: Batch) -> bool:
        self._look()
        if self.raised and batch.wanted:
            raised, self.raised = self.raised, None
            raise raised
        self.within = get_ident()
        try:
            if self.waits_for:
                self._linger(self.waits_for)
            return super().decode(batch)
        finally:
            self.within = None

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._look()
        super().copy(source, target, start, end)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        self._look()
        return super().remove(sequence, start, end)

    def _linger(self, event: Event) -> None:
        assert event.wait(20), "the event must come"
        self.waits_for = None
        for press in range(1 + self.presses):
            if press:
                pthread_kill(main_thread().ident or 0, SIGINT)
            # Leave time for a call by a thread that must wait, which would be a mistake.
            self.touched.wait(0.02)

    def _look(self) -> None:
        if self.within not in (None, get_ident()):
            self.touched.set()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BatchRefused("decode: inconsistent")], ids=["Ctrl-C", "bug"])
@pytest.mark.parametrize("presses", [0, 3])
def test_nothing_decodes_any_more_when_the_callers_part_has_failed(
    presses: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = alike(Guarded, 3, LOOKAHEAD)
    decoder = decoder_of(engines, LOOKAHEAD)
    waiting, settle = Event(), ReplicaContext._settle

    def noted(context: ReplicaContext) -> None:
        waiting.set()
        settle(context)

    monkeypatch.setattr(ReplicaContext, "_settle", noted)
    generation = decoder.generate([1, 2, 3], 60)
    context, taken = decoder.engine.context, list[Step]()
    assert isinstance(context, ReplicaContext)
    while not context._replicas[1].missing:
        taken.append(next(generation))
    waiting.clear()
    engines[0].raised = error
    for engine in engines[1:]:
        engine.waits_for, engine.touched, engine.presses = waiting, Event(), presses
    with pytest.raises(type(error)):
        taken.extend(generation)
    assert not any(engine.within or engine.touched.is_set() for engine in engines[1:])
    assert decoder.tokens == [1, 2, 3, *tokens_of(taken)] and all_hold(decoder, engines)
    # The next turn decodes the tokens that a replica still lacks.
    prompt = [*decoder.tokens, 1]
    assert tokens_of(list(decoder.generate(prompt, 60))) == plain_tokens(prompt, 60)
    assert all_hold(decoder, engines)


class Pressed(Interrupting):
    """A context with Ctrl-C in its n-th call of `copy` or `remove`, which the caller's thread makes."""

    def decode(self, batch: Batch) -> bool:
        return FakeContext.decode(self, batch)

    def greedy(self) -> Ints:
        return FakeContext.greedy(self)


@given(any_settings, prompts, st.integers(0, 1), st.integers(1, 40), st.booleans())
@settings(max_examples=60, deadline=None)
def test_an_interrupt_in_any_sequence_call_leaves_sequence_and_caches_agreeing(
    chosen: DecodeSettings, prompt: list[int], place: int, calls: int, before: bool
) -> None:
    engines: list[Pressed] = alike(Pressed, 2, chosen)
    decoder = decoder_of(engines, chosen)
    generation = decoder.generate(prompt, 40)
    next(generation)
    engines[place].calls_left, engines[place].before = calls, before
    with suppress(KeyboardInterrupt):
        list(generation)
    engines[place].calls_left = 0
    assert hold_beginnings(decoder, engines)
    prompt = [*decoder.tokens, 1]
    assert tokens_of(list(decoder.generate(prompt, 20))) == plain_tokens(prompt, 20)


class Leaving(FakeContext):
    """A context with calls that `interrupt` can end. A call with `rows` rows ends in no other way."""

    rows = 0

    def decode(self, batch: Batch) -> bool:
        if len(batch) != self.rows:
            return super().decode(batch)
        self.within.set()
        assert self.left.wait(20), "`interrupt` must be called"
        raise KeyboardInterrupt

    def interrupt(self) -> None:
        # The first interrupt may come too early, between two calls.
        if self.asked:
            self.left.set()
        self.asked = True

    asked = False
    within, left = Event(), Event()


def test_ctrl_c_ends_the_decode_calls_of_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "AGAIN_S", 0.001)
    engines: list[Leaving] = alike(Leaving, 2, LOOKAHEAD)
    for engine in engines:
        engine.prefill_rows, engine.within, engine.left = 8, Event(), Event()
    decoder = decoder_of(engines, LOOKAHEAD)
    prompt = [*range(VOCABULARY)] * 4
    engines[1].rows = 8

    def pressed(batch: Batch) -> bool:
        assert engines[1].within.wait(20)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(engines[0], "decode", pressed)
        with pytest.raises(KeyboardInterrupt):
            next(decoder.generate(prompt, 20))
    assert engines[1].left.is_set() and hold_beginnings(decoder, engines)
    engines[1].rows = 0
    assert tokens_of(list(decoder.generate(prompt, 20))) == plain_tokens(prompt, 20)

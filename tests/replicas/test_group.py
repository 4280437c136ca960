"""Several replicas on the fake engine: the text is one replica's, however steps are divided and whichever fails."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from signal import SIGINT, pthread_kill
from threading import Event, get_ident, main_thread
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lacli.batch import Batch, Ints
from lacli.decode import Decoder
from lacli.engine import Floats, Successors
from lacli.errors import BatchRefused, LacliError, ReplicaLost
from lacli.replicas import group as group_module
from lacli.replicas.group import ReplicaGroup
from lacli.replicas.replica import Replica, Speed
from lacli.settings import MODES, DecodeSettings, ModeName
from lacli.stats import Step
from lacli.tree import Origin, Tree
from lacli.verify import Rejection, SampleAndMatch, Verifier
from tests.fakes.clock import Clock, make_equally_fast
from tests.fakes.decoding import fixed_clock_decoder
from tests.fakes.engine import FakeEngine
from tests.fakes.sampler import FakeSampler
from tests.session.test_reuse import ctrl_c_at_line, few
from tests.test_decode import (
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
from tests.test_hybrid import chains


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Keep the garbage collector out: a Ctrl-C that comes within a callback of its is lost."""
    gc.disable()
    yield
    gc.enable()


Result = TypeVar("Result")
Engines = Sequence[FakeEngine]

speeds = st.lists(st.tuples(st.integers(1, 60), st.floats(1e-6, 1e-3)), min_size=3, max_size=3)
LOOKAHEAD = DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=4)
SHORT = DecodeSettings(mode="lookahead", window=2, ngram=3, guesses=2)


def decoder_of(
    engines: Engines,
    chosen: DecodeSettings,
    verifier: Verifier | None = None,
    seen: Sequence[tuple[int, float]] = (),
) -> Decoder:
    """seen: a step of each replica, as rows and seconds, from which it is taken to be so fast."""
    group = ReplicaGroup({f"{place}": engine for place, engine in enumerate(engines, start=1)})
    for replica, (rows, seconds) in zip(group.replicas, seen, strict=False):
        replica.speed.saw(rows, seconds)
    return fixed_clock_decoder(group, chosen, verifier)


def replicas_of(decoder: Decoder) -> list[Replica]:
    assert isinstance(decoder.group, ReplicaGroup)
    return decoder.group.replicas


def hold_beginnings(decoder: Decoder, engines: Engines) -> bool:
    """Each cache holds a beginning of the text, and nothing else."""
    held = [engine.held() for engine in engines]
    assert [len(engine._cells) for engine in engines] == [len(each) for each in held]
    return all(each == decoder.tokens[: len(each)] for each in held)


def all_hold(decoder: Decoder, engines: Engines) -> bool:
    """Besides, one cache holds all that one replica's would."""
    assert hold_beginnings(decoder, engines)
    return not decoder.tokens or any(holds_its_text(decoder, engine) for engine in engines)


def alike(kind: type[FakeEngine], count: int, chosen: DecodeSettings) -> list[Any]:
    return [
        kind(256, 256, chosen.sequences, VOCABULARY, ordered=chosen.ordered, min_outputs=chosen.min_outputs)
        for _ in range(count)
    ]


sizes = st.lists(st.tuples(st.integers(41, 130), st.integers(4, 64)), min_size=2, max_size=3)
"""Cells and rows of a batch of each replica."""


@given(any_settings, prompts, ends, st.integers(-1, 80), speeds, sizes, st.booleans())
@settings(max_examples=80, deadline=None)
def test_several_replicas_equal_one(
    chosen: DecodeSettings,
    prompt: list[int],
    ends: frozenset[int],
    limit: int,
    seen: list[tuple[int, float]],
    sizes: list[tuple[int, int]],
    unlike: bool,
) -> None:
    sizes = sizes if unlike else sizes[:1] * len(sizes)
    engines = [engine_for(chosen, cells, rows, ends) for cells, rows in sizes]
    decoder = decoder_of(engines, chosen, seen=seen)
    steps = list(decoder.generate(prompt, limit))
    fewest = min(cells for cells, _ in sizes)
    assert tokens_of(steps) == plain_tokens(prompt, limit, fewest - chosen.min_outputs + 1, ends)
    assert decoder.tokens == prompt + tokens_of(steps)
    assert all_hold(decoder, engines)
    assert not decoder.group.lost


@pytest.fixture
def equally_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    make_equally_fast(FakeEngine, monkeypatch)


@pytest.mark.usefixtures("equally_fast")
def test_all_replicas_decode_branches_of_the_same_steps() -> None:
    engines = alike(Watched, 3, LOOKAHEAD)
    list(decoder_of(engines, LOOKAHEAD).generate([1, 2, 3, 1, 2, 3], 200))
    assert all(engine.steps > 10 for engine in engines)


class Watched(FakeEngine):
    """Counts the calls of `decode` that want a choice."""

    steps = 0

    def decode(self, batch: Batch) -> bool:
        self.steps += bool(batch.wanted)
        return super().decode(batch)


@given(any_settings.filter(lambda chosen: not chosen.ordered), prompts, st.integers(2, 3), speeds)
@settings(max_examples=30, deadline=None)
def test_what_replicas_say_of_a_step_is_what_one_says(
    chosen: DecodeSettings, prompt: list[int], count: int, seen: list[tuple[int, float]]
) -> None:
    one = fixed_clock_decoder(engine_for(chosen), chosen)
    several = decoder_of([engine_for(chosen) for _ in range(count)], chosen, seen=seen)
    for _ in zip(one.generate(prompt, 30), several.generate(prompt, 30), strict=True):
        choices = one.group.choices()
        assert several.group.choices() == choices
        for ours, theirs in zip(several.group.successors(4), one.group.successors(4), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        logits, expected = several.group.logits(), one.group.logits()
        for node in choices:
            np.testing.assert_array_equal(logits(node), expected(node))


def sampled(seed: int, *, rejects: bool) -> Verifier:
    sampler = FakeSampler(seed, penalty=0.3)
    return Rejection(sampler, seed) if rejects else SampleAndMatch(sampler)


@given(any_settings, prompts, st.integers(0, 99), st.booleans(), st.integers(2, 3), speeds)
@settings(max_examples=30, deadline=None)
def test_a_seed_gives_one_replicas_text(
    chosen: DecodeSettings, prompt: list[int], seed: int, rejects: bool, count: int, seen: list[tuple[int, float]]
) -> None:
    # In order of the text replicas hold more of it than one alone, so their steps and their random numbers are others.
    assume(not (rejects and chosen.ordered))
    one = fixed_clock_decoder(engine_for(chosen), chosen, sampled(seed, rejects=rejects))
    engines = [engine_for(chosen) for _ in range(count)]
    several = decoder_of(engines, chosen, sampled(seed, rejects=rejects), seen)
    for _ in range(2):
        expected = tokens_of(list(one.generate(prompt, 40)))
        assert tokens_of(list(several.generate(prompt, 40))) == expected
        assert all_hold(several, engines)
        prompt = [*prompt, 3]


turns = st.lists(
    st.tuples(
        st.sampled_from(["go on", "truncate", "cut back", "close", "change"]),
        st.integers(0, 60),
        few,
        st.integers(0, 12),
    ),
    min_size=1,
    max_size=5,
)
"""Each: what happens before or in it, tokens of the text that are kept, tokens behind them, the answer's limit."""


@given(any_settings, any_settings, prompts, turns, ends, st.integers(2, 3), speeds)
@settings(max_examples=60, deadline=None)
def test_every_turn_is_a_fresh_run_and_leaves_beginnings_of_the_text(
    first: DecodeSettings,
    second: DecodeSettings,
    prompt: list[int],
    rest: list[tuple[str, int, list[int], int]],
    ends: frozenset[int],
    count: int,
    seen: list[tuple[int, float]],
) -> None:
    second = replace(second, ordered=first.ordered, min_outputs=first.min_outputs)
    largest = max(first, second, key=lambda each: each.sequences)
    engines = [engine_for(largest, 400, 400, ends) for _ in range(count)]
    for engine in engines:
        engine.max_outputs = 400
    decoder = decoder_of(engines, first, seen=seen)
    list(decoder.generate(prompt, 15))
    for what, kept, more, limit in rest:
        prompt = [*decoder.tokens[:kept], *more] or [1]
        if what == "truncate":
            decoder.truncate(kept)
        elif what == "cut back":
            decoder.cut_back(prompt)
        elif what == "change":
            decoder.change(second if decoder.settings is first else first, None)
        # A step of the mode before may have left more to be decoded again than one of this mode can.
        assert hold_beginnings(decoder, engines)
        if what not in ("cut back", "change"):
            assert all_hold(decoder, engines)
        answer = decoder.generate(prompt, limit, reuse=True)
        steps = [step for _, step in zip(range(2 if what == "close" else 99), answer, strict=False)]
        answer.close()
        expected = plain_tokens(prompt, limit, 400 - first.min_outputs + 1, ends)
        assert tokens_of(steps) == (expected[: len(tokens_of(steps))] if what == "close" else expected)
        assert decoder.tokens == prompt + tokens_of(steps)
        assert all_hold(decoder, engines) if steps else hold_beginnings(decoder, engines)


class Refusing(FakeEngine):
    """Finds no cells for a step with more rows than its limit."""

    max_rows = 1000
    refused = 0

    def decode(self, batch: Batch) -> bool:
        if batch.wanted and batch.rows > self.max_rows:
            self.refused += 1
            return False
        return super().decode(batch)


@given(any_settings, prompts, st.integers(1, 20), st.integers(0, 2), st.integers(2, 3))
@settings(max_examples=60, deadline=None)
def test_a_replica_that_finds_no_cells_makes_the_step_smaller(
    chosen: DecodeSettings, prompt: list[int], most: int, place: int, count: int
) -> None:
    assume(most >= chosen.min_outputs + (chosen.max_step_tokens if chosen.ordered else 1))
    engines = alike(Refusing, count, chosen)
    decoder = decoder_of(engines, chosen)
    generation = decoder.generate(prompt, 40)
    first = next(generation)
    engines[place % count].max_rows = most
    assert tokens_of([first, *generation]) == plain_tokens(prompt, 40)
    assert all_hold(decoder, engines) and not decoder.group.lost


@pytest.mark.usefixtures("equally_fast")
def test_of_a_step_that_was_refused_somewhere_nothing_stays() -> None:
    engines = alike(Refusing, 2, LOOKAHEAD)
    decoder = decoder_of(engines, LOOKAHEAD)
    generation = decoder.generate([1, 2, 3, 1, 2, 3], 60)
    next(generation)
    engines[1].max_rows = 3
    assert tokens_of(list(generation)) == plain_tokens([1, 2, 3, 1, 2, 3], 60)[1:]
    assert engines[1].refused > 5


@pytest.mark.parametrize("mode", MODES)
def test_where_the_fastest_finds_no_cells_another_one_goes_on(mode: ModeName) -> None:
    chosen = DecodeSettings(mode=mode, window=4, ngram=4)
    engines = alike(Refusing, 2, chosen)
    decoder = decoder_of(engines, chosen, seen=[(1, 1.0), (1, 1e-6)])
    engines[1].max_rows = 0
    assert tokens_of(list(decoder.generate([1, 2, 3], 60))) == plain_tokens([1, 2, 3], 60)
    assert engines[1].refused > 5


def test_a_replica_that_has_fallen_far_behind_catches_up() -> None:
    engines = alike(Watched, 3, LOOKAHEAD)
    decoder = decoder_of(engines, DecodeSettings(mode="lookup"), seen=[(4, 1e-3), (4, 1e6), (4, 1e6)])
    list(decoder.generate([1, 2, 3], 120))
    assert [len(engine.held()) for engine in engines[1:]] == [0, 0]
    for replica in replicas_of(decoder):
        replica.speed = Speed()
    decoder.change(LOOKAHEAD, None)
    prompt, before = list(decoder.tokens), [engine.steps for engine in engines]
    assert tokens_of(list(decoder.generate(prompt, 100, reuse=True))) == plain_tokens(prompt, 100)
    assert all(len(engine.held()) > len(prompt) for engine in engines)
    assert all(engine.steps > seen for engine, seen in zip(engines, before, strict=True))


def test_one_of_which_nothing_is_known_is_tried_once_for_a_step_without_branches() -> None:
    engines = alike(Watched, 3, LOOKAHEAD)
    decoder = decoder_of(engines, DecodeSettings(mode="plain"))
    list(decoder.generate([1, 2, 3], 30))
    assert all(engine.steps for engine in engines)


class Clocked(Watched):
    """Takes a fixed time for each call, and for each row."""

    clock = Clock()
    fixed, row = 1e-3, 1e-4

    def decode(self, batch: Batch) -> bool:
        self.clock.now += self.fixed + self.row * len(batch)
        return super().decode(batch)


def test_a_replica_that_was_held_up_once_is_dealt_branches_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.cache.perf_counter", Clocked.clock.read)
    engines = [Clocked(900, 256, SHORT.sequences, VOCABULARY) for _ in range(2)]
    decoder = decoder_of(engines, SHORT, seen=[(4, 1e-3), (4, 8e-3)])
    steps = list(decoder.generate([1, 2, 3], 800))
    assert 20 < engines[1].steps < len(steps)


def test_after_a_slower_ones_trial_steps_without_branches_go_back_to_the_faster_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lacli.cache.perf_counter", Clocked.clock.read)
    engines = [Clocked(256, 256, LOOKAHEAD.sequences, VOCABULARY) for _ in range(3)]
    # What it lacks after the trials costs it more than a step of the others.
    engines[0].fixed, engines[0].row = 5e-4, 5e-4
    for engine in engines[1:]:
        engine.fixed, engine.row = 1.5e-3, 4e-4
    decoder = decoder_of(engines, DecodeSettings(mode="plain"))
    steps = list(decoder.generate([1, 2, 3], 200))
    assert [engine.steps for engine in engines] == [len(steps) - 2, 1, 1]


def test_a_large_step_stays_here_where_the_prompt_says_that_rows_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.cache.perf_counter", Clocked.clock.read)
    engines = [Clocked(400, 256, LOOKAHEAD.sequences, VOCABULARY) for _ in range(2)]
    for engine, fixed in zip(engines, (1e-2, 2e-2), strict=True):
        engine.fixed, engine.row = fixed, 1e-5
    replicas = decoder_of(engines, LOOKAHEAD).group
    text = [7] * 100
    replicas.prefill(text[:-1], all_replicas=True)
    for _ in range(20):
        assert replicas.decode(text, Tree(7))
        replicas.commit((), ordered=False)
        text.append(7)
    tree = Tree(7)
    tree.add_path([3] * 50, 1, Origin.POOL)
    before = engines[1].steps
    assert replicas.decode(text, tree) and engines[1].steps == before


def test_shares_follow_the_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.cache.perf_counter", Clocked.clock.read)
    wide = replace(LOOKAHEAD, window=30, guesses=0)
    engines = [Clocked(300, 256, wide.sequences, VOCABULARY) for _ in range(2)]
    engines[0].row = 3e-4
    decoder = decoder_of(engines, wide)
    rows = []
    for _ in decoder.generate([1, 2, 3], 200):
        rows.append([replica.rows for replica in replicas_of(decoder)])
    # Three times as long for a row; every part has the input and row 0 up to its columns besides.
    slow, fast = (sum(each) for each in zip(*rows[10:], strict=True))
    assert 2 < fast / slow < 3.5


class Together(FakeEngine):
    """Decodes only while another one does: `begun` is set by each call, and `other` waited for."""

    def __init__(self) -> None:
        super().__init__(256, 256, LOOKAHEAD.sequences, VOCABULARY)
        self.begun, self.waits = Event(), False
        self.other = self

    def decode(self, batch: Batch) -> bool:
        self.begun.set()
        if self.waits:
            assert self.other.begun.wait(20), "the other one does not decode at the same time"
            self.other.begun.clear()
        return super().decode(batch)


@pytest.mark.usefixtures("equally_fast")
@pytest.mark.parametrize("behind", [0, 1])
def test_one_that_catches_up_does_so_while_the_other_decodes(behind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "rows_to_catch_up", lambda replica, behind, step_s: min(behind, 5))
    engines = [Together(), Together()]
    engines[0].other, engines[1].other = engines[1], engines[0]
    decoder = decoder_of(engines, LOOKAHEAD)
    list(decoder.generate([1, 2, 3], 20))
    # So slow a one gets no branches, and lacks what the other one has decoded.
    replica = replicas_of(decoder)[behind]
    replica.speed = Speed()
    replica.speed.saw(1, 1e6)
    replica.cut(5)
    prompt = list(decoder.tokens)
    for engine in engines:
        engine.begun.clear()
        engine.waits = True
    next(decoder.generate(prompt, 20, reuse=True))
    assert 5 < len(engines[behind].held()) < len(prompt)


class Failing(FakeEngine):
    """Raises in its n-th call of one kind, and in every call after that, as an engine does whose process is gone."""

    kind = ""
    calls_left = 0
    gone = False

    def _call(self, kind: str, work: Callable[[], Result]) -> Result:
        self.calls_left -= kind == self.kind
        self.gone = self.gone or (kind == self.kind and self.calls_left == 0)
        if self.gone:
            raise ReplicaLost("its process ended")
        return work()

    def decode(self, batch: Batch) -> bool:
        return self._call("decode" if batch.wanted else "prefill", lambda: FakeEngine.decode(self, batch))

    def greedy(self) -> Ints:
        return self._call("greedy", lambda: FakeEngine.greedy(self))

    def row_logits(self, row: int) -> Floats:
        return self._call("row_logits", lambda: FakeEngine.row_logits(self, row))

    def successors(self, count: int) -> Successors:
        return self._call("successors", lambda: FakeEngine.successors(self, count))

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._call("copy", lambda: FakeEngine.copy(self, source, target, start, end))

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return self._call("remove", lambda: FakeEngine.remove(self, sequence, start, end))

    def clear(self) -> None:
        self._call("clear", lambda: FakeEngine.clear(self))


KINDS = ("decode", "prefill", "greedy", "row_logits", "successors", "copy", "remove", "clear")
failures = st.lists(st.tuples(st.sampled_from(("", *KINDS)), st.integers(1, 40)), min_size=2, max_size=3)
"""Of each replica the kind of call that fails, "" for none, and its number."""
AUTO = DecodeSettings(mode="auto", window=3, ngram=3, guesses=4)
modes = st.one_of(any_settings, st.just(LOOKAHEAD), st.just(AUTO))


def failing(chosen: DecodeSettings, faults: Sequence[tuple[str, int]], rows: int = 256) -> list[Failing]:
    engines: list[Failing] = alike(Failing, len(faults), chosen)
    for engine, (kind, number) in zip(engines, faults, strict=True):
        engine.kind, engine.calls_left, engine.batch_rows = kind, number, rows
    return engines


@given(st.one_of(modes, chains), prompts, failures, st.sampled_from([None, 5]), st.integers(20, 256), speeds)
@settings(max_examples=60, deadline=None)
def test_replicas_that_fail_anywhere_are_dropped_and_the_last_ones_failure_is_raised(
    chosen: DecodeSettings,
    prompt: list[int],
    faults: list[tuple[str, int]],
    seed: int | None,
    rows: int,
    seen: list[tuple[int, float]],
) -> None:
    engines = failing(chosen, faults, rows)
    for engine in engines:
        engine.max_rollback = chosen.max_rollback if chosen.max_rollback > 0 else None
    one = fixed_clock_decoder(engine_for(chosen), chosen, sampled(seed, rejects=False) if seed else None)
    decoder = decoder_of(engines, chosen, sampled(seed, rejects=False) if seed else None, seen)
    for turn in (prompt, [*prompt, 1, 2], [*prompt, 1, 2, 3]):
        expected = tokens_of(list(one.generate(turn, 30)))
        steps: list[Step] = []
        try:
            for step in decoder.generate(turn, 30, reuse=True):
                steps.append(step)
        except ReplicaLost as error:
            assert error.what == "its process ended" and all(engine.gone for engine in engines)
            assert tokens_of(steps) == expected[: len(tokens_of(steps))]
            assert not steps or decoder.tokens == turn + tokens_of(steps)
            break
        assert tokens_of(steps) == expected and steps[-1].finish == "length"
        assert decoder.tokens == turn + expected
        assert hold_beginnings(decoder, [engine for engine in engines if not engine.gone])
    gone = [f"{place}" for place, engine in enumerate(engines, start=1) if engine.gone]
    assert {*decoder.group.lost} <= {*gone} and len(decoder.group.lost) == min(len(gone), len(engines) - 1)
    assert {*decoder.group.lost.values()} <= {"its process ended"}


class Sluggish(FakeEngine):
    """Copies for a millisecond when the `other` one decodes; that one decodes no step before this one does."""

    other: Sluggish | None = None
    waits = False
    begun = Event()

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        super().copy(source, target, start, end)
        if self.other and not self.waits:
            assert self.other.begun.wait(20), "the other one does not begin before"
            begin = perf_counter()
            while perf_counter() < begin + 1e-3:
                pass

    def decode(self, batch: Batch) -> bool:
        if batch.wanted and self.other:
            self.begun.set()
            if self.waits:
                assert self.other.begun.wait(20), "it decodes alone"
        return super().decode(batch)


def test_no_time_of_a_step_is_counted_twice() -> None:
    engines: list[Sluggish] = alike(Sluggish, 2, LOOKAHEAD)
    engines[0].other, engines[1].other = engines[1], engines[0]
    engines[1].waits = True
    for engine in engines:
        engine.begun = Event()
    answer = decoder_of(engines, LOOKAHEAD).generate([1, 2, 3], 60)
    step = next(answer)
    engines[0].other = engines[1].other = None
    assert step.cache_s > 1e-3 and step.python_s > 0
    answer.close()


def test_the_time_of_a_replica_that_is_gone_counts_still() -> None:
    wide = replace(LOOKAHEAD, window=40, guesses=0)
    for number in (10, 15):
        engines = alike(Erring, 3, wide)
        engines[1].step = number
        assert min(step.cache_s for step in decoder_of(engines, wide).generate([1, 2, 3], 60)) >= 0


class Erring(FakeEngine):
    """Raises an error of the library's own in one step, and would go on after that."""

    step = 0
    error: LacliError = LacliError("llama_decode failed (-3): no memory", "see more with -v")

    def decode(self, batch: Batch) -> bool:
        self.step -= bool(batch.wanted)
        if self.step == 0 and batch.wanted:
            raise self.error
        return super().decode(batch)


@pytest.mark.usefixtures("equally_fast")
@pytest.mark.parametrize("place", [0, 1])
def test_a_replica_that_has_failed_once_is_asked_no_more(place: int) -> None:
    engines = alike(Erring, 2, LOOKAHEAD)
    engines[place].step = 4
    decoder = decoder_of(engines, LOOKAHEAD)
    assert tokens_of(list(decoder.generate([1, 2, 3], 60))) == plain_tokens([1, 2, 3], 60)
    assert decoder.group.lost == {f"{place + 1}": "llama_decode failed (-3): no memory (see more with -v)"}
    calls = engines[place].calls
    list(decoder.generate([1, 2, 3], 60))
    assert engines[place].calls == calls


@pytest.mark.usefixtures("equally_fast")
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_batch_that_llama_cpp_refuses_is_raised_at_once(place: int) -> None:
    engines = alike(Erring, 3, LOOKAHEAD)
    engines[place].step, engines[place].error = 4, BatchRefused("decode: inconsistent sequence positions")
    decoder = decoder_of(engines, LOOKAHEAD)
    taken: list[Step] = []
    with pytest.raises(BatchRefused):
        taken.extend(decoder.generate([1, 2, 3], 60))
    assert decoder.tokens == [1, 2, 3, *tokens_of(taken)] and not decoder.group.lost
    assert all_hold(decoder, engines)
    assert tokens_of(list(decoder.generate([1, 2, 3], 60))) == plain_tokens([1, 2, 3], 60)


def test_the_others_go_on_with_smaller_batches_and_far_behind_where_the_leader_is_lost() -> None:
    lost = 0
    for number in (1, 2, 5):
        for kind in ("decode", "remove", "copy", "greedy"):
            engines = failing(LOOKAHEAD, [(kind, 0), ("", 0), ("", 0)])
            engines[1].batch_rows, engines[2].batch_rows = 8, 16
            decoder = decoder_of(engines, DecodeSettings(mode="lookup"), seen=[(4, 1e-3), (4, 1e6), (4, 1e6)])
            list(decoder.generate([1, 2, 3], 100))
            decoder.change(LOOKAHEAD, None)
            for replica in replicas_of(decoder):
                replica.speed = Speed()
            engines[0].calls_left = number
            prompt = list(decoder.tokens)
            steps = list(decoder.generate(prompt, 60, reuse=True))
            assert tokens_of(steps) == plain_tokens(prompt, 60), (kind, number)
            # Who decodes what follows the clock, so it may not come to its fifth call.
            lost += engines[0].gone
            assert steps[-1].finish == "length"
            assert hold_beginnings(decoder, engines[1:])
    assert lost >= 8


class Guarded(FakeEngine):
    """Notices when two threads are in it at once.

    raised: what its next step ends with. waits_for: what it waits for before it decodes its next step. presses: Ctrl-C
    is pressed so often then.
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
        assert event.wait(20), "nobody waits for this one"
        self.waits_for = None
        for press in range(1 + self.presses):
            if press:
                pthread_kill(main_thread().ident or 0, SIGINT)
            # Time for what must not come: a call by the thread that should wait.
            self.touched.wait(0.02)

    def _look(self) -> None:
        if self.within not in (None, get_ident()):
            self.touched.set()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BatchRefused("decode: inconsistent")], ids=["Ctrl-C", "bug"])
@pytest.mark.parametrize("presses", [0, 1, 3])
@pytest.mark.parametrize("before", [1, 4])
def test_nothing_decodes_any_more_when_the_callers_part_has_failed(
    before: int, presses: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = alike(Guarded, 3, LOOKAHEAD)
    decoder = decoder_of(engines, LOOKAHEAD)
    waiting, wait = Event(), group_module._wait

    def noted(*arguments: Any, **more: Any) -> None:
        waiting.set()
        wait(*arguments, **more)

    monkeypatch.setattr(group_module, "_wait", noted)
    generation = decoder.generate([1, 2, 3], 60)
    taken = [next(generation) for _ in range(before)]
    waiting.clear()
    for replica in replicas_of(decoder):
        # All of one speed, so that each has a part of the next step.
        replica.speed = Speed()
    engines[0].raised = error
    for engine in engines[1:]:
        engine.waits_for, engine.touched, engine.presses = waiting, Event(), presses
    with pytest.raises(KeyboardInterrupt if presses else type(error)):
        taken.extend(generation)
    assert not any(engine.within or engine.touched.is_set() for engine in engines[1:])
    assert decoder.tokens == [1, 2, 3, *tokens_of(taken)] and all_hold(decoder, engines)
    assert tokens_of(list(decoder.generate([1, 2, 3], 60))) == plain_tokens([1, 2, 3], 60)
    assert not decoder.group.lost


class Pressed(Interrupting):
    """Ctrl-C is pressed in its n-th sequence call: all of those are made by the caller's thread."""

    def decode(self, batch: Batch) -> bool:
        return FakeEngine.decode(self, batch)

    def greedy(self) -> Ints:
        return FakeEngine.greedy(self)


@given(modes, prompts, st.integers(0, 1), st.integers(1, 40), st.booleans())
@settings(max_examples=60, deadline=None)
def test_an_interrupt_in_any_sequence_call_leaves_text_and_caches_agreeing(
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
    assert tokens_of(list(decoder.generate(prompt, 20, reuse=True))) == plain_tokens(prompt, 20)


def test_ctrl_c_is_heard_between_the_pieces_of_a_prompt() -> None:
    engines: list[Interrupting] = alike(Interrupting, 2, LOOKAHEAD)
    for engine in engines:
        engine.prefill_rows = 8
    decoder = decoder_of(engines, LOOKAHEAD)
    prompt = [*range(VOCABULARY)] * 4
    engines[0].calls_left, engines[0].before = 2, True
    with pytest.raises(KeyboardInterrupt):
        next(decoder.generate(prompt, 20))
    assert engines[0].calls == 1
    assert tokens_of(list(decoder.generate(prompt, 20, reuse=True))) == plain_tokens(prompt, 20)


class Leaving(FakeEngine):
    """Its calls can be left in the middle; one of two `rows` rows never ends otherwise."""

    rows = 0

    def decode(self, batch: Batch) -> bool:
        if len(batch) != self.rows:
            return super().decode(batch)
        self.within.set()
        assert self.left.wait(20), "nobody interrupts it"
        raise KeyboardInterrupt

    def interrupt(self) -> None:
        # A first one may come too early, between two calls.
        if self.asked:
            self.left.set()
        self.asked = True

    asked = False
    within, left = Event(), Event()


def test_ctrl_c_leaves_the_pieces_of_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "AGAIN_S", 0.001)
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
    assert tokens_of(list(decoder.generate(prompt, 20, reuse=True))) == plain_tokens(prompt, 20)
    assert not decoder.group.lost


def test_an_interrupt_before_any_line_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # The lines of a single replica are gone through one by one elsewhere.
    monkeypatch.setattr("tests.session.test_reuse.WATCHED", ("decode", "cache", "replicas/group", "replicas/replica"))
    for line in count(1, 5):
        engines: list[Guarded] = [Guarded(24, 24, SHORT.sequences, VOCABULARY) for _ in range(2)]
        for engine in engines:
            engine.touched = Event()
        decoder = decoder_of(engines, SHORT)
        list(decoder.generate([1, 2, 3, 4, 5, 6], 5))
        with suppress(KeyboardInterrupt), ctrl_c_at_line(line) as lines:
            list(decoder.generate([*decoder.tokens[:8], 7, 3], 8, reuse=True))
        third = [*decoder.tokens[:9], 2]
        assert tokens_of(list(decoder.generate(third, 4, reuse=True))) == plain_tokens(third, 4), line
        assert all_hold(decoder, engines) and not any(engine.touched.is_set() for engine in engines), line
        if not lines.reached:
            return

"""The engine on the toy context: every mode gives plain decoding's tokens, for any sizes, prompts and ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import TypeVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lacli.batch import Batch, Ints
from lacli.engine.engine import Engine, SequenceOptions
from lacli.settings import MODES, Constraints, DecodeSettings, ModeName
from lacli.stats import Step
from lacli.tree import Origin
from tests.fakes.context import FakeContext
from tests.fakes.decoding import Decoding, fixed_clock_decoder

VOCABULARY = 12
Result = TypeVar("Result")

any_settings = st.builds(
    DecodeSettings,
    mode=st.sampled_from(MODES),
    window=st.integers(0, 7),
    ngram=st.integers(2, 6),
    guesses=st.integers(0, 6),
    pool_prompt=st.booleans(),
    jacobi_iterations=st.integers(1, 6),
    lookup_match=st.integers(1, 3),
    lookup_draft=st.integers(1, 6),
    auto_rows=st.integers(1, 70),
    constraints=st.builds(Constraints, ordered=st.booleans(), min_outputs=st.sampled_from([1, 2])),
)
prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40)
ends = st.frozensets(st.integers(0, VOCABULARY - 1), max_size=2)


def engine_for(
    chosen: DecodeSettings, cells: int = 256, rows: int = 256, ends: frozenset[int] = frozenset()
) -> FakeContext:
    context = FakeContext(cells, rows, chosen.ids, VOCABULARY, ends)
    context.max_outputs = max(chosen.ids, chosen.max_outputs)
    context.ordered, context.min_outputs = chosen.constraints.ordered, chosen.constraints.min_outputs
    return context


def tokens_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def holds_its_text(decoder: Decoding, engine: FakeContext) -> bool:
    """Whether the cache has all tokens but the last. With ordered cells the last step's tokens may be missing too."""
    held, text = engine.held(), decoder.tokens
    least = len(text) - (decoder.settings.max_step_tokens if decoder.settings.constraints.ordered else 1)
    return held == text[: len(held)] and least <= len(held) < len(text)


def plain_tokens(prompt: list[int], limit: int = -1, cells: int = 256, ends: frozenset[int] = frozenset()) -> list[int]:
    chosen = DecodeSettings(mode="plain")
    return tokens_of(list(fixed_clock_decoder(engine_for(chosen, cells, ends=ends), chosen).generate(prompt, limit)))


@given(any_settings, prompts, ends, st.integers(-1, 80), st.integers(41, 130), st.integers(4, 64))
@settings(max_examples=300, deadline=None)
def test_every_mode_equals_plain(
    chosen: DecodeSettings, prompt: list[int], ends: frozenset[int], limit: int, cells: int, rows: int
) -> None:
    engine = engine_for(chosen, cells, rows, ends)
    decoder = fixed_clock_decoder(engine, chosen)
    steps = list(decoder.generate(prompt, limit))
    # Padding rows of a step need cells, which the sequence then cannot have.
    assert tokens_of(steps) == plain_tokens(prompt, limit, cells - chosen.constraints.min_outputs + 1, ends)
    assert decoder.tokens == prompt + tokens_of(steps)
    # Without a step no prompt is decoded.
    assert not steps or holds_its_text(decoder, engine)
    assert all((step.finish == "eog") == (step.tokens[-1] in ends) for step in steps)
    if chosen.mode != "plain":
        assert all(step.rows <= chosen.max_rows and step.drafted < chosen.max_outputs for step in steps)


@given(any_settings, prompts, st.integers(1, 20), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_closing_early_leaves_exactly_the_accepted_tokens(
    chosen: DecodeSettings, prompt: list[int], steps: int, cut: int
) -> None:
    engine = engine_for(chosen)
    decoder = fixed_clock_decoder(engine, chosen)
    generation = decoder.generate(prompt, 100)
    taken = [step for _, step in zip(range(steps), generation, strict=False)]
    generation.close()
    assert decoder.tokens == prompt + tokens_of(taken)
    assert holds_its_text(decoder, engine)
    begun = decoder.tokens[: max(len(decoder.tokens) - cut, 1)]
    assert tokens_of(list(decoder.generate(begun, 10))) == plain_tokens(begun, 10)
    assert holds_its_text(decoder, engine)


@given(any_settings, prompts, st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_a_cache_that_refuses_large_batches_gets_smaller_ones(
    chosen: DecodeSettings, prompt: list[int], largest: int
) -> None:
    assume(largest >= chosen.constraints.min_outputs + (chosen.max_step_tokens if chosen.constraints.ordered else 1))
    engine = engine_for(chosen)
    decoder = fixed_clock_decoder(engine, chosen)
    generation = decoder.generate(prompt, 40)
    first = next(generation)
    engine.refuse_above = largest
    assert tokens_of([first, *generation]) == plain_tokens(prompt, 40)


@pytest.mark.parametrize("mode", MODES)
def test_a_full_context_ends_with_length_and_its_last_cell_is_used(mode: ModeName) -> None:
    chosen = DecodeSettings(mode=mode, window=4, ngram=3, guesses=4)
    engine = engine_for(chosen, cells=50)
    decoder = fixed_clock_decoder(engine, chosen)
    steps = list(decoder.generate([1, 2, 3], -1))
    assert len(engine.held()) == 50
    assert len(tokens_of(steps)) == 48
    assert any(step.drafted for step in steps) == (mode != "plain")
    assert steps[-1].finish == "length"


@pytest.mark.parametrize("mode", MODES)
def test_one_step_is_one_decode_call(mode: ModeName) -> None:
    chosen = DecodeSettings(mode=mode)
    engine = engine_for(chosen)
    steps = list(fixed_clock_decoder(engine, chosen).generate([5, 1, 2, 3], 60))
    assert engine.calls == len(steps) + 1  # the prompt is one batch


def test_lookahead_accepts_several_tokens_a_step_on_text_that_repeats() -> None:
    chosen = DecodeSettings(mode="lookahead")
    engine = FakeContext(256, 256, chosen.ids, VOCABULARY, surprise=40)
    steps = list(fixed_clock_decoder(engine, chosen).generate([1, 2, 3, 4], 100))
    assert len(tokens_of(steps)) / len(steps) > 2
    assert sum(origin is Origin.POOL for step in steps for origin in step.origins) > 30


def test_how_a_prompt_is_read_is_told_without_what_the_cache_held_already() -> None:
    told: list[tuple[int, int]] = []
    engine = Engine(FakeContext(prefill_rows=8), DecodeSettings(mode="plain"))
    prompt = [*range(1, 11)] * 2
    for text in (prompt, [*prompt, 3, 4]):
        list(engine.decode(text, SequenceOptions(1), lambda *read: told.append(read)))
    assert told == [(0, 19), (8, 19), (16, 19), (19, 19), (0, 1), (1, 1)]


class Interrupting(FakeContext):
    """A toy context with Ctrl-C in its `calls_left`-th call from now, after the call's work or, if `before`, before."""

    calls_left = 0
    before = False

    def _call(self, work: Callable[[], Result]) -> Result:
        self.calls_left -= 1
        if self.calls_left == 0 and self.before:
            raise KeyboardInterrupt
        result = work()
        if self.calls_left == 0:
            raise KeyboardInterrupt
        return result

    def decode(self, batch: Batch) -> bool:
        return self._call(lambda: FakeContext.decode(self, batch))

    def greedy(self) -> Ints:
        return self._call(lambda: FakeContext.greedy(self))

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._call(lambda: FakeContext.copy(self, source, target, start, end))

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return self._call(lambda: FakeContext.remove(self, sequence, start, end))


@given(any_settings, prompts, st.integers(1, 150), st.booleans())
@settings(max_examples=60, deadline=None)
def test_an_interrupt_in_any_call_leaves_sequence_and_cache_agreeing(
    chosen: DecodeSettings, prompt: list[int], calls: int, before: bool
) -> None:
    engine = Interrupting(256, 256, chosen.ids, VOCABULARY)
    decoder = fixed_clock_decoder(engine, chosen)
    generation = decoder.generate(prompt, 60)
    next(generation)
    engine.calls_left, engine.before = calls, before
    with suppress(KeyboardInterrupt):
        list(generation)
    engine.calls_left = 0
    assert decoder.tokens == (prompt + plain_tokens(prompt, 60))[: len(decoder.tokens)]
    assert holds_its_text(decoder, engine)
    assert tokens_of(list(decoder.generate(prompt, 20))) == plain_tokens(prompt, 20)


def test_a_jacobi_block_loses_only_the_drafts_that_were_accepted() -> None:
    settings = DecodeSettings(mode="jacobi", window=6, jacobi_iterations=1000)
    steps = list(fixed_clock_decoder(FakeContext(400, 400, 31, 7), settings).generate([1, 2, 3, 4], 120))
    assert max(len(step.tokens) for step in steps) > 1
    for before, step in pairwise(steps):
        left = before.rows - len(before.tokens)
        assert step.rows == 1 + (left or settings.window)

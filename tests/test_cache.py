"""Sequence calls of one text among others: each keeps to the ids that are its own."""

from __future__ import annotations

from itertools import zip_longest

from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.cache import EngineStep, SingleEngine
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree
from tests.fakes.context import FakeContext
from tests.fakes.decoding import fixed_clock_decoder
from tests.test_decode import VOCABULARY, any_settings, plain_tokens, prompts, tokens_of

few = st.lists(st.integers(0, VOCABULARY - 1), max_size=4)


@given(any_settings, prompts, prompts, st.integers(0, 12), few)
@settings(max_examples=60, deadline=None)
def test_two_texts_in_one_engine_are_those_of_two_engines(
    chosen: DecodeSettings, first: list[int], second: list[int], kept: int, more: list[int]
) -> None:
    engine = FakeContext(512, 256, 2 * chosen.sequences, VOCABULARY, ordered=False, min_outputs=chosen.min_outputs)
    ids = range(chosen.sequences), range(chosen.sequences, 2 * chosen.sequences)
    one, other = (fixed_clock_decoder(SingleEngine(engine, each), chosen) for each in ids)
    taken = zip_longest(one.generate(first, 30), other.generate(second, 20))
    steps = [[step for step in column if step] for column in zip(*taken, strict=True)]
    assert [tokens_of(each) for each in steps] == [plain_tokens(first, 30), plain_tokens(second, 20)]
    # What one forgets the other still holds.
    prompt = [*one.tokens[:kept], *more] or [1]
    assert tokens_of(list(one.generate(prompt, 10, reuse=True))) == plain_tokens(prompt, 10)
    one.truncate(0)
    for decoder, each in ((one, ids[0]), (other, ids[1])):
        held = engine.held(each.start)
        assert held == decoder.tokens[: len(held)] and len(held) >= decoder.group.past
    prompt = [*other.tokens, 1]
    assert tokens_of(list(other.generate(prompt, 10, reuse=True))) == plain_tokens(prompt, 10)


@given(prompts, prompts, few, few)
@settings(max_examples=40, deadline=None)
def test_each_text_of_a_shared_batch_reads_its_own_rows(
    first: list[int], second: list[int], guesses: list[int], more: list[int]
) -> None:
    texts = ((first, guesses), (second, more))
    shared = FakeContext(256, 256, 2, VOCABULARY)
    step = EngineStep(shared)
    parts = [SingleEngine(shared, range(place, place + 1), step) for place in range(2)]
    for part, (tokens, path) in zip(parts, texts, strict=True):
        part.prepare(tokens, _chain(tokens, path))
    assert step.run(parts)
    for part, (tokens, path) in zip(parts, texts, strict=True):
        own = SingleEngine(FakeContext(256, 256, 1, VOCABULARY))
        own.prepare(tokens, _chain(tokens, path))
        assert own.step.run([own]) and part.choices() == own.choices()
        for ours, theirs in zip(part.successors(3), own.successors(3), strict=True):
            assert ours.tolist() == theirs.tolist()
        last = len(path)
        assert part.logits()(last).tolist() == own.logits()(last).tolist()


def _chain(tokens: list[int], path: list[int]) -> Tree:
    tree = Tree(tokens[-1])
    tree.add_path(path, 0, Origin.CHAIN)
    return tree

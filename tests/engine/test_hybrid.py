"""Chains that a recurrent state is taken back by, on the fake engine: plain's tokens, and nothing kept by mistake."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.modes import Mode
from lacli.settings import MODES, Constraints, DecodeSettings
from lacli.tree import Origin, Tree
from tests.engine.test_engine import VOCABULARY, ends, plain_tokens, prompts, tokens_of
from tests.engine.test_reuse import turns
from tests.fakes.context import FakeContext
from tests.fakes.decoding import Decoding, fixed_clock_decoder

CHAINS = tuple(mode for mode in MODES if mode not in ("plain", "lookahead"))

chains = st.builds(
    DecodeSettings,
    mode=st.sampled_from(CHAINS),
    window=st.integers(0, 7),
    jacobi_iterations=st.integers(1, 6),
    lookup_match=st.integers(1, 3),
    lookup_draft=st.integers(1, 6),
    constraints=st.builds(Constraints, max_rollback=st.integers(1, 6)),
)


class Prophet(Mode):
    """Drafts what the sequence will be, up to a place that changes from step to step, and something else behind it."""

    def __init__(self, future: Sequence[int], most: int, seed: int) -> None:
        self._future, self._most, self._random = future, most, Random(seed)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        tree = Tree(text[-1])
        ahead = list(self._future[len(text) :][: min(self._random.randint(0, self._most), room - 1)])
        right = self._random.randint(0, len(ahead))
        ahead[right:] = [abs(token - 1) for token in ahead[right:]]
        tree.add_path(ahead, 0, Origin.CHAIN)
        return tree


def toy(back: int, ends: frozenset[int] = frozenset(), cells: int = 400) -> FakeContext:
    return FakeContext(cells, 256, 1, VOCABULARY, ends, max_rollback=back)


def holds_a_part(decoder: Decoding, engine: FakeContext) -> bool:
    """The cache has what the engine believes it to have, a beginning of the sequence."""
    held = engine.held()
    return held == decoder.tokens[: len(held)] and len(held) == decoder.past


@given(chains, prompts, turns, ends)
@settings(max_examples=150, deadline=None)
def test_every_turn_of_a_chain_that_can_be_taken_back_is_a_fresh_plain_run(
    chosen: DecodeSettings, prompt: list[int], rest: list[tuple[int, list[int], int]], ends: frozenset[int]
) -> None:
    engine = toy(chosen.constraints.max_rollback, ends)
    decoder = fixed_clock_decoder(engine, chosen)
    steps = list(decoder.generate(prompt, 40))
    assert tokens_of(steps) == plain_tokens(prompt, 40, 400, ends)
    for keep, more, limit in rest:
        prompt = [*decoder.tokens[:keep], *more] or [1]
        steps = list(decoder.generate(prompt, limit))
        assert tokens_of(steps) == plain_tokens(prompt, limit, 400, ends)
        assert holds_a_part(decoder, engine)
        assert max((step.rows for step in steps), default=0) <= 1 + chosen.constraints.max_rollback


@given(st.integers(1, 6), prompts, st.integers(0, 1000), st.integers(1, 20), st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_whatever_is_accepted_of_a_chain_the_sequence_goes_on_as_plains(
    back: int, prompt: list[int], seed: int, taken: int, cut: int
) -> None:
    expected = prompt + plain_tokens(prompt, 80)
    chosen = DecodeSettings(mode="lookup").constrained(max_rollback=back)
    engine = toy(back)
    decoder = Decoding(engine, chosen)
    with patch("lacli.engine.engine.make_mode", lambda *_: Prophet(expected, back, seed)):
        generation = decoder.generate(prompt, 80)
        for _ in zip(range(taken), generation, strict=False):
            pass
        generation.close()
        assert decoder.tokens == expected[: len(decoder.tokens)]
        assert holds_a_part(decoder, engine)
        begun = decoder.tokens[: max(len(decoder.tokens) - cut, 1)]
        again = tokens_of(list(decoder.generate(begun, 10)))
    assert again == plain_tokens(begun, 10)

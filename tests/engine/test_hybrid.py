"""Chains of drafts on a toy context with a recurrent state: plain decoding's tokens, and a right cache."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.settings import MODES, Constraints, DecodeSettings
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


def toy(back: int, ends: frozenset[int] = frozenset(), cells: int = 400) -> FakeContext:
    return FakeContext(cells, 256, 1, VOCABULARY, ends, max_rollback=back)


def holds_a_part(decoder: Decoding, engine: FakeContext) -> bool:
    """Whether the cache has a beginning of the sequence, of the length that the engine counts."""
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

"""Convergence of Jacobi blocks: real runs on the fake engine against Jacobi iteration worked out slowly."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.insight.convergence import Block, Convergence, convergence
from lacli.check.replay import Recorder
from lacli.settings import DecodeSettings
from lacli.window import WINDOW_SEED
from tests.fakes.decoding import auto_decoder
from tests.fakes.engine import FakeEngine

PROMPT = [1, 2, 3, 4, 1, 2, 3, 1, 2, 3, 4, 5]


def jacobi(window: int, iterations: int) -> DecodeSettings:
    return DecodeSettings(mode="jacobi", window=window, jacobi_iterations=iterations)


def of_run(
    settings: DecodeSettings, prompt: list[int], limit: int, engine: FakeEngine
) -> tuple[Convergence, list[int]]:
    recorder = Recorder(engine)
    decoder = auto_decoder(recorder, settings)
    list(decoder.generate(prompt, limit))
    return convergence(recorder.decoded, decoder.tokens, settings), decoder.tokens


def iterated(engine: FakeEngine, text: list[int], guesses: list[int]) -> list[int]:
    """All positions after a text replaced at once by what follows the guesses before them, and one more position."""
    context = list(enumerate(text))
    following = []
    for guess in [*guesses, None]:
        following.append(engine.next_token(context))
        context.append((len(context), -1 if guess is None else guess))
    return following


def slowly(settings: DecodeSettings, prompt: list[int], text: list[int], engine: FakeEngine) -> Convergence:
    """Algorithm 1 block by block on whole blocks, nothing accepted, no cache; the text says what is right."""
    random, begin, blocks, cut = Random(WINDOW_SEED), len(prompt), [], 0
    while begin < len(text):
        guesses = random.choices(prompt, k=settings.window)
        right, agreed, iterations = [], 0, 0
        while agreed < len(guesses) and iterations < settings.jacobi_iterations and begin + agreed < len(text):
            truth = text[begin : begin + len(guesses)]
            agreed = next((n for n, (a, b) in enumerate(zip(guesses, truth, strict=False)) if a != b), len(truth)) + 1
            guesses = iterated(engine, text[:begin], guesses)
            iterations += 1
            right.append(sum(a == b for a, b in zip(guesses, text[begin : begin + settings.window], strict=False)))
        if begin + settings.window > len(text):
            cut += 1
        else:
            if agreed < settings.window:
                right.pop()
            if settings.window in right:
                right = right[: right.index(settings.window) + 1]
            blocks.append(Block(settings.window, tuple(right)))
        begin += agreed
    return Convergence(tuple(blocks), cut)


@given(
    st.integers(1, 8),
    st.integers(1, 12),
    st.lists(st.integers(0, 11), min_size=1, max_size=20),
    st.integers(1, 60),
    st.sampled_from([2, 5, 50]),
    st.frozensets(st.integers(0, 11), max_size=1),
)
def test_a_runs_blocks_converge_as_jacobi_iteration_does(
    window: int, iterations: int, prompt: list[int], limit: int, surprise: int, ends: frozenset[int]
) -> None:
    settings, engine = jacobi(window, iterations), FakeEngine(surprise=surprise, ends=ends)
    found, text = of_run(settings, prompt, limit, engine)
    assert found == slowly(settings, prompt, text, engine)


def test_the_run_that_is_checked_has_blocks_of_every_kind() -> None:
    found, _ = of_run(jacobi(4, 3), PROMPT, 100, FakeEngine())
    assert {block.iterations for block in found.blocks} == {2, 3, inf}
    assert found.given_up and found.cut


def test_shares_are_over_the_positions_of_all_blocks_and_a_converged_block_stays_so() -> None:
    found = Convergence((Block(4, (1, 4)), Block(4, (1, 2, 3, 4)))) + Convergence((Block(2, (2,)),))
    assert found.shares == [4 / 10, 8 / 10, 9 / 10, 1.0]
    assert found.median_iterations == 2
    assert found.given_up == 0


def test_shares_end_where_a_block_was_given_up() -> None:
    found = Convergence((Block(4, (1, 2)), Block(4, (1, 2, 3, 4)), Block(4, (4,))))
    assert found.shares == [6 / 12, 8 / 12]
    assert found.median_iterations == 4
    assert found.given_up == 1


def test_a_median_is_unknown_where_half_the_blocks_were_given_up() -> None:
    assert Convergence((Block(4, (1,)), Block(4, (1, 4)))).median_iterations is None


@pytest.mark.parametrize("settings", [jacobi(5, 16), jacobi(0, 16)])
def test_a_text_shorter_than_a_block_gives_no_shares(settings: DecodeSettings) -> None:
    found, _ = of_run(settings, PROMPT, 2, FakeEngine())
    assert found.blocks == ()
    assert found.shares == []
    assert found.median_iterations is None

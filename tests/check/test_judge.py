"""Verdicts: a margin against the rounding, a draw against the shares it fell between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.check.judge import PLAIN, Difference, judge_draw, largest_difference, plain_logits
from lacli.decode import Decoder
from lacli.engine import Distribution, Floats
from lacli.errors import LacliError
from lacli.verify import SampleAndMatch
from tests.fakes.engine import FakeEngine
from tests.fakes.sampler import FakeSampler

LOGITS = np.log(np.array([0.5, 0.3, 0.2], np.float64))


class At(FakeSampler):
    """Its next number is known."""

    def __init__(self, number: float, temperature: float = 1.0) -> None:
        super().__init__(0, temperature)
        self._next = number


class TopTwo(At):
    """Like --top-k 2."""

    def distribution(self, logits: Floats) -> Distribution:
        tokens, shares = super().distribution(logits)
        return Distribution(tokens[:2], shares[:2] / shares[:2].sum())


class Secret(At):
    """No single number decides, as with mirostat or a grammar."""

    def uniform(self) -> float | None:
        return None


def moved(*shares: float) -> Floats:
    """Logits whose distribution is this one; the parts need not sum to 1."""
    return np.log(np.array(shares, np.float64))


def test_a_margin_is_a_bug_above_twice_the_rounding() -> None:
    assert not Difference(at=3, plain=1, other=2, margin=0.5, rounding=0.25).bug
    assert Difference(at=3, plain=1, other=2, margin=0.51, rounding=0.25).bug
    assert Difference(at=3, plain=1, other=2, margin=0.01, rounding=0.0).bug


def test_logits_that_are_no_numbers_explain_nothing() -> None:
    assert Difference(at=3, plain=1, other=2, margin=0.1, rounding=float("nan")).bug
    assert Difference(at=3, plain=1, other=2, margin=float("nan"), rounding=0.1).bug


def test_equal_infinities_are_no_difference() -> None:
    assert largest_difference(np.array([-np.inf, 1.0]), np.array([-np.inf, 1.5])) == 0.5
    assert largest_difference(np.array([-np.inf, 1.0]), np.array([0.0, 1.0])) == np.inf


def test_a_draw_close_to_a_boundary_that_moves_is_rounding() -> None:
    draw = judge_draw(At(0.499), LOGITS, moved(0.498, 0.302, 0.2), plain=0, other=1)
    assert draw.reached
    assert draw.distance == pytest.approx(0.001)
    assert draw.movement is not None and 0.002 <= draw.movement < 0.006


def test_a_draw_in_the_middle_of_a_share_is_a_bug() -> None:
    draw = judge_draw(At(0.485), LOGITS, moved(0.498, 0.302, 0.2), plain=0, other=1)
    assert not draw.reached
    assert draw.distance == pytest.approx(0.015)


def test_a_draw_close_to_a_boundary_that_does_not_move_is_a_bug() -> None:
    assert not judge_draw(At(0.499), LOGITS, LOGITS, plain=0, other=1).reached


def test_the_boundary_towards_the_other_token_counts() -> None:
    near_the_second = judge_draw(At(0.499), LOGITS, moved(0.498, 0.302, 0.2), plain=0, other=2)
    assert not near_the_second.reached, "the third token's share begins far behind the second's"
    before = judge_draw(At(0.501), LOGITS, moved(0.502, 0.298, 0.2), plain=1, other=0)
    assert before.reached and before.distance == pytest.approx(0.001)


def test_candidates_that_change_places_are_far_moved() -> None:
    near = moved(0.4001, 0.4, 0.2)
    draw = judge_draw(At(0.1), near, moved(0.4, 0.4001, 0.2), plain=0, other=1)
    assert draw.reached
    assert draw.movement is not None and draw.movement > 0.3


def test_a_candidate_that_may_fall_out_gives_its_place_and_nothing_else() -> None:
    near, rounded = moved(0.5, 0.2501, 0.25), moved(0.5, 0.25, 0.2501)
    draw = judge_draw(TopTwo(0.8), near, rounded, plain=1, other=2)
    assert draw.reached, "a look at the draw from rounded logits gives the other token"
    assert draw.distance == pytest.approx(0.8 - 0.5 / 0.7501, abs=1e-6), "the other token has no share"
    far = judge_draw(TopTwo(0.1), near, rounded, plain=0, other=1)
    assert far.distance is not None and far.distance > 0.5
    assert not far.reached, "that a neighbour falls out explains no jump"


def test_without_a_number_rounding_has_to_give_the_other_token() -> None:
    assert judge_draw(Secret(0.499), LOGITS, moved(0.498, 0.302, 0.2), plain=0, other=1).reached
    middle = judge_draw(Secret(0.4), LOGITS, moved(0.498, 0.302, 0.2), plain=0, other=1)
    assert (middle.distance, middle.movement, middle.reached) == (None, None, False)
    assert not judge_draw(Secret(0.499), LOGITS, LOGITS, plain=0, other=1).reached


def test_where_one_token_has_everything_its_logits_decide() -> None:
    """As at temperature 0 behind penalties: nothing is drawn, but the largest logit may change."""
    near = np.array([1.0, 1.001, 0.0])
    draw = judge_draw(At(0.5, 1e-9), near, near + [0.002, 0, 0], plain=1, other=0)
    assert draw.distance is None and draw.reached
    assert not judge_draw(At(0.5, 1e-9), np.array([0.0, 1.0]), np.array([0.01, 1.0]), plain=1, other=0).reached


@given(st.integers(0, 10_000), st.floats(1e-6, 0.5), st.floats(0.3, 2.0))
def test_what_rounding_has_changed_is_never_called_a_bug(seed: int, size: float, temperature: float) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, 20)
    others = logits + random.uniform(-size, size, 20)
    sampler = FakeSampler(seed, temperature)
    plain, other = sampler.peek(logits), sampler.peek(others)
    if plain != other:
        assert judge_draw(sampler, logits, others, plain, other).reached


def test_a_verdict_changes_nothing_about_the_draw_and_repeats() -> None:
    sampler = At(0.499)
    first = judge_draw(sampler, LOGITS, moved(0.498, 0.302, 0.2), plain=0, other=1)
    assert judge_draw(sampler, LOGITS, moved(0.498, 0.302, 0.2), plain=0, other=1) == first
    assert sampler.draw(LOGITS) == 0


def test_plain_logits_are_those_that_plain_decoding_chose_from() -> None:
    prompt = [1, 2, 3, 1, 2]
    tokens = [token for step in Decoder(FakeEngine(), PLAIN).generate(prompt, 20) for token in step.tokens]
    for count, token in enumerate(tokens):
        assert plain_logits(FakeEngine(), prompt, tokens[:count]).argmax() == token


def test_plain_logits_leave_the_sampler_before_its_next_draw() -> None:
    prompt, sampler = [1, 2, 3, 1, 2], FakeSampler(5, 1.0, 0.2)
    steps = Decoder(FakeEngine(), PLAIN, SampleAndMatch(sampler)).generate(prompt, 20)
    tokens = [token for step in steps for token in step.tokens]
    for count, token in enumerate(tokens):
        logits = plain_logits(FakeEngine(), prompt, tokens[:count], sampler=sampler)
        assert sampler.peek(logits) == token
    with pytest.raises(LacliError, match="does not repeat itself"):
        plain_logits(FakeEngine(), prompt, [*tokens[:3], (tokens[3] + 1) % 12], sampler=sampler)

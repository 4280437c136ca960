"""What a verdict is made of: plain's logits, and how far two rows of logits are apart."""

from __future__ import annotations

import numpy as np

from lacli.check.judge import PLAIN, largest_difference, plain_logits, within
from lacli.engine.engine import Engine, SequenceOptions
from tests.fakes.context import FakeContext


def test_rounding_closes_a_margin_of_at_most_twice_its_size() -> None:
    assert within(0.5, 0.25) and not within(0.51, 0.25)
    assert not within(float("nan"), 0.25) and not within(0.5, float("nan"))


def test_equal_infinities_are_no_difference() -> None:
    assert largest_difference(np.array([-np.inf, 1.0]), np.array([-np.inf, 1.5])) == 0.5
    assert largest_difference(np.array([-np.inf, 1.0]), np.array([0.0, 1.0])) == np.inf


def test_plain_logits_are_those_that_plain_decoding_chose_from() -> None:
    prompt = [1, 2, 3, 1, 2]
    tokens = [
        token for step in Engine(FakeContext(), PLAIN).steps(prompt, SequenceOptions(20)) for token in step.tokens
    ]
    for count, token in enumerate(tokens):
        assert plain_logits(FakeContext(), prompt, tokens[:count]).argmax() == token

"""The scaling law: its equations against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from benchmarks.insight.law import Law, expected_tokens


def exact_tokens(alpha: Fraction, gamma: int, sequences: int) -> Fraction:
    """Appendix C's sum over the number of accepted tokens."""
    at_most = [(1 - alpha**depth) ** sequences for depth in range(gamma + 1)]
    expected = (gamma + 1) * (1 - at_most[gamma])
    for accepted in range(1, gamma + 1):
        expected += accepted * (at_most[accepted] - at_most[accepted - 1])
    return expected


def test_a_step_without_guesses_brings_one_token_and_one_with_sure_guesses_all() -> None:
    assert expected_tokens(0.5, 0, 10) == expected_tokens(0.5, 4, 0) == expected_tokens(0.0, 4, 10) == 1
    assert expected_tokens(1.0, 4, 1) == 5


@pytest.mark.parametrize("sequences", [1, 5, 15, 30])
@pytest.mark.parametrize("gamma", [1, 4, 9])
@pytest.mark.parametrize("alpha", [Fraction(1, 10), Fraction(425, 1000), Fraction(4, 5)])
def test_equations_5_and_7_agree_with_exact_fractions(alpha: Fraction, gamma: int, sequences: int) -> None:
    tokens, f = exact_tokens(alpha, gamma, sequences), Fraction(3106, 1000)
    assert expected_tokens(float(alpha), gamma, sequences) == pytest.approx(float(tokens), rel=1e-12)
    compression = Law(float(alpha), float(f)).compression(gamma, sequences)
    assert compression == pytest.approx(float((f - 1 + tokens) / f), rel=1e-12)

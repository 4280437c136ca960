"""The scaling law: its equations against a simulation and against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from benchmarks.insight.law import PAPER, expected_tokens


def simulated(alpha: float, gamma: int, sequences: int, steps: int = 20_000) -> tuple[float, float]:
    """Mean tokens of steps whose guesses' tokens are accepted one by one by chance, and its standard error.

    A miss too rare to be seen leaves no scatter, so one step's share is added.
    """
    accepted = np.random.default_rng(4).random((steps, sequences, gamma)) < alpha
    runs = np.where(accepted.all(axis=2), gamma, (~accepted).argmax(axis=2))
    tokens = 1 + runs.max(axis=1)
    return float(tokens.mean()), float(tokens.std() / np.sqrt(steps)) + 1 / steps


def exact_compression(gamma: int, sequences: int) -> Fraction:
    """Appendix C's sum over the number of accepted tokens, and Equation 7, at the alpha and f of Figure 4 (b)."""
    alpha, f = Fraction(425, 1000), Fraction(3106, 1000)
    at_most = [(1 - alpha**depth) ** sequences for depth in range(gamma + 1)]
    expected = (gamma + 1) * (1 - at_most[gamma])
    for accepted in range(1, gamma + 1):
        expected += accepted * (at_most[accepted] - at_most[accepted - 1])
    return (f - 1 + expected) / f


@pytest.mark.parametrize("sequences", [1, 2, 7, 30])
@pytest.mark.parametrize("gamma", [1, 4, 9])
@pytest.mark.parametrize("alpha", [0.1, 0.425, 0.8])
def test_equation_5_is_the_mean_of_the_process_it_describes(alpha: float, gamma: int, sequences: int) -> None:
    mean, error = simulated(alpha, gamma, sequences)
    assert expected_tokens(alpha, gamma, sequences) == pytest.approx(mean, abs=5 * error)


@pytest.mark.parametrize("gamma", [0, 1, 3, 12])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9])
def test_with_one_sequence_it_is_equation_4(alpha: float, gamma: int) -> None:
    assert expected_tokens(alpha, gamma) == pytest.approx((1 - alpha ** (gamma + 1)) / (1 - alpha))


def test_a_step_without_guesses_brings_one_token_and_one_with_sure_guesses_all() -> None:
    assert expected_tokens(0.5, 0, 10) == expected_tokens(0.5, 4, 0) == expected_tokens(0.0, 4, 10) == 1
    assert expected_tokens(1.0, 4, 1) == 5


def test_many_sequences_bring_every_token_of_the_longest_guess() -> None:
    assert expected_tokens(0.425, 4, 1e6) == pytest.approx(5)
    assert expected_tokens(0.425, 4, 1e2) < 4.99


def test_tokens_grow_with_the_logarithm_of_the_sequences_where_guesses_are_long() -> None:
    gains = np.diff([expected_tokens(0.5, 60, 2.0**power) for power in range(4, 16)])
    np.testing.assert_allclose(gains, 1.0, atol=0.03)


@pytest.mark.parametrize("sequences", [1, 5, 15, 30])
@pytest.mark.parametrize("gamma", [2, 4, 9])
def test_the_curve_of_figure_4_agrees_with_exact_fractions(gamma: int, sequences: int) -> None:
    assert PAPER.compression(gamma, sequences) == pytest.approx(float(exact_compression(gamma, sequences)), rel=1e-12)

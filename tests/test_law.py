"""The scaling law: its equations against a simulation and against exact fractions, and what a fit recovers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from lacli.law import (
    PAPER,
    Law,
    expected_tokens,
    fit,
)

SWEEP = [(gamma, sequences) for gamma in (2, 4, 6) for sequences in (1, 5, 10, 15, 30)]


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


@pytest.mark.parametrize("law", [PAPER, Law(0.1, 1.0), Law(0.71234, 5.0), Law(0.9, 1.5)])
def test_a_fit_recovers_the_law_that_made_the_points(law: Law) -> None:
    points = [(gamma, sequences, law.compression(gamma, sequences)) for gamma, sequences in SWEEP]
    found = fit(points)
    assert found is not None
    assert (found.alpha, found.f) == pytest.approx((law.alpha, law.f), abs=1e-6)
    assert found.error(points) == pytest.approx(0, abs=1e-9)


def test_two_settings_are_enough_for_a_fit() -> None:
    found = fit([(4, sequences, PAPER.compression(4, sequences)) for sequences in (5, 15)])
    assert found is not None
    assert (found.alpha, found.f) == pytest.approx((PAPER.alpha, PAPER.f), abs=1e-6)


def test_a_fit_of_noisy_points_is_near_the_law_and_no_other_is_nearer_to_the_points() -> None:
    noise = np.random.default_rng(1).normal(0, 0.03, len(SWEEP))
    points = [(*point, PAPER.compression(*point) + error) for point, error in zip(SWEEP, noise, strict=True)]
    found = fit(points)
    assert found is not None
    assert found.alpha == pytest.approx(PAPER.alpha, abs=0.06)
    assert found.f == pytest.approx(PAPER.f, abs=0.6)
    nearby = [Law(found.alpha + shift, found.f + other) for shift in (-1e-3, 0, 1e-3) for other in (-1e-2, 0, 1e-2)]
    assert min(law.error(points) for law in [*nearby, PAPER]) == found.error(points)


def test_the_error_is_the_root_mean_square_of_the_differences() -> None:
    points = [(4, 5, PAPER.compression(4, 5) + 0.3), (4, 15, PAPER.compression(4, 15) - 0.1)]
    assert PAPER.error(points) == pytest.approx(((0.3**2 + 0.1**2) / 2) ** 0.5)


def test_f_stays_at_one_where_more_was_measured_than_the_law_allows() -> None:
    found = fit([(1, 1, 1.9), (1, 2, 3.0), (1, 4, 3.0)])
    assert found is not None
    assert found.f == 1.0
    assert 0 < found.alpha < 1


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(4, 15, 1.8)],
        [(4, 15, 1.8), (4, 15, 1.9)],
        [(4, 15, 1.8), (0, 5, 1.0), (4, 0, 1.0)],
        [(4, 5, 1.0), (4, 15, 1.0)],
    ],
)
def test_there_is_no_fit_where_the_points_do_not_determine_one(points: list[tuple[int, int, float]]) -> None:
    assert fit(points) is None


def test_there_is_no_fit_where_two_laws_go_through_all_points() -> None:
    points = [(gamma, sequences, Law(0.35, 2.0).compression(gamma, sequences)) for gamma, sequences in [(1, 1), (2, 2)]]
    assert fit(points) is None
    assert fit([*points, (4, 15, Law(0.35, 2.0).compression(4, 15))]) is not None

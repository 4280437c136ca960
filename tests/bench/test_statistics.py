"""Statistics of repeated measurements: on numbers worked out by hand, and coverage on simulated ones."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from lacli.bench.statistics import paired_ratio, student_point

Times = list[list[float]]


def measured(random: np.random.Generator, prompts: int, repetitions: int, speedup: float) -> tuple[Times, Times]:
    """Seconds a token of plain and of a mode whose speed-up differs from prompt to prompt, and from run to run."""
    plain = np.exp(random.normal(-3, 0.3, (prompts, 1)) + random.normal(0, 0.05, (prompts, repetitions)))
    gains = random.normal(np.log(speedup), 0.25, (prompts, 1)) + random.normal(0, 0.05, (prompts, repetitions))
    other: Times = (plain / np.exp(gains)).tolist()
    return plain.tolist(), other


def test_the_ratio_is_the_geometric_mean_of_each_prompts_median() -> None:
    plain = [[4.0, 8.0, 6.0], [9.0, 9.0, 9.0]]
    other = [[2.0, 1.0, 3.0], [1.0, 9.0, 1.0]]
    # Ratios 2, 8, 2 and 9, 1, 9.
    assert paired_ratio(plain, other).value == pytest.approx(sqrt(2 * 9))


def test_repetitions_are_paired_so_drift_that_hits_both_modes_cancels() -> None:
    drift = np.array([1.0, 3.0, 0.5, 2.0])
    ratio = paired_ratio([(drift * 2).tolist()] * 3, [drift.tolist()] * 3)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_exchanging_the_modes_gives_the_inverse() -> None:
    plain, other = measured(np.random.default_rng(5), prompts=6, repetitions=4, speedup=1.4)
    there, back = paired_ratio(plain, other), paired_ratio(other, plain)
    assert there.low is not None and there.high is not None
    assert there.low < there.value < there.high
    assert (back.value, back.low, back.high) == pytest.approx((1 / there.value, 1 / there.high, 1 / there.low))


@pytest.mark.parametrize(("prompts", "repetitions"), [(3, 3), (8, 3), (20, 2)])
def test_about_95_of_100_intervals_hold_the_true_ratio(prompts: int, repetitions: int) -> None:
    random, trials, held = np.random.default_rng(7), 200, 0
    for _ in range(trials):
        ratio = paired_ratio(*measured(random, prompts, repetitions, speedup=1.5))
        assert ratio.low is not None and ratio.high is not None
        held += ratio.low <= 1.5 <= ratio.high
    # 200 trials scatter by 1.5 points, and an interval may be somewhat wider than it need be.
    assert 0.90 <= held / trials <= 0.995


@pytest.mark.parametrize("freedom", [1, 4, 9, 10, 30])
def test_students_point_leaves_a_fortieth_of_the_distribution_above_it(freedom: int) -> None:
    # A quarter of a million draws: mean over the square root of a chi-squared mean.
    random = np.random.default_rng(9)
    draws = random.normal(size=250_000) / np.sqrt(random.chisquare(freedom, 250_000) / freedom)
    assert float((draws > student_point(freedom)).mean()) == pytest.approx(0.025, abs=0.0015)

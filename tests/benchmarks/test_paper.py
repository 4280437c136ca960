"""The law of the paper, against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from benchmarks.paper import Law, expected_tokens, fit, law_table
from lacli.errors import LacliError


def exact_tokens(alpha: Fraction, gamma: int, sequences: int) -> Fraction:
    """Return the expected tokens of a step by Appendix C: a sum over the number of accepted tokens."""
    at_most = [(1 - alpha**depth) ** sequences for depth in range(gamma + 1)]
    expected = (gamma + 1) * (1 - at_most[gamma])
    for accepted in range(1, gamma + 1):
        expected += accepted * (at_most[accepted] - at_most[accepted - 1])
    return expected


@pytest.mark.parametrize("sequences", [1, 5, 30])
@pytest.mark.parametrize("gamma", [1, 4, 9])
@pytest.mark.parametrize("alpha", [Fraction(1, 10), Fraction(425, 1000), Fraction(4, 5)])
def test_equations_5_and_7_agree_with_exact_fractions(alpha: Fraction, gamma: int, sequences: int) -> None:
    tokens, f = exact_tokens(alpha, gamma, sequences), Fraction(3106, 1000)
    assert expected_tokens(float(alpha), gamma, sequences) == pytest.approx(float(tokens), rel=1e-12)
    compression = Law(float(alpha), float(f)).compression(gamma, sequences)
    assert compression == pytest.approx(float((f - 1 + tokens) / f), rel=1e-12)


def test_a_fit_finds_the_law_of_points_that_follow_one() -> None:
    law = Law(0.425, 3.106)
    points = [(ngram - 1, window, law.compression(ngram - 1, window)) for ngram in (3, 5, 7) for window in (1, 5, 15)]
    found = fit(points)
    assert found.alpha == pytest.approx(0.425, abs=0.001) and found.f == pytest.approx(3.106, rel=0.01)
    rows = [
        {"class": "all", "mode": "lookahead", "window": window, "guesses": window, "ngram": gamma + 1,
         "tokens_per_step": measured}
        for gamma, window, measured in points
    ]  # fmt: skip
    assert "alpha 0.425" in law_table(rows) and "| W=G=15 N=7 |" in law_table(rows)
    with pytest.raises(LacliError):
        fit([(4, 5, 1.0), (4, 15, 1.0)])

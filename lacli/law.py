"""The paper's scaling law: how many tokens a step brings for W, N and G, and which alpha and f fit what was measured.

Section 4 and Appendix C of the paper. Numbers only: what was measured, and what is drawn, live elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Alphas = npt.NDArray[np.float64]

Measured = tuple[int, int, float]
"""What a sweep measured at one point: gamma = N - 1, sequences = W = G, and S."""

ALPHAS = np.linspace(0.001, 0.999, 999)
"""Where the fit looks first."""

REFINEMENTS = 5
"""Each looks at 101 places between the neighbours of the best one so far; the last ones are 1e-11 apart."""

ALIKE = 0.001
"""Fits whose errors differ by less than this part of the gain are equally good."""

TOLD_APART = 0.1
"""Where equally good alphas lie further apart than this, the points do not tell which one it is."""


@dataclass(frozen=True)
class Law:
    """Equation 7: of every f steps one has good guesses, each of whose tokens is accepted with probability alpha."""

    alpha: float
    f: float

    def compression(self, gamma: int, sequences: float) -> float:
        """S, tokens a step, where a step verifies so many sequences of gamma tokens: G = W sequences, gamma = N - 1."""
        return (self.f - 1 + expected_tokens(self.alpha, gamma, sequences)) / self.f

    def error(self, points: Sequence[Measured]) -> float:
        """How far the points lie from this law: the root mean square of the differences of S."""
        misses = [measured - self.compression(gamma, sequences) for gamma, sequences, measured in points]
        return float(np.sqrt(np.mean(np.square(misses))))


PAPER = Law(0.425, 3.106)
"""LLaMA-2-Chat-7B on MT-Bench, with which the paper draws Figure 4 (b)."""


def expected_tokens(alpha: float, gamma: int, sequences: float = 1) -> float:
    """Tokens that a step with good guesses brings: Equation 5, and with one sequence Equation 4.

    Each of `sequences` guesses has gamma tokens, and a token is accepted with probability alpha where all before it
    were. The longest accepted run counts, and the model's own token comes on top.
    """
    return float(_expected(np.array([alpha]), gamma, sequences)[0])


def fit(points: Sequence[Measured]) -> Law | None:
    """The law closest to the points by least squares of S, with 0 < alpha < 1 and f of at least 1.

    None where they do not tell which law it is: fewer than two different settings that can gain anything, no gain
    at all, or alphas far apart that fit equally well.
    """
    settings = {(gamma, sequences) for gamma, sequences, _ in points if gamma > 0 and sequences > 0}
    gains = np.array([measured - 1 for *_, measured in points])
    if len(settings) < 2 or gains.max() <= 0:
        return None
    errors, _ = _best_shares(ALPHAS, points, gains)
    alike = ALPHAS[errors <= errors.min() + ALIKE * np.sqrt(np.mean(gains**2))]
    if np.ptp(alike) > TOLD_APART:
        return None
    alpha = _refined(points, gains)
    _, shares = _best_shares(np.array([alpha]), points, gains)
    return Law(alpha, float(1 / shares[0])) if shares[0] > 0 else None


def _expected(alphas: Alphas, gamma: int, sequences: float) -> Alphas:
    missed = sum(((1 - alphas**depth) ** sequences for depth in range(1, gamma + 1)), np.zeros_like(alphas))
    return gamma + 1 - missed


def _best_shares(alphas: Alphas, points: Sequence[Measured], gains: Alphas) -> tuple[Alphas, Alphas]:
    """For each alpha the error of the best f, and 1/f: S - 1 = (E - 1) / f is linear in it."""
    expected = np.stack([_expected(alphas, gamma, sequences) - 1 for gamma, sequences, _ in points])
    shares = np.clip(gains @ expected / np.maximum((expected**2).sum(axis=0), 1e-300), 0.0, 1.0)
    errors = np.sqrt(np.mean((shares * expected - gains[:, None]) ** 2, axis=0))
    return errors, shares


def _refined(points: Sequence[Measured], gains: Alphas) -> float:
    """The best alpha: the best place of a grid, looked at ever more closely."""
    places = ALPHAS
    for _ in range(REFINEMENTS + 1):
        errors, _ = _best_shares(places, points, gains)
        best = int(errors.argmin())
        around = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
        places = np.linspace(*around, 101)
    return float(places[50])

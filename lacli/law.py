"""The paper's scaling law: the tokens that a step brings for W, N and G (section 4 and Appendix C)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Alphas = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """Equation 7: one of `f` steps has good guesses, and each of their tokens is accepted with probability `alpha`."""

    alpha: float
    f: float

    def compression(self, gamma: int, sequences: float) -> float:
        """S, tokens a step, where a step verifies `sequences` = G = W sequences of `gamma` = N - 1 tokens."""
        return (self.f - 1 + expected_tokens(self.alpha, gamma, sequences)) / self.f


PAPER = Law(0.425, 3.106)
"""LLaMA-2-Chat-7B on MT-Bench, with which the paper draws Figure 4 (b)."""


def expected_tokens(alpha: float, gamma: int, sequences: float = 1) -> float:
    """Tokens that a step with good guesses brings: Equation 5, and with one sequence Equation 4.

    Each of `sequences` guesses has `gamma` tokens, and a token is accepted with probability `alpha` where all before it
    were. The longest accepted run counts, and the model's own token comes on top.
    """
    return float(expected(np.array([alpha]), gamma, sequences)[0])


def expected(alphas: Alphas, gamma: int, sequences: float) -> Alphas:
    """`expected_tokens` for each of `alphas`."""
    missed = sum(((1 - alphas**depth) ** sequences for depth in range(1, gamma + 1)), np.zeros_like(alphas))
    return gamma + 1 - missed

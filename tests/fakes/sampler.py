"""A toy sampler with the Sampler protocol: temperature, a penalty for tokens of the text, one random number a draw.

As llama.cpp's chain, it counts the prompt's tokens too, and gets each token once. A draw goes through the candidates
from the most probable down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lacli.context import Distribution, Floats


class FakeSampler:
    """A sampler. penalty: subtracted from a token's logit for each of its occurrences in the text."""

    def __init__(self, seed: int, temperature: float = 1.0, penalty: float = 0.0) -> None:
        assert temperature > 0
        self._seed = seed
        self._temperature = temperature
        self._penalty = penalty
        self.begin(())

    def begin(self, text: Sequence[int]) -> None:
        self._random = np.random.default_rng(self._seed)
        self._seen = list(text)

    def draw(self, logits: Floats) -> int:
        tokens, probabilities = self.distribution(logits)
        index = int(np.searchsorted(np.cumsum(probabilities), self._random.random(), side="right"))
        token = int(tokens[min(index, len(tokens) - 1)])
        self.accept(token)
        return token

    def distribution(self, logits: Floats) -> Distribution:
        """Return the candidates from the most probable down, which is the order of a draw."""
        seen = np.bincount(self._seen, minlength=len(logits)) if self._seen else 0
        scaled = (np.asarray(logits, np.float64) - self._penalty * seen) / self._temperature
        weights = np.exp(scaled - scaled.max())
        order = np.argsort(-weights, kind="stable")
        return Distribution(order, weights[order] / weights.sum())

    def accept(self, token: int) -> None:
        self._seen.append(token)

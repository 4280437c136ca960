"""Verification: the part of a tree of drafts that the model accepts, greedily or when it samples.

All modes accept by `verify_tree`. A function chooses its tokens: by the largest logit, or as one of the two verifiers
here, which keep the distribution of plain sampling. The samplers themselves are llama.cpp's (`llamacpp/sampler.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nlargest
from math import log
from typing import NamedTuple, Protocol

import numpy as np

from lacli.context import Distribution, Floats, Sampler
from lacli.errors import SamplingError
from lacli.stats import Finish
from lacli.tree import ROOT, Tree

Choose = Callable[[int], int]
"""The token that follows node `n`; called once for each accepted node, in the order of the sequence."""

Ends = Callable[[int, int], Finish | None]
"""Why the sequence ends with a token, the n-th of this step counted from 1, or None; asked before the next choice."""


class Path(NamedTuple):
    """The accepted way down a tree.

    `nodes`: the accepted drafts. `tokens`: the model's choices, one more than nodes; the last becomes the next input.
    `finish`: why nothing comes after it, or None.
    """

    nodes: list[int]
    tokens: list[int]
    finish: Finish | None


def verify_tree(tree: Tree, choose: Choose, ends: Ends) -> Path:
    """Go down from the input while a child equals the choice (Algorithms 3 and 4 of the paper).

    Raises SamplingError if nothing can follow the input. At a later node the path ends before the node, and the next
    step raises: every mode accepts the same tokens.
    """
    nodes: list[int] = []
    tokens = [choose(ROOT)]
    finish = ends(tokens[0], 1)
    node = tree.child(ROOT, tokens[0])
    while node is not None and finish is None:
        try:
            chosen = choose(node)
        except SamplingError:
            break
        nodes.append(node)
        tokens.append(chosen)
        finish = ends(tokens[-1], len(tokens))
        node = tree.child(node, tokens[-1])
    return Path(nodes, tokens, finish)


class Verifier(Protocol):
    """Chooses the tokens of a sequence that is sampled."""

    def begin(self, tokens: Sequence[int]) -> None:
        """Start anew after a prompt of these tokens."""

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        """The token after an accepted node, from its logits, (vocabulary,), and the guesses below it."""


class SampleAndMatch:
    """Draws as plain decoding would, whatever was drafted: equal random numbers give an equal answer in every mode."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def begin(self, tokens: Sequence[int]) -> None:
        self._sampler.begin(tokens)

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        return self._sampler.draw(logits)


class Rejection:
    """Tries each guess with its remaining probability; if all fail, draws from the remaining distribution.

    Algorithm 4 of the paper on the sampler's final distribution. Guesses after another prefix than the accepted one are
    in other branches of the tree, so they are not tried.
    """

    def __init__(self, sampler: Sampler, seed: int) -> None:
        self._sampler = sampler
        self._seed = seed
        self._random = np.random.default_rng(seed)

    def begin(self, tokens: Sequence[int]) -> None:
        self._sampler.begin(tokens)
        self._random = np.random.default_rng(self._seed)

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        token = self._first_accepted(self._sampler.distribution(logits), guesses)
        self._sampler.accept(token)
        return token

    def _first_accepted(self, distribution: Distribution, guesses: Sequence[int]) -> int:
        tokens, left = distribution
        for guess in guesses:
            tried = tokens == guess
            # Not <=: a draw of 0 must not accept a guess without probability.
            if self._random.random() < left[tried].sum():
                return guess
            rest = np.where(tried, 0.0, left)
            # If a guess holds all the probability, but for rounding, the distribution stays.
            if mass := rest.sum():
                left = rest / mass
        return int(self._random.choice(tokens, p=left))


class TokenLogprob(NamedTuple):
    """A chosen token with its log probability, and the most probable tokens in its place with theirs."""

    token: int
    logprob: float
    best: tuple[tuple[int, float], ...]


def most_probable(logits: Floats) -> Distribution:
    """The distribution of greedy decoding: the most probable token alone."""
    return Distribution(np.array([logits.argmax()]), np.ones(1))


class LogprobRecorder:
    """Chooses as another verifier or greedily, and keeps the log probabilities of each choice.

    `found`: one entry a token, from the model's logits before any sampler or from the distribution of the draw.
    `of_prompt`: from the model's own logits, one entry for each token of the prompt but the first, if `score` is
    called.
    """

    def __init__(
        self, verifier: Verifier | None, count: int, drawn_from: Callable[[Floats], Distribution] | None = None
    ) -> None:
        """`count`: most probable tokens kept. `drawn_from`: makes the distribution; None: from all logits."""
        self._verifier, self._count, self._drawn_from = verifier, count, drawn_from
        self.found: list[TokenLogprob] = []
        self.of_prompt: list[TokenLogprob] = []

    def begin(self, tokens: Sequence[int]) -> None:
        self.found.clear()
        if self._verifier:
            self._verifier.begin(tokens)

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        drawn = self._drawn_from(logits) if self._drawn_from else None
        token = self._verifier.choose(logits, guesses) if self._verifier else int(logits.argmax())
        if drawn:
            scored = {int(each): log(p) for each, p in zip(drawn.tokens, drawn.probabilities, strict=True) if p > 0}
            most = nlargest(self._count, scored.items(), key=lambda pair: pair[1])
            self.found.append(TokenLogprob(token, scored[token], tuple(most)))
            return token
        self.found.append(self._scored(token, logits))
        return token

    def score(self, index: int, token: int, logits: Floats) -> None:
        """Keep what the model thought of the prompt's token at `index`, once: it may be decoded again."""
        if index == len(self.of_prompt) + 1:
            self.of_prompt.append(self._scored(token, logits))

    def _scored(self, token: int, logits: Floats) -> TokenLogprob:
        highest, count = logits.max(), min(self._count, len(logits))
        total = float(highest) + float(np.log(np.exp(logits - highest).sum()))
        # Sorting a whole vocabulary takes longer than decoding a row of a prompt.
        among = np.flatnonzero(logits >= (np.partition(logits, -count)[-count] if count else highest))
        best = among[np.argsort(-logits[among], kind="stable")][:count].tolist()
        scores = tuple((each, float(logits[each]) - total) for each in best)
        return TokenLogprob(token, float(logits[token]) - total, scores)

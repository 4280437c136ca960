"""Verification: how much of a tree of drafts the model accepts, greedily or when it samples.

The one accept function of all modes is `verify_tree`. How a token is chosen is given to it: the largest logit, or one
of the two verifiers here, which keep the distribution of plain sampling. The samplers themselves are llama.cpp's
(`llamacpp/sampler.py`).
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

    `nodes`: the accepted drafts. `tokens`: what the model chose, one more than there are nodes: the last one is the
    model's own and becomes the next input. `finish`: why nothing comes after it, or None.
    """

    nodes: list[int]
    tokens: list[int]
    finish: Finish | None


def verify_tree(tree: Tree, choose: Choose, ends: Ends) -> Path:
    """Go down from the input while a child equals the choice (Algorithms 3 and 4 of the paper).

    Raises SamplingError when nothing can follow the input. Where that happens at a later node the path ends before it,
    and the next step is the one that raises: what was accepted is the same in every mode.
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
        """Start anew behind a prompt of these tokens."""

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        """The token after an accepted node: from its logits, (vocabulary,), knowing the guesses below it."""


class SampleAndMatch:
    """Draws as plain decoding would, whatever was drafted: the same random numbers, so the same text in every mode."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def begin(self, tokens: Sequence[int]) -> None:
        self._sampler.begin(tokens)

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        return self._sampler.draw(logits)


class Rejection:
    """Tries the guesses one by one with the probability each has left, and draws from what is left of them all.

    Algorithm 4 of the paper on the sampler's final distribution. Guesses whose prefix differs from the accepted one
    are in other branches of the tree, so they have dropped out already.
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
            # Never when equal: a draw of 0 does not accept a guess that has no probability.
            if self._random.random() < left[tried].sum():
                return guess
            rest = np.where(tried, 0.0, left)
            # A guess may hold all there is, but for rounding; then what it was drawn from stays.
            if mass := rest.sum():
                left = rest / mass
        return int(self._random.choice(tokens, p=left))


class TokenLogprob(NamedTuple):
    """The log probability of a token that was chosen, and the most probable tokens in its place with theirs."""

    token: int
    logprob: float
    best: tuple[tuple[int, float], ...]


def most_probable(logits: Floats) -> Distribution:
    """The distribution of a text whose next token is always the most probable one."""
    return Distribution(np.array([logits.argmax()]), np.ones(1))


class LogprobRecorder:
    """Chooses as another verifier, or the most probable token, and keeps what the model thought of each choice.

    `found`: one entry a token, by the model's own logits before any sampler, or by the distribution that is drawn from.
    `of_prompt`: by the model's own logits, one entry for each token of the prompt but the first, if `score` is called.
    """

    def __init__(
        self, verifier: Verifier | None, count: int, drawn_from: Callable[[Floats], Distribution] | None = None
    ) -> None:
        """`count`: most probable tokens to keep in each place. `drawn_from`: gives the distribution if that counts."""
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

"""Verification: the part of a tree of drafts that the model accepts, in greedy decoding and in sampling.

All modes accept by `verify_tree`. Its `choose` takes the token with the largest logit, or calls one of the two
verifiers here, which keep the distribution of plain sampling. The samplers are llama.cpp's (`llamacpp/sampler.py`).
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
"""Returns the token after a node of the tree. Called once for each accepted node, in the order of the sequence."""

Ends = Callable[[int, int], Finish | None]
"""Takes a token and its number in the step, from 1 on. Returns why the sequence ends with this token, or None."""


class Path(NamedTuple):
    """The accepted path down a tree.

    `nodes`: the tree's nodes of the accepted drafts, without the input. `tokens`: the tokens of these nodes, and the
    model's choice after the last, which becomes the next input. `finish`: why the sequence ends there, or None.
    """

    nodes: list[int]
    tokens: list[int]
    finish: Finish | None


def verify_tree(tree: Tree, choose: Choose, ends: Ends) -> Path:
    """Return the path from the input down, as long as a child has the chosen token (Algorithms 3 and 4 of the paper).

    `choose`: returns the token after a node. `ends`: takes a token and its number in the step, from 1 on, and returns
    why the sequence ends with it, or None. Raises SamplingError if `choose` raises it for the input. If it does for a
    later node, the path ends before this node, and the next step raises it. So every mode accepts the same tokens.
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
    """The protocol of objects that choose the tokens of a sampled sequence."""

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a sequence with the `tokens` of its prompt, and forget all earlier tokens."""

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        """Return the token after an accepted node. `logits`: (vocabulary,). `guesses`: tokens drafted after it."""


class SampleAndMatch:
    """Draws each token as plain decoding does, whatever was drafted: a seed gives the same answer in every mode."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def begin(self, tokens: Sequence[int]) -> None:
        self._sampler.begin(tokens)

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        return self._sampler.draw(logits)


class Rejection:
    """Accepts or rejects each drafted token by its probability; if all are rejected, draws among the other tokens.

    This is Algorithm 4 of the paper, on the sampler's final distribution. Only drafts after the accepted prefix are
    tried; other drafts are in other branches of the tree.
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
    """A chosen token and its log probability. `best`: the most probable tokens at this place with log probabilities."""

    token: int
    logprob: float
    best: tuple[tuple[int, float], ...]


def most_probable(logits: Floats) -> Distribution:
    """Return the distribution of greedy decoding: the most probable token alone, with probability 1."""
    return Distribution(np.array([logits.argmax()]), np.ones(1))


class LogprobRecorder:
    """A verifier that chooses as `verifier` does, or greedily for None, and keeps log probabilities.

    `found`: one entry for each chosen token. `of_prompt`: one entry for each token of the prompt but the first, from
    the model's own logits; empty unless `score` is called.
    """

    def __init__(
        self, verifier: Verifier | None, count: int, drawn_from: Callable[[Floats], Distribution] | None = None
    ) -> None:
        """`count`: how many tokens `best` has. `drawn_from`: returns a draw's distribution; None: softmax of logits."""
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
        """Keep the log probability of the prompt's token at `index`, by the logits before it; ignore repeated calls."""
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

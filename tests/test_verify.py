"""The verifiers keep the distribution of plain sampling: chi-square over whole sequences, and seeded equality.

Each chi-square test draws with fixed seeds and compares with computed probabilities. With random seeds a correct
verifier would fail a test with probability 3e-7 (5 standard deviations).
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.context import Distribution, Floats
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree
from lacli.verify import Rejection, SampleAndMatch, Verifier, verify_tree
from tests.engine.test_engine import any_settings, engine_for, prompts, tokens_of
from tests.fakes.decoding import fixed_clock_decoder
from tests.fakes.sampler import FakeSampler

DRAWS = 4_000
LENGTH = 3
VOCABULARY = 4
PROMPT = [1, 2]
FALSE_ALARM = 5.0
"""The least deviation of a failed test, in standard deviations of a normal distribution."""

Text = tuple[int, ...]
Model = Callable[[Sequence[int]], Floats]
Guess = Callable[[Sequence[int]], list[list[int]]]


def toy_model(text: Sequence[int]) -> Floats:
    """Return the logits after a text; token 3 is impossible after half of the texts."""
    random = np.random.default_rng(zlib.crc32(repr(list(text)).encode()))
    logits: Floats = random.uniform(-1.5, 1.5, VOCABULARY)
    if random.random() < 0.5:
        logits[3] = -inf
    return logits


GUESSES: dict[str, Guess] = {
    "none": lambda text: [],
    "one chain": lambda text: [[0, 1, 2]],
    "the same candidate again": lambda text: [[1, 1], [1, 1], [1, 1], [0]],
    "impossible tokens": lambda text: [[3, 3, 3], [3, 0], [0, 3]],
    "shared prefixes": lambda text: [[0, 1, 0], [0, 1, 1], [0, 2], [2, 0], [2, 1, 3]],
    "every token": lambda text: [[first, second] for first in range(VOCABULARY) for second in range(VOCABULARY)],
    "what the text was": lambda text: [list(text[-2:]), list(reversed(text))],
}


def sampled(verifier: Verifier, model: Model, guess: Guess) -> Text:
    """Draw LENGTH tokens after PROMPT in steps with drafts. `guess`: returns the drafted paths after a text."""
    verifier.begin(PROMPT)
    text = list(PROMPT)
    while len(text) < len(PROMPT) + LENGTH:
        tree = Tree(text[-1])
        for sequence, path in enumerate(guess(text), start=1):
            tree.add_path(path, sequence, Origin.POOL)
        remaining = len(PROMPT) + LENGTH - len(text)

        def choose(node: int, tree: Tree = tree) -> int:
            text.append(verifier.choose(model(text), tree.guesses(node)))
            return text[-1]

        verify_tree(tree, choose, lambda token, count, remaining=remaining: "length" if count == remaining else None)  # type: ignore[misc]
    return tuple(text[len(PROMPT) :])


def expected(model: Model, penalty: float) -> dict[Text, float]:
    """Return the probability of every text of LENGTH tokens after PROMPT."""
    chances = {}
    for text in product(range(VOCABULARY), repeat=LENGTH):
        chance, sampler = 1.0, FakeSampler(0, penalty=penalty)
        sampler.begin(PROMPT)
        for position, token in enumerate(text):
            tokens, probabilities = sampler.distribution(model([*PROMPT, *text[:position]]))
            chance *= probabilities[tokens == token].sum()
            sampler.accept(token)
        chances[text] = chance
    return chances


def unlikely(seen: Counter[Text], chances: dict[Text, float], draws: int) -> bool:
    """Whether the counts of texts deviate from their chances by more than FALSE_ALARM (Wilson and Hilferty)."""
    assert not any(seen[text] for text, chance in chances.items() if chance == 0)
    common = [text for text, chance in chances.items() if chance * draws >= 5]
    rest = 1 - sum(chances[text] for text in common)
    cells = [(seen[text], chances[text] * draws) for text in common]
    if rest * draws >= 5:
        cells.append((draws - sum(count for count, _ in cells), rest * draws))
    freedom = len(cells) - 1
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    spread = 2 / (9 * freedom)
    return bool(((statistic / freedom) ** (1 / 3) - (1 - spread)) / sqrt(spread) > FALSE_ALARM)


def verifiers(seed: int, penalty: float) -> dict[str, Verifier]:
    sampler = FakeSampler(seed, penalty=penalty)
    return {"match": SampleAndMatch(sampler), "rejection": Rejection(sampler, seed)}


@pytest.mark.parametrize("name", ["match", "rejection"])
@pytest.mark.parametrize("guesses", GUESSES)
def test_texts_have_the_distribution_of_plain_sampling(name: str, guesses: str) -> None:
    penalty = 0.7
    seen = Counter(sampled(verifiers(seed, penalty)[name], toy_model, GUESSES[guesses]) for seed in range(DRAWS))
    assert not unlikely(seen, expected(toy_model, penalty), DRAWS)


class Unlucky(np.random.Generator):
    """A generator whose random numbers are all `value`."""

    value = 0.0

    def random(self, *_: object, **__: object) -> float:  # type: ignore[override]
        return self.value


@pytest.mark.parametrize("value", [0.0, 1 - 2**-53])
def test_the_extreme_random_numbers_never_give_an_impossible_token(value: float) -> None:
    rejection = Rejection(FakeSampler(0), 0)
    rejection._random = Unlucky(np.random.PCG64(0))
    Unlucky.value = value
    for logits in ([0.0, -inf, 1.0, -inf], [-inf, -inf, -inf, 2.0]):
        token = rejection.choose(np.array(logits), [1, 3, 0, 2])
        assert logits[token] > -inf


def test_a_rejected_draft_with_all_the_probability_is_drawn_after_all() -> None:
    """Rounded probabilities add up to a little less than 1, and a random number may be larger than their sum."""
    sampler = FakeSampler(0)
    sampler.distribution = lambda logits: Distribution(np.array([2]), np.array([1 - 1e-12]))  # type: ignore[method-assign]
    rejection = Rejection(sampler, 0)
    rejection._random = Unlucky(np.random.PCG64(0))
    Unlucky.value = 1 - 2**-53
    assert rejection.choose(np.zeros(4), [2, 1]) == 2


def test_rejection_accepts_as_often_as_matching() -> None:
    """Both accept a drafted token with its probability."""
    guess = GUESSES["one chain"]

    def steps(name: str) -> int:
        count = 0

        def counted(text: Sequence[int]) -> list[list[int]]:
            nonlocal count
            count += 1
            return guess(text)

        for seed in range(2_000):
            sampled(verifiers(seed, 0.0)[name], toy_model, counted)
        return count

    match, rejection = steps("match"), steps("rejection")
    # Each count is a sum of 2,000 numbers from 1 to 3. The bound is 5 standard deviations of the difference.
    assert abs(match - rejection) < FALSE_ALARM * sqrt(2 * 2_000)


@given(any_settings, prompts, st.integers(0, 1000), st.sampled_from([0.3, 1.0, 3.0]), st.sampled_from([0.0, 0.5]))
@settings(max_examples=150, deadline=None)
def test_a_seed_gives_the_same_text_in_every_mode(
    chosen: DecodeSettings, prompt: list[int], seed: int, temperature: float, penalty: float
) -> None:
    plain, sampler = DecodeSettings(mode="plain"), FakeSampler(seed, temperature, penalty)
    alone = tokens_of(list(fixed_clock_decoder(engine_for(plain), plain, SampleAndMatch(sampler)).generate(prompt, 40)))
    decoder = fixed_clock_decoder(engine_for(chosen), chosen, SampleAndMatch(sampler))
    assert tokens_of(list(decoder.generate(prompt, 40))) == alone
    assert sampler._seen == prompt + alone

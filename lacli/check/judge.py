"""Judges where a text parts from plain's: rounding, or a bug.

Greedy: rounding may move each of the two logits towards the other, so a margin of more than twice the rounding is a
bug. Sampled: the random number's distance from the share of the token that was drawn instead is held against how far
rounding moves the shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lacli.check.replay import Mismatch, Recorder, replay
from lacli.decode import Decoder
from lacli.engine import Distribution, Engine, Floats, Sampler
from lacli.errors import LacliError
from lacli.modes import common_prefix
from lacli.settings import DecodeSettings

PLAIN = DecodeSettings(mode="plain")

NOISE_SEED = 1905
"""Of the noise alone, so that a verdict repeats and meets no user's seed."""

NOISY_BOUNDARIES, NOISY_PEEKS = 32, 64
"""Perturbations of the logits where the draw's number is known, and where it is not and more looks are needed."""


class InspectableSampler(Sampler, Protocol):
    """A sampler whose next draw can be looked at without changing anything."""

    @property
    def drifts(self) -> bool:
        """Whether logits decide which random numbers come next, or other state than the drawn tokens."""

    def peek(self, logits: Floats) -> int:
        """What `draw` would give next."""

    def preview(self, logits: Floats) -> Distribution:
        """What the next token would be drawn from, in the order in which the draw goes through it."""

    def uniform(self) -> float | None:
        """The number from 0 to 1 that the next draw will use; None where no single number decides."""


@dataclass(frozen=True)
class Draw:
    """A draw of another token than plain's. Shares are parts of the cumulative distribution, from 0 to 1.

    `distance`: from the random number to the other token's share of plain's distribution (to the end of plain's own
    share where the other token has none). `movement`: of the two shares' ends, by rounding. Both None where no single
    number decides, or one token has all. `hits`: of `trials` draws from logits moved as rounding moves them, those that
    gave the other token. `drifts`: whether rounding before this draw may have changed the sampler's state, which is
    taken to be plain's here.
    """

    distance: float | None
    movement: float | None
    hits: int
    trials: int
    drifts: bool = False

    @property
    def is_near(self) -> bool:
        """Whether the number is no further from the other token's share than rounding explains."""
        return self.distance is not None and self.movement is not None and self.distance <= 2 * self.movement

    @property
    def reached(self) -> bool:
        """Whether rounding gives the other token."""
        return self.is_near or self.hits > 0


@dataclass(frozen=True)
class Difference:
    """Where a text first parts from plain's.

    `at`: index among the generated tokens. `plain`, `other`: the two tokens, None where a text has ended. `margin`:
    plain's logit of its own token less that of the other one. `rounding`: the largest difference between plain's logits
    there and those of the replay. `draw`: the judged draw of a sampled token.
    """

    at: int
    plain: int | None
    other: int | None
    margin: float
    rounding: float
    draw: Draw | None = None

    @property
    def bug(self) -> bool:
        """Whether rounding does not explain it; logits that are no numbers explain nothing."""
        if self.draw:
            return not self.draw.reached and not self.draw.drifts
        return not self.margin <= 2 * self.rounding

    @property
    def unclear(self) -> bool:
        """Whether it may be a bug, or rounding that changed the sampler's state before."""
        return self.draw is not None and self.draw.drifts and not self.draw.reached


def first_difference(
    engine: Recorder,
    plain_engine: Engine,
    prompt: Sequence[int],
    expected: Sequence[int],
    steps: Sequence[Sequence[int]],
    settings: DecodeSettings = PLAIN,
    sampler: InspectableSampler | None = None,
) -> Difference | None:
    """Compare what a mode has just generated with plain's text; None where they are equal.

    `engine`: has decoded the mode's steps since its last clear; they are replayed on it. `steps`: the tokens of each
    step. `expected`: plain's tokens for the prompt under the same limit, from an engine like `plain_engine` with
    `settings`. `sampler`: what both were drawn with, or None when greedy. Clears both engines.
    """
    tokens = [token for step in steps for token in step]
    at = parting(expected, tokens)
    if at is None:
        return None
    plain = expected[at] if at < len(expected) else None
    other = tokens[at] if at < len(tokens) else None
    unexplained = Difference(at, plain, other, margin=float("inf"), rounding=0.0)
    # An end token counts as a token, so rounding never makes one text a part of the other.
    if plain is None or other is None:
        return unexplained
    try:
        replayed = replay(engine, steps, expected[:at])
    except (Mismatch, LacliError):
        # What a broken cache has led to may not even be decoded again.
        return unexplained
    logits = plain_logits(plain_engine, prompt, expected[:at], settings, sampler)
    rounding = largest_difference(logits, replayed)
    if sampler and sampler.peek(logits) != plain:
        raise _unsteady()
    draw = judge_draw(sampler, logits, replayed, plain, other) if sampler else None
    return Difference(at, plain, other, float(logits[plain]) - float(logits[other]), rounding, draw)


def parting(expected: Sequence[int], tokens: Sequence[int]) -> int | None:
    """The index of the first token that differs, or where one text ends before the other; None for equal ones."""
    same = common_prefix(expected, tokens)
    return None if same == len(expected) == len(tokens) else same


def largest_difference(logits: Floats, others: Floats) -> float:
    """How far two arrays of logits are apart; equal infinities are equal."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(logits - others)
    return float(np.where(logits == others, 0, apart).max())


def judge_draw(sampler: InspectableSampler, logits: Floats, replayed: Floats, plain: int, other: int) -> Draw:
    """Judge whether rounding turns the draw of `plain` into that of `other`.

    The rounding is as large as between `logits` and `replayed`. `sampler`: just before the draw.
    """
    rounding = largest_difference(logits, replayed)
    number, shares = sampler.uniform(), sampler.preview(logits)
    if number is None or shares.probabilities.max() == 1:
        looks = [replayed, *_noisy(logits, 2 * rounding, NOISY_PEEKS)]
        return Draw(None, None, _hits(sampler, looks, other), len(looks), sampler.drifts)
    distance = _distance(number, shares, plain, other)
    rows = [replayed, *_noisy(logits, rounding, NOISY_BOUNDARIES)]
    moved = [sampler.preview(row) for row in rows]
    watched = [token for token in (plain, other) if _share(shares, token)]
    movement = max((_movement(shares, after, token) for after in moved for token in watched), default=0.0)
    return Draw(distance, movement, _hits(sampler, rows, other), len(rows), sampler.drifts)


def _hits(sampler: InspectableSampler, rows: Sequence[Floats], token: int) -> int:
    """How many of these rows of logits give `token` as the next draw."""
    return sum(sampler.peek(row) == token for row in rows)


def plain_logits(
    engine: Engine,
    prompt: Sequence[int],
    tokens: Sequence[int],
    settings: DecodeSettings = PLAIN,
    sampler: InspectableSampler | None = None,
) -> Floats:
    """Plain's logits, (vocabulary,), after the prompt and tokens that it has generated before; clears the engine.

    `sampler`: has drawn these tokens afterwards, and nothing more.
    """
    given = _Given(tokens, sampler)
    for _ in Decoder(engine, settings, given).generate(prompt, len(tokens) + 1):
        pass
    return given.logits


class _Given:
    """A verifier that chooses the tokens it was given, and keeps the logits behind them."""

    def __init__(self, tokens: Sequence[int], sampler: InspectableSampler | None) -> None:
        self._tokens = iter(tokens)
        self._sampler = sampler
        self.logits: Floats = np.zeros(0)

    def begin(self, text: Sequence[int]) -> None:
        if self._sampler:
            self._sampler.begin(text)

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        token = next(self._tokens, None)
        if token is None:
            self.logits = logits.copy()
            return int(logits.argmax())
        if self._sampler and self._sampler.draw(logits) != token:
            raise _unsteady()
        return token


def _unsteady() -> LacliError:
    return LacliError("plain decoding does not repeat itself here", "-t 1 or -ngl 0 may be steadier")


def _share(shares: Distribution, token: int) -> tuple[float, float] | None:
    """Where a token's part of the cumulative distribution begins and ends; None for no candidate."""
    at = np.flatnonzero(shares.tokens == token)
    if not len(at):
        return None
    sums = np.concatenate([[0.0], np.cumsum(shares.probabilities, dtype=np.float64)])
    return float(sums[at[0]]), float(sums[at[0] + 1])


def _distance(number: float, shares: Distribution, plain: int, other: int) -> float:
    if there := _share(shares, other):
        return max(there[0] - number, number - there[1], 0.0)
    own = _share(shares, plain)
    assert own, "plain's token was drawn from these"
    return max(min(number - own[0], own[1] - number), 0.0)


def _movement(before: Distribution, after: Distribution, token: int) -> float:
    """How far a token's share was moved; one that is gone has no place, and a look at the draw decides instead."""
    old, new = _share(before, token), _share(after, token)
    return max(abs(old[0] - new[0]), abs(old[1] - new[1])) if old and new else 0.0


def _noisy(logits: Floats, most: float, times: int) -> Iterator[Floats]:
    random = np.random.default_rng(NOISE_SEED)
    for _ in range(times):
        yield logits + random.uniform(-most, most, logits.shape).astype(logits.dtype)

"""The suffix source: what followed the longest earlier match of a sequence's end, the most recent first.

Occurrences of the same two tokens are chained as in LZ77 compressors. A match that goes on is followed; where it
breaks, the latest links of the chain are compared. Both take constant time at any length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from lacli.auto.draft import Guess, Source
from lacli.auto.hit_rates import HitRates
from lacli.tree import Origin

KIND_OF_LENGTH = (0, 0, 1, 2, 3, 4, 4, 5, 5, *[6] * 4, *[7] * 4, *[8] * 8, *[9] * 15, 10)
"""Kind of a match by its length: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, 25-39, and 40 or more tokens."""

EXPECTED = (0.3, 0.55, 0.72, 0.76, 0.83, 0.85, 0.89, 0.9, 0.94, 0.965, 0.985, 0.26)
"""Rate of the token after a match, by kind; the last kind: an older occurrence, where that one was wrong.

Answers of Qwen2.5-Coder have 0.48, 0.63, 0.78, 0.77, 0.84, 0.84, 0.94, 0.97, 0.99, 1.0 and 0.26 (benchmarks.hit_rates);
beginning with these instead gained nothing on any law (benchmarks.replay).
"""

OTHER = len(EXPECTED) - 1

PROBES = 8
"""Earlier occurrences compared when a match breaks. Source: docs/auto.md."""

MIN_MATCH, MAX_COMPARED = 2, 32
"""Tokens of a match at least, and tokens compared at most; a match that is followed may grow longer."""

MAX_OTHERS = 2
"""Older occurrences that are drafted as branches."""


def kind_of(length: int) -> int:
    """Return the kind of a match of `length` tokens."""
    return KIND_OF_LENGTH[min(length, len(KIND_OF_LENGTH) - 1)]


class SuffixSource(Source):
    """Drafts from the sequence itself. `is_end`: True for tokens that end an answer, which no draft needs.

    `matches`: by length of the sequence, where its longest match goes on, and how long that is, 0 without one. `hits`:
    rates by the kind of the match.

    >>> source = SuffixSource()
    >>> source.begin([7, 1, 2, 3, 9, 7, 1, 2])
    >>> source.first([7, 1, 2, 3, 9, 7, 1, 2])[0].token
    3
    """

    origin = Origin.SUFFIX

    def __init__(self, is_end: Callable[[int], bool] = lambda _: False) -> None:
        self.hits = HitRates(EXPECTED)
        # Without a cache llama.cpp is asked each time.
        self.is_end = cache(is_end)
        self.matches: list[tuple[int, int]] = [(0, 0)]
        self._tokens: Sequence[int] = ()
        # The end of the latest occurrence of two tokens, and by place what that was before it.
        self._latest: dict[tuple[int, int], int] = {}
        self._earlier: list[int] = []
        # The end of the latest occurrence of one token.
        self._latest_single: dict[int, int] = {}
        # The length of the sequence when branches were drafted beside the match, and their tokens.
        self._offered: tuple[int, list[int]] = (0, [])

    def begin(self, tokens: Sequence[int]) -> None:
        self._follow(tokens, scored=False)

    def extend(self, tokens: Sequence[int]) -> None:
        self._follow(tokens, scored=True)

    def first(self, tokens: Sequence[int]) -> list[Guess]:
        place, length = self.matches[-1]
        if not length:
            return []
        guesses = [self._guess(place, length)]
        others = list(self._others(len(tokens) - 1, tokens[place]))
        self._offered = len(tokens), [tokens[other] for other in others]
        left = 1 - guesses[0].probability
        for other in others:
            chance = left * self.hits.rates[OTHER]
            guesses.append(self._guess(other, MIN_MATCH)._replace(probability=chance))
            left -= chance
        return guesses

    def after(self, guess: Guess) -> list[Guess]:
        place, known = guess.place, len(self._tokens)
        if place >= known:
            # A match that reaches the end is repeated.
            period = known - self.matches[-1][0]
            place = known - period + (place - known) % period
        return [] if self.is_end(self._tokens[place]) else [self._guess(place, guess.length)]

    def _guess(self, place: int, length: int) -> Guess:
        """Return the guess that the token at `place` follows a match of `length` tokens."""
        return Guess(self._tokens[place], self.hits.rates[kind_of(length)], place + 1, length + 1)

    def _follow(self, tokens: Sequence[int], *, scored: bool) -> None:
        self._tokens = tokens
        matches, earlier, latest, is_end = self.matches, self._earlier, self._latest, self.is_end
        place, length = matches[-1]
        previous = tokens[len(earlier) - 1] if earlier else -1
        for here in range(len(earlier), len(tokens)):
            token = tokens[here]
            hit = length > 0 and tokens[place] == token
            if scored and length:
                self._score(here, token, length, hit)
            end = latest.get((previous, token), 0)
            if hit and not is_end(tokens[place + 1]):
                place, length = place + 1, length + 1
            else:
                place, length = self._search(tokens, here, end) if end else (0, 0)
                if not length and (single := self._latest_single.get(token)) and not is_end(tokens[single]):
                    place, length = single, 1
            self._latest_single[token] = here + 1
            matches.append((place, length))
            earlier.append(end)
            latest[previous, token] = here + 1
            previous = token

    def _score(self, here: int, token: int, length: int, hit: bool) -> None:
        self.hits.record(kind_of(length), hit)
        offered_at, others = self._offered
        if not hit and offered_at == here and others:
            self.hits.record(OTHER, token in others)

    def _search(self, tokens: Sequence[int], here: int, end: int) -> tuple[int, int]:
        """Return the longest match of what ends with the token at `here` among the occurrences chained from `end`."""
        found, longest = 0, MIN_MATCH - 1
        for _ in range(PROBES):
            if not end:
                break
            length, most = 0, min(end, MAX_COMPARED)
            while length < most and tokens[end - 1 - length] == tokens[here - length]:
                length += 1
            if length > longest and not self.is_end(tokens[end]):
                found, longest = end, length
            end = self._earlier[end - 1]
        return (found, longest) if found else (0, 0)

    def _others(self, last: int, first: int) -> Iterator[int]:
        """Yield where tokens other than `first` followed the two tokens that end at `last`, each token once."""
        tokens, seen = self._tokens, {first}
        end = self._earlier[last]
        for _ in range(PROBES):
            if not end or len(seen) > MAX_OTHERS:
                break
            if tokens[end] not in seen and not self.is_end(tokens[end]):
                seen.add(tokens[end])
                yield end
            end = self._earlier[end - 1]

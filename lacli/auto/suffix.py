"""The suffix source: what followed the longest match of the text's end, most recent first.

Occurrences of the same two tokens are chained, as compressors of the LZ77 family do it. A match that goes on is
followed; where it breaks, the latest links of the chain are compared. Both take the same small time at any length.
"""

from __future__ import annotations

from collections.abc import Sequence

from lacli.auto.belief import Belief
from lacli.auto.matching import (
    LENGTHS,
    NONE,
    Matching,
    kind,
)
from lacli.auto.source import Guess
from lacli.tree import Origin

PROBES = 8
"""Earlier occurrences that are compared when a match breaks."""

SHORTEST = 2
LONGEST = 32
"""Tokens that are compared; a match that is followed may grow longer."""

EXPECTED = (0.55, 0.72, 0.76, 0.83, 0.85, 0.89, 0.9, 0.94, 0.965, 0.985, 0.55)
"""How often the token after a match of 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, 25-39 and 40 tokens came true.

The last: how often older occurrences had it right, where that one failed. Source: docs/auto.md.
"""

EXPECTED_SAMPLED = (0.43, 0.64, 0.72, 0.79, 0.82, 0.86, 0.88, 0.92, 0.94, 0.97, 0.5)
"""The same of texts that were sampled at temperature 1."""

OTHER = len(EXPECTED) - 1
MOST_OTHERS = 2


class Suffix(Matching):
    """Guesses from the text itself.

    belief: how often they come true, by the length of the match.

    >>> source = Suffix()
    >>> source.begin([7, 1, 2, 3, 9, 7, 1, 2])
    >>> source.first([7, 1, 2, 3, 9, 7, 1, 2])[0].token
    3
    """

    origin = Origin.SUFFIX
    expected = EXPECTED
    expected_sampled = EXPECTED_SAMPLED

    def __init__(self, belief: Belief | None = None) -> None:
        super().__init__(belief or Belief(EXPECTED))
        self._text: Sequence[int] = ()
        # The end of the latest occurrence of two tokens, and by each token what that was before it.
        self._latest: dict[tuple[int, int], int] = {}
        self._earlier: list[int] = []
        # The length of the text when guesses beside the first one were given, and their tokens.
        self._offered: tuple[int, list[int]] = (0, [])

    def begin(self, text: Sequence[int]) -> None:
        if last := len(self._earlier):
            # An interrupt may have come before the last token's occurrence was entered, or after it was taken back.
            self._latest[self._pair(text, last - 1)] = last
        super().begin(text)

    def truncate(self, text: Sequence[int], length: int) -> None:
        for place in range(len(self._earlier) - 1, max(length, 0) - 1, -1):
            pair, before = self._pair(text, place), self._earlier[place]
            if before:
                self._latest[pair] = before
            else:
                self._latest.pop(pair, None)
            del self._earlier[place:]
        del self._matches[max(length, 0) + 1 :]

    def chain(self, length: int) -> list[int]:
        """So many tokens that follow the match; where it reaches the text's end, what it repeats goes on."""
        place = self.match[0]
        chain = list(self._text[place : place + length])
        period = len(self._text) - place
        while len(chain) < length:
            chain.append(chain[-period])
        return chain

    def first(self, text: Sequence[int]) -> list[Guess]:
        place, length = self.match
        if not length:
            return []
        guesses = [self._guess(place, length)]
        others = self._others(len(text) - 1, text[place])
        self._offered = len(text), [text[other] for other in others]
        left = 1 - guesses[0].probability
        for other in others:
            chance = left * self.belief.probability[OTHER]
            guesses.append(Guess(text[other], chance, (other + 1) * LENGTHS + SHORTEST + 1))
            left -= chance
        return guesses

    def after(self, guess: Guess) -> list[Guess]:
        place, length = divmod(guess.place, LENGTHS)
        known = len(self._text)
        if place >= known:
            period = known - self.match[0]
            place = known - period + (place - known) % period
        return [self._guess(place, length)]

    def _guess(self, place: int, length: int) -> Guess:
        return Guess(self._text[place], self.chance(length), (place + 1) * LENGTHS + min(length + 1, LENGTHS - 1))

    def _take(self, text: Sequence[int], *, scored: bool) -> None:
        self._text = text
        matches, earlier, latest = self._matches, self._earlier, self._latest
        place = len(earlier)
        if len(matches) > place + 1:
            # An interrupt came between the entries of a token.
            del matches[place + 1 :]
        expected, length = matches[-1]
        before = text[place - 1] if place else -1
        for token in text[place:]:
            end = latest.get((before, token), 0)
            hit = length > 0 and text[expected] == token
            if scored and length:
                self._score(place, token, length, hit)
            if hit:
                expected, length = expected + 1, length + 1
            else:
                expected, length = self._search(text, place, end) if end else NONE
            matches.append((expected, length))
            earlier.append(end)
            place += 1
            latest[before, token] = place
            before = token

    def _score(self, place: int, token: int, length: int, hit: bool) -> None:
        self.belief.saw(kind(length), hit)
        if not hit and self._offered[0] == place and self._offered[1]:
            self.belief.saw(OTHER, token in self._offered[1])

    def _pair(self, text: Sequence[int], place: int) -> tuple[int, int]:
        """The two tokens that end at a place."""
        return (text[place - 1] if place else -1, text[place])

    def _search(self, text: Sequence[int], place: int, end: int) -> tuple[int, int]:
        """The longest match of what ends with the token at `place` among the chained occurrences from `end` on."""
        found, longest = 0, 1
        for _ in range(PROBES):
            if not end:
                break
            length, most = 0, min(end, LONGEST)
            while length < most and text[end - 1 - length] == text[place - length]:
                length += 1
            if length > longest:
                found, longest = end, length
            end = self._earlier[end - 1]
        return (found, longest) if found else NONE

    def _others(self, last: int, first: int) -> list[int]:
        """Where other tokens than the first guess followed the two tokens that end at `last`, each token once."""
        text, others, seen = self._text, list[int](), {first}
        end = self._earlier[last]
        for _ in range(PROBES):
            if not end or len(others) == MOST_OTHERS:
                break
            if text[end] not in seen:
                others.append(end)
                seen.add(text[end])
            end = self._earlier[end - 1]
        return others

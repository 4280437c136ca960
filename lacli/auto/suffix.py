"""The suffix source: what followed the longest earlier match of the text's end, the most recent first.

Occurrences of the same two tokens are chained as in LZ77 compressors. A match that goes on is followed; where it
breaks, the latest links of the chain are compared. Both take constant time at any text length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from lacli.auto.acceptance import AcceptanceEstimate
from lacli.auto.planner import Guess, Source
from lacli.tree import Origin

KIND_OF_LENGTH = (0, 0, 0, 1, 2, 3, 3, 4, 4, *[5] * 4, *[6] * 4, *[7] * 8, *[8] * 15, 9)
"""Kind of a match by its length: 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, 25-39, and 40 or more tokens."""

LAST = len(KIND_OF_LENGTH) - 1

LENGTHS = 1 << 16
"""A guess's place is its token's position times this, plus the length of its match."""

NO_MATCH = (0, 0)


def kind_of(length: int) -> int:
    """Return the kind of a match of `length` tokens."""
    return KIND_OF_LENGTH[length] if length < LAST else KIND_OF_LENGTH[LAST]


class MatchSource(Source):
    """Guesses what followed the longest match of the text's end; subclasses find the match.

    `acceptance`: how often that comes true, by the kind of the match.
    """

    def __init__(self, acceptance: AcceptanceEstimate) -> None:
        super().__init__()
        self.acceptance = acceptance
        # By length of the text: where its longest match goes on, and how long it is.
        self._matches: list[tuple[int, int]] = [NO_MATCH]

    @property
    def match(self) -> tuple[int, int]:
        """Where the longest match goes on, and its length; 0 if there is none."""
        return self._matches[-1]

    @property
    def kind(self) -> int:
        """The kind of the guess for the next token, -1 if there is none."""
        length = self.match[1]
        return kind_of(length) if length else -1

    def match_at(self, length: int) -> tuple[int, int]:
        """Return what `match` was when the text had `length` tokens."""
        return self._matches[length]

    def begin(self, text: Sequence[int]) -> None:
        self._follow(text, scored=False)

    def extend(self, text: Sequence[int]) -> None:
        self._follow(text, scored=True)

    def chances(self, most: int) -> Iterable[float]:
        """Return the probability of each token of the continuation, at most `most`, if those before it come true."""
        length = self.match[1]
        return map(self.chance, range(length, length + self.available(most)))

    def chance(self, length: int) -> float:
        """Return the probability of the token after a match of `length` tokens."""
        return self.acceptance.probability[kind_of(length)]

    def continuation(self, length: int) -> list[int]:
        """Return the `length` tokens that follow the match, or as many as there are."""
        raise NotImplementedError

    def available(self, most: int) -> int:
        """Return the number of tokens that follow the match, at most `most`."""
        return most

    def _guess_at(self, place: int, token: int, length: int) -> Guess:
        """Return the guess that the token at `place` follows a match of `length` tokens."""
        return Guess(token, self.chance(length), (place + 1) * LENGTHS + min(length + 1, LENGTHS - 1))

    def _follow(self, text: Sequence[int], *, scored: bool) -> None:
        """Match the text's new tokens; `scored`: learn from them how sure matches are."""
        raise NotImplementedError


PROBES = 8
"""Earlier occurrences compared when a match breaks. Source: docs/auto.md."""

MIN_MATCH, MAX_COMPARED = 2, 32
"""Tokens of a match at least, and tokens compared at most; a match that is followed may grow longer."""

EXPECTED = (0.55, 0.72, 0.76, 0.83, 0.85, 0.89, 0.9, 0.94, 0.965, 0.985, 0.55)
"""How often the token after a match came true, by kind; the last kind: an older occurrence, where that one failed.

Answers of Qwen2.5-Coder have 0.48, 0.63, 0.78, 0.77, 0.84, 0.84, 0.94, 0.97, 0.99, 1.0 and 0.26 (benchmarks.hit_rates);
beginning with these instead gained nothing on any law (benchmarks.replay).
"""

OTHER = len(EXPECTED) - 1
MAX_OTHERS = 2


class SuffixSource(MatchSource):
    """Guesses from the text itself. `is_end`: True for tokens that end an answer, which no draft needs.

    >>> source = SuffixSource()
    >>> source.begin([7, 1, 2, 3, 9, 7, 1, 2])
    >>> source.first([7, 1, 2, 3, 9, 7, 1, 2])[0].token
    3
    """

    origin = Origin.SUFFIX

    def __init__(
        self, acceptance: AcceptanceEstimate | None = None, is_end: Callable[[int], bool] = lambda _: False
    ) -> None:
        super().__init__(acceptance or AcceptanceEstimate(EXPECTED))
        # The engine asks llama.cpp each time.
        self._is_end = cache(is_end)
        self._text: Sequence[int] = ()
        # Where the text has tokens that end an answer.
        self._ends: list[int] = []
        # The end of the latest occurrence of two tokens, and by each token what that was before it.
        self._latest: dict[tuple[int, int], int] = {}
        self._earlier: list[int] = []
        # The length of the text when guesses beside the first one were given, and their tokens.
        self._offered: tuple[int, list[int]] = (0, [])

    def end_after(self, place: int) -> int | None:
        """Return where the next token that ends an answer stands from `place` on, None if there is none."""
        found = bisect_left(self._ends, place)
        return self._ends[found] if found < len(self._ends) else None

    def available(self, most: int) -> int:
        place = self.match[0]
        end = self.end_after(place)
        return most if end is None else min(end - place, most)

    def continuation(self, length: int) -> list[int]:
        """Return `length` tokens or all before an answer's end; a match that reaches the text's end is repeated."""
        place, length = self.match[0], self.available(length)
        chain = list(self._text[place : place + length])
        period = len(self._text) - place
        while len(chain) < length:
            chain.append(chain[-period])
        return chain

    def first(self, text: Sequence[int]) -> list[Guess]:
        place, length = self.match
        if not length:
            return []
        guesses = [self._guess_at(place, text[place], length)]
        others = self._others(len(text) - 1, text[place])
        self._offered = len(text), [text[other] for other in others]
        left = 1 - guesses[0].probability
        for other in others:
            chance = left * self.acceptance.probability[OTHER]
            guesses.append(Guess(text[other], chance, (other + 1) * LENGTHS + MIN_MATCH + 1))
            left -= chance
        return guesses

    def after(self, guess: Guess) -> list[Guess]:
        place, length = divmod(guess.place, LENGTHS)
        known = len(self._text)
        if place >= known:
            period = known - self.match[0]
            place = known - period + (place - known) % period
        return [] if self._is_end(self._text[place]) else [self._guess_at(place, self._text[place], length)]

    def _follow(self, text: Sequence[int], *, scored: bool) -> None:
        self._text = text
        matches, earlier, latest, is_end = self._matches, self._earlier, self._latest, self._is_end
        place = len(earlier)
        expected, length = matches[-1]
        before = text[place - 1] if place else -1
        for token in text[place:]:
            end = latest.get((before, token), 0)
            hit = length > 0 and text[expected] == token
            if scored and length:
                self._score(place, token, length, hit)
            if is_end(token):
                self._ends.append(place)
            if hit and not is_end(text[expected + 1]):
                expected, length = expected + 1, length + 1
            else:
                expected, length = self._search(text, place, end) if end else NO_MATCH
            matches.append((expected, length))
            earlier.append(end)
            place += 1
            latest[before, token] = place
            before = token

    def _score(self, place: int, token: int, length: int, hit: bool) -> None:
        self.acceptance.record(kind_of(length), hit)
        if not hit and self._offered[0] == place and self._offered[1]:
            self.acceptance.record(OTHER, token in self._offered[1])

    def _search(self, text: Sequence[int], place: int, end: int) -> tuple[int, int]:
        """Return the longest match of what ends with the token at `place` among the occurrences chained from `end`."""
        found, longest = 0, 1
        for _ in range(PROBES):
            if not end:
                break
            length, most = 0, min(end, MAX_COMPARED)
            while length < most and text[end - 1 - length] == text[place - length]:
                length += 1
            if length > longest and not self._is_end(text[end]):
                found, longest = end, length
            end = self._earlier[end - 1]
        return (found, longest) if found else NO_MATCH

    def _others(self, last: int, first: int) -> list[int]:
        """Return where tokens other than `first` followed the two tokens that end at `last`, each token once."""
        text, others, seen = self._text, list[int](), {first}
        end = self._earlier[last]
        for _ in range(PROBES):
            if not end or len(others) == MAX_OTHERS:
                break
            if text[end] not in seen and not self._is_end(text[end]):
                others.append(end)
                seen.add(text[end])
            end = self._earlier[end - 1]
        return others

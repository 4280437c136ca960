"""The store source: what followed the longest match of the text's end in texts that were kept between runs.

Arrays of token ids in, guesses out. The files that the texts come from are `store.py`'s affair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lacli.auto.belief import Belief
from lacli.auto.matching import (
    LENGTHS,
    NONE,
    Matching,
    kind,
)
from lacli.auto.source import Guess
from lacli.auto.suffix import LONGEST
from lacli.batch import Ints
from lacli.tree import Origin

RUN = 4
"""Tokens that a match has at least."""

PROBES = 64
"""Occurrences of such a run that are compared, the most recent ones."""

EXPECTED = (0.0, 0.0, 0.3, 0.6, 0.75, 0.75, 0.8, 0.85, 0.9, 0.95)
"""How often the token after a match came true at first, by the suffix source's kinds; two and three tokens are none.

Of 40 answers of the demo model, each with the texts of all others; repeated and related ones do better and teach it.
"""

GAP = -1
"""Stands between texts and is no token; so many of them that no comparison leaves the array."""

BEHIND = -2
"""Stands before the beginning of a short text, and matches nothing."""

FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
"""What a run's tokens are multiplied with for its hash: odd numbers without a pattern."""

MASK = (1 << 64) - 1


class KeptTexts:
    """Kept texts with an index of their runs; it does not change, and one serves many sources.

    tokens: of all texts, with gaps between them. A million of them are indexed in about a tenth of a second.
    """

    def __init__(self, texts: Sequence[Ints]) -> None:
        gap = np.full(LONGEST, GAP, np.int32)
        self.tokens = np.concatenate([gap, *(part for text in texts for part in (text, gap))])
        ends = np.arange(LONGEST, len(self.tokens))
        ends = ends[np.logical_and.reduce([self.tokens[ends - back] != GAP for back in range(RUN + 1)])]
        hashes = np.zeros(len(ends), np.uint64)
        for back, factor in enumerate(FACTORS, start=1):
            hashes += self.tokens[ends - back].astype(np.uint64) * np.uint64(factor)
        # A hash and, in its lowest bits, where its run ends: one array to sort, with the oldest of equal runs first.
        self._places = (1 << len(self.tokens).bit_length()) - 1
        hashes &= np.uint64(MASK ^ self._places)
        hashes |= ends.astype(np.uint64)
        hashes.sort()
        self._runs = hashes

    def longest(self, text: Sequence[int], length: int) -> tuple[int, int]:
        """Where the longest match of the end of a text's first `length` tokens goes on, and how long it is.

        The most recent of the longest ones; (0, 0) where none has enough tokens.
        """
        if length < RUN:
            return NONE
        run = text[length - RUN : length]
        hashed = sum(token * factor for token, factor in zip(reversed(run), FACTORS, strict=True)) & MASK
        first = np.uint64(hashed & ~self._places)
        begin = int(self._runs.searchsorted(first))
        if begin == len(self._runs) or int(self._runs[begin]) & ~self._places != int(first):
            return NONE
        end = int(self._runs.searchsorted(np.uint64(hashed | self._places), "right"))
        found = (self._runs[max(begin, end - PROBES) : end] & np.uint64(self._places)).astype(np.intp)
        return self._best(found[::-1], text[max(length - LONGEST, 0) : length])

    def _best(self, ends: npt.NDArray[np.intp], tail: Sequence[int]) -> tuple[int, int]:
        """The end of the longest match with a text's tail, the first of them where several are as long."""
        wanted = np.full(LONGEST + 1, BEHIND, np.int32)
        wanted[: len(tail)] = tail[::-1]
        # The last column differs always, and so ends every match.
        same = self.tokens[ends[:, None] - np.arange(1, LONGEST + 2)] == wanted
        lengths = same.argmin(axis=1)
        best = int(lengths.argmax())
        return (int(ends[best]), int(lengths[best])) if lengths[best] >= RUN else NONE


class Kept(Matching):
    """Guesses from kept texts.

    belief: how often they come true, by the length of the match.

    >>> source = Kept(KeptTexts([np.array([1, 2, 3, 4, 5, 6], np.int32)]))
    >>> source.begin([9, 1, 2, 3, 4])
    >>> source.first([9, 1, 2, 3, 4])[0].token
    5
    """

    origin = Origin.STORE
    expected = EXPECTED

    def __init__(self, kept: KeptTexts, belief: Belief | None = None) -> None:
        super().__init__(belief or Belief(EXPECTED))
        self._kept = kept

    def truncate(self, text: Sequence[int], length: int) -> None:
        del self._matches[max(length, 0) + 1 :]

    def chain(self, length: int) -> list[int]:
        """The tokens that follow the match, so many of them where its text has as many."""
        place = self.match[0]
        chain: list[int] = self._kept.tokens[place : place + length].tolist()
        return chain[: chain.index(GAP)] if GAP in chain else chain

    def ahead(self, most: int) -> int:
        return len(self.chain(most))

    def first(self, text: Sequence[int]) -> list[Guess]:
        return self._guess(*self.match)

    def after(self, guess: Guess) -> list[Guess]:
        return self._guess(*divmod(guess.place, LENGTHS))

    def _guess(self, place: int, length: int) -> list[Guess]:
        token = int(self._kept.tokens[place])
        if token == GAP:
            return []
        return [Guess(token, self.chance(length), (place + 1) * LENGTHS + min(length + 1, LENGTHS - 1))]

    def _take(self, text: Sequence[int], *, scored: bool) -> None:
        matches, tokens = self._matches, self._kept.tokens
        for known in range(len(matches), len(text) + 1):
            place, length = matches[-1]
            hit = tokens[place] == text[known - 1]
            if scored and length:
                self.belief.saw(kind(length), bool(hit))
            goes_on = hit and tokens[place + 1] != GAP
            matches.append((place + 1, length + 1) if goes_on else self._kept.longest(text, known))

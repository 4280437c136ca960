"""The two sources that draft from the sequence itself.

The suffix source drafts the tokens after the longest earlier match of the sequence's end, the most recent first. Chains
of equal token pairs find matches, as in LZ77 compressors, in constant time at any length. The rewriting source
continues a copy after a change: when a long match breaks, it looks for the copy again near this place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from lacli.auto.draft import Drafted, HitRates, Source

KIND_OF_LENGTH = (0, 0, 1, 2, 3, 4, 4, 5, 5, *[6] * 4, *[7] * 4, *[8] * 8, *[9] * 15, 10)
"""Kind of a match by its length: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, 25-39, and 40 or more tokens."""

EXPECTED = (0.3, 0.55, 0.72, 0.76, 0.83, 0.85, 0.89, 0.9, 0.94, 0.965, 0.985, 0.26)
"""Rate of the token after a match, by kind; the last kind: an older occurrence, if the match was wrong."""

OTHER = len(EXPECTED) - 1

SUBSTITUTED, RESUMED, AGREED = range(3)
"""Kinds of drafts after a change. SUBSTITUTED: after a copied token that was replaced. RESUMED: after one token that
agrees again. From AGREED on: after 2-5, 6-13, 14-29, and 30 and more tokens that agree."""

KIND_OF_RUN = (SUBSTITUTED, RESUMED, *[AGREED] * 4, *[AGREED + 1] * 8, *[AGREED + 2] * 16, AGREED + 3)

EXPECTED_BEHIND_CHANGE = (0.19, 0.46, 0.86, 0.87, 0.98, 0.99)
"""Rate of each of these kinds. Source: answers of Qwen2.5-Coder 0.5B and 1.5B (python -m benchmarks.hit_rates)."""

MIN_COPY = 8
"""Tokens of a match that counts as a copy, which may go on after a change. Source: docs/internals/auto.md."""

NEAR, MAX_CHANGE = 6, 8
"""NEAR: copied tokens after the change among which the copy is looked for. MAX_CHANGE: tokens of the sequence within
which it must be found."""

PROBES, MAX_OTHERS = 8, 2
"""Earlier occurrences that are compared when a match breaks, and the most branches. Source: docs/internals/auto.md."""

MIN_MATCH, MAX_COMPARED = 2, 32
"""The fewest tokens of a match, and the most tokens compared; a match that is followed may grow longer."""


def kind_of(length: int) -> int:
    """Return the kind of a match of `length` tokens."""
    return KIND_OF_LENGTH[min(length, len(KIND_OF_LENGTH) - 1)]


def kind_of_run(run: int) -> int:
    """Return the kind of hit rate for a draft after `run` tokens that agree with a copy since it changed."""
    return KIND_OF_RUN[min(run, len(KIND_OF_RUN) - 1)]


class SuffixSource(Source):
    """Drafts from the sequence itself. `is_end`: True for tokens that end an answer, which no draft needs.

    `matches`: by length of the sequence, the place after its longest match, and the match's length, 0 without one.
    `hits`: rates by the kind of the match.
    """

    def __init__(self, is_end: Callable[[int], bool] = lambda _: False) -> None:
        self.hits = HitRates(EXPECTED)
        # Without a cache llama.cpp is asked each time.
        self.is_end = cache(is_end)
        self.matches: list[tuple[int, int]] = [(0, 0)]
        self._tokens: Sequence[int] = ()
        # The end of the latest occurrence of two tokens, and by place the end of the occurrence before it.
        self._latest: dict[tuple[int, int], int] = {}
        self._earlier: list[int] = []
        # The end of the latest occurrence of one token.
        self._latest_single: dict[int, int] = {}
        # The length of the sequence when branches were drafted with the match, and their tokens.
        self._offered: tuple[int, list[int]] = (0, [])

    def begin(self, tokens: Sequence[int]) -> None:
        self._follow(tokens, scored=False)

    def extend(self, tokens: Sequence[int]) -> None:
        self._follow(tokens, scored=True)

    def first(self, tokens: Sequence[int]) -> list[Drafted]:
        place, length = self.matches[-1]
        if not length:
            return []
        drafts = [self._drafted(place, length)]
        others = self._others(len(tokens) - 1, tokens[place])
        self._offered = len(tokens), [tokens[other] for other in others]
        left = 1 - drafts[0].probability
        for other in others:
            chance = left * self.hits.rates[OTHER]
            drafts.append(self._drafted(other, MIN_MATCH)._replace(probability=chance))
            left -= chance
        return drafts

    def after(self, drafted: Drafted) -> list[Drafted]:
        place, known = drafted.place, len(self._tokens)
        if place >= known:
            # A match that reaches the end is repeated.
            period = known - self.matches[-1][0]
            place = known - period + (place - known) % period
        return [] if self.is_end(self._tokens[place]) else [self._drafted(place, drafted.length)]

    def _drafted(self, place: int, length: int) -> Drafted:
        """Return the draft that the token at `place` follows a match of `length` tokens."""
        return Drafted(self._tokens[place], self.hits.rates[kind_of(length)], place + 1, length + 1)

    def _follow(self, tokens: Sequence[int], *, scored: bool) -> None:
        self._tokens = tokens
        matches, earlier, latest, is_end = self.matches, self._earlier, self._latest, self.is_end
        place, length = matches[-1]
        previous = tokens[len(earlier) - 1] if earlier else -1
        for here in range(len(earlier), len(tokens)):
            token = tokens[here]
            hit = length > 0 and tokens[place] == token
            if scored and length:
                self.hits.record(kind_of(length), hit)
                offered_at, others = self._offered
                if not hit and offered_at == here and others:
                    self.hits.record(OTHER, token in others)
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

    def _search(self, tokens: Sequence[int], here: int, end: int) -> tuple[int, int]:
        """Return the longest match of the tokens up to `here` among the occurrences chained from `end`."""
        found, longest = 0, MIN_MATCH - 1
        for place in self._chained(end):
            length, most = 0, min(place, MAX_COMPARED)
            while length < most and tokens[place - 1 - length] == tokens[here - length]:
                length += 1
            if length > longest and not self.is_end(tokens[place]):
                found, longest = place, length
        return (found, longest) if found else (0, 0)

    def _others(self, last: int, first: int) -> list[int]:
        """Return the places of tokens other than `first` after the two tokens that end at `last`, each token once."""
        found: dict[int, int] = {}
        for place in self._chained(self._earlier[last]):
            token = self._tokens[place]
            if token != first and not self.is_end(token):
                found.setdefault(token, place)
        return [*found.values()][:MAX_OTHERS]

    def _chained(self, end: int) -> Iterator[int]:
        """Yield the latest occurrences of two tokens, first the occurrence that ends at `end`, 0 for none."""
        for _ in range(PROBES):
            if not end:
                return
            yield end
            end = self._earlier[end - 1]


class RewritingSource(Source):
    """Drafts the tokens of a copy after a change; it has no drafts until a copy has changed something.

    `suffix`: finds long matches; it learns tokens first. `hits`: rates by kind.
    """

    def __init__(self, suffix: SuffixSource) -> None:
        self.hits = HitRates(EXPECTED_BEHIND_CHANGE)
        self._suffix = suffix
        self._tokens: Sequence[int] = ()
        self._known = 0
        self._is_copy = self._has_changed = False
        # The place of the next copied token, and how many agreed before.
        self._place = self._run = 0
        # The place of the change, among the copied tokens and in the sequence.
        self._left: tuple[int, int] | None = None

    def begin(self, tokens: Sequence[int]) -> None:
        self._tokens, self._known = tokens, len(tokens)
        self._watch()

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        for known in range(self._known, len(tokens)):
            if self._is_copy:
                for place, run in self._next():
                    self.hits.record(kind_of_run(run), tokens[place] == tokens[known])
                self._take(tokens[known])
            self._known = known + 1
            if self._left or not self._is_copy:
                self._watch()

    def first(self, tokens: Sequence[int]) -> list[Drafted]:
        return [self._drafted(place, run) for place, run in self._next()]

    def after(self, drafted: Drafted) -> list[Drafted]:
        is_known = drafted.place < self._known and not self._suffix.is_end(self._tokens[drafted.place])
        return [self._drafted(drafted.place, drafted.length)] if is_known else []

    def _drafted(self, place: int, run: int) -> Drafted:
        return Drafted(self._tokens[place], self.hits.rates[kind_of_run(run)], place + 1, run + 1)

    def _next(self) -> list[tuple[int, int]]:
        """Return the place of the next copied token and how many agreed before; nothing without a changed copy."""
        place, run = self._place, self._run
        if self._left and not run:
            left, since = self._left
            if since + 1 < self._known:
                return []
            place = left + 1
        is_ready = self._is_copy and self._has_changed and place < self._known
        return [(place, run)] if is_ready and not self._suffix.is_end(self._tokens[place]) else []

    def _watch(self) -> None:
        """Follow a long match as a copy."""
        place, length = self._suffix.matches[self._known]
        if length >= MIN_COPY:
            self._is_copy, self._left = True, None
            self._place, self._run = place, length

    def _take(self, token: int) -> None:
        """Compare the copy with the sequence's next token."""
        place, agrees = self._place, self._place < self._known and token == self._tokens[self._place]
        if not self._left and agrees:
            self._place, self._run = place + 1, self._run + 1
        elif self._left and self._run and agrees:
            self._left, self._place, self._run = None, place + 1, 2
        else:
            self._left, self._has_changed = self._left or (place, self._known), True
            left, since = self._left
            near = [*self._tokens[left : min(left + NEAR + 1, self._known)]]
            self._run = int(token in near)
            if self._known - since > MAX_CHANGE:
                self._is_copy, self._left = False, None
            elif self._run:
                self._place = left + near.index(token) + 1

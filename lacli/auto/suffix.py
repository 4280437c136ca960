"""The two sources that draft from the sequence itself.

The suffix source looks for the longest earlier occurrence of the sequence's end, a match, and drafts the tokens after
it. Chains of equal token pairs find matches, as in LZ77 compressors, in constant time at any length. The rewriting
source continues a copied passage after a change: when a long match ends, it looks for the passage's next tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from lacli.auto.draft import Drafted, HitRates, Source

KIND_OF_LENGTH = (0, 0, 1, 2, 3, 4, 4, 5, 5, *[6] * 4, *[7] * 4, *[8] * 8, *[9] * 15, 10)
"""Kind of a match by its tokens. Kinds 0 to 10 are 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, 25-39, and 40 or more."""

EXPECTED = (0.3, 0.55, 0.72, 0.76, 0.83, 0.85, 0.89, 0.9, 0.94, 0.965, 0.985, 0.26)
"""Expected hit rate of the token after a match, by kind. The last: after an older match, if the longest was wrong."""

OTHER = len(EXPECTED) - 1

SUBSTITUTED, RESUMED, AGREED = range(3)
"""Kinds of drafts after a change in a copy. SUBSTITUTED: right after a replaced token. RESUMED: after one token that
equals the copied text again. AGREED and the next three kinds: after 2-5, 6-13, 14-29, 30 and more such tokens."""

KIND_OF_RUN = (SUBSTITUTED, RESUMED, *[AGREED] * 4, *[AGREED + 1] * 8, *[AGREED + 2] * 16, AGREED + 3)

EXPECTED_AFTER_CHANGE = (0.19, 0.46, 0.86, 0.87, 0.98, 0.99)
"""Expected hit rate of each of these kinds. Source: Qwen2.5-Coder 0.5B and 1.5B (python -m benchmarks.hit_rates)."""

MIN_COPY = 8
"""The fewest tokens of a match that is a copy, which may go on after a change. Source: docs/internals/auto.md."""

NEAR, MAX_CHANGE = 6, 8
"""NEAR: how many tokens of the copied text after the replaced one are searched for the sequence's next token.
MAX_CHANGE: after how many tokens of the sequence this search ends."""

PROBES, MAX_OTHERS = 8, 2
"""PROBES: earlier occurrences that are compared when a match ends. MAX_OTHERS: the most drafts of older matches."""

MIN_MATCH, MAX_COMPARED = 2, 32
"""The fewest and the most tokens of a match that `_search` finds. It grows by each token that equals its draft."""


def kind_of(length: int) -> int:
    """Return the kind of a match of `length` tokens, an index of `EXPECTED`."""
    return KIND_OF_LENGTH[min(length, len(KIND_OF_LENGTH) - 1)]


def kind_of_run(run: int) -> int:
    """Return the kind of a draft after `run` tokens that equal the copied text since its last change."""
    return KIND_OF_RUN[min(run, len(KIND_OF_RUN) - 1)]


class SuffixSource(Source):
    """Drafts the tokens after a match, the longest earlier occurrence of the sequence's end.

    `is_end`: returns True for tokens that end an answer, which are not drafted. `matches[n]`: the match of the first n
    tokens, as the index after it and its length, (0, 0) without one. `hits`: hit rates by kind of match.
    """

    def __init__(self, is_end: Callable[[int], bool] = lambda _: False) -> None:
        self.hits = HitRates(EXPECTED)
        self.is_end = cache(is_end)  # without a cache llama.cpp is asked each time
        self.matches: list[tuple[int, int]] = [(0, 0)]
        self._tokens: Sequence[int] = ()
        # The end of the latest occurrence of two tokens, and by place the end of the occurrence before it.
        self._latest: dict[tuple[int, int], int] = {}
        self._earlier: list[int] = []
        self._latest_single: dict[int, int] = {}  # the end of the latest occurrence of one token
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
        """Draft the token at the index `place`, which follows a match of `length` tokens."""
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
        """Return the longest match of tokens[: here + 1] among `_chained(end)`: (index after it, length), or (0, 0)."""
        found, longest = 0, MIN_MATCH - 1
        for place in self._chained(end):
            length, most = 0, min(place, MAX_COMPARED)
            while length < most and tokens[place - 1 - length] == tokens[here - length]:
                length += 1
            if length > longest and not self.is_end(tokens[place]):
                found, longest = place, length
        return (found, longest) if found else (0, 0)

    def _others(self, last: int, excluded_token: int) -> list[int]:
        """Return up to MAX_OTHERS indices after earlier copies of the pair ending at `last`; skip `excluded_token`."""
        found: dict[int, int] = {}
        for place in self._chained(self._earlier[last]):
            token = self._tokens[place]
            if token != excluded_token and not self.is_end(token):
                found.setdefault(token, place)
        return [*found.values()][:MAX_OTHERS]

    def _chained(self, end: int) -> Iterator[int]:
        """Yield `end`, an index after a pair of tokens, then after earlier copies of it; at most PROBES, none for 0."""
        for _ in range(PROBES):
            if not end:
                return
            yield end
            end = self._earlier[end - 1]


class RewritingSource(Source):
    """Drafts the rest of a passage that the sequence repeats with a change; without a change it has no drafts.

    `suffix`: finds the passages; it must learn all tokens before this source. `hits`: rates by `kind_of_run`.
    """

    def __init__(self, suffix: SuffixSource) -> None:
        self.hits = HitRates(EXPECTED_AFTER_CHANGE)
        self._suffix = suffix
        self._tokens: Sequence[int] = ()
        self._known = 0
        self._is_copy = self._has_changed = False
        # The index of the next token to copy, and how many tokens equalled the copied text before it.
        self._place = self._run = 0
        self._left: tuple[int, int] | None = None  # the index of the change in the copied passage, and in the copy

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
        """Return [(index of the token to draft next, number of tokens just copied before it)]; [] without a draft."""
        place, run = self._place, self._run
        if self._left and not run:
            left, since = self._left
            if since + 1 < self._known:
                return []
            place = left + 1
        is_ready = self._is_copy and self._has_changed and place < self._known
        return [(place, run)] if is_ready and not self._suffix.is_end(self._tokens[place]) else []

    def _watch(self) -> None:
        """If the known tokens end with a long match, follow it as a copy."""
        place, length = self._suffix.matches[self._known]
        if length >= MIN_COPY:
            self._is_copy, self._left = True, None
            self._place, self._run = place, length

    def _take(self, token: int) -> None:
        """Compare the next token of the sequence with the copied passage, and note when a change begins or ends."""
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

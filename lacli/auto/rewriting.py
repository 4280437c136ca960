"""The rewriting source: how a copy goes on behind a change, with the changes that the sequence has made before.

A long match that breaks was most likely a copy with something changed. It is looked for again near the place where the
sequence left it, one token that agrees being enough, and what stood there is noted with what replaced it: a name that
was replaced once is replaced in the draft wherever the copied tokens have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from lacli.auto.draft import Guess, Source
from lacli.auto.hit_rates import HitRates
from lacli.auto.suffix import SuffixSource
from lacli.tree import Origin

MIN_COPY = 8
"""Tokens of a match from which it is taken for a copy that may go on behind a change. Source: docs/auto.md."""

NEAR = 6
"""Tokens behind the place where a copy was left among which it is looked for again."""

MAX_CHANGE = 8
"""Tokens that a sequence may have in the place of others; a copy left for longer is given up."""

AT_ONCE = 4
"""Tokens drafted at once, since most drafts are cut after a few; more tokens are drafted when they are asked for."""

SUBSTITUTED, RESUMED, CHANGED, REPEATED, INSIDE, AGREED = range(6)
"""Kinds of guesses: what follows a copied token that another one has just replaced; what follows one token that agrees
again; the first token of a change made once before, or more often, and its other tokens; and from AGREED on, what
follows 2-5, 6-13, 14-29, and 30 and more tokens that agree."""

KIND_OF_RUN = (SUBSTITUTED, RESUMED, *[AGREED] * 4, *[AGREED + 1] * 8, *[AGREED + 2] * 16, AGREED + 3)

EXPECTED = (0.19, 0.46, 0.6, 0.9, 0.97, 0.86, 0.87, 0.98, 0.99)
"""Rate of each kind. Source: answers of Qwen2.5-Coder 0.5B and 1.5B (python -m benchmarks.hit_rates)."""


class Change(NamedTuple):
    """Copied tokens, and what the sequence has in their place. `kind`: of the guess that it is made again."""

    old: Sequence[int]
    new: Sequence[int]
    kind: int = CHANGED


class RewritingSource(Source):
    """Drafts how a copy with changes goes on; silent until a copy has changed something.

    `suffix`: tells of long matches; it takes in tokens first. `hits`: rates by kind.

    >>> suffix = SuffixSource()
    >>> source = RewritingSource(suffix)
    >>> tokens = [1, 2, 3, 4, 5, 6, 7, 8, 50, 9, 10, 50, 11, 1, 2, 3, 4, 5, 6, 7, 8]
    >>> for each in (suffix, source):
    ...     each.begin(tokens)
    >>> tokens += [60, 9, 10]
    >>> for each in (suffix, source):
    ...     each.extend(tokens)
    >>> guess = source.first(tokens)[0]
    >>> guess.token, source.after(guess)[0].token
    (60, 11)
    """

    origin = Origin.SUFFIX

    def __init__(self, suffix: SuffixSource) -> None:
        self.hits = HitRates(EXPECTED)
        self._suffix = suffix
        self._tokens: Sequence[int] = ()
        self._known = 0
        self._changes: dict[int, Change] = {}
        self._is_copy = self._has_changed = False
        # Where the copied tokens go on, and how many agreed before; of a copy left at most the latest one did.
        self._place = self._run = 0
        # What is still to come of a change made again.
        self._pending: list[int] = []
        # Where the latest token or change began, among the copied tokens and in the sequence; where a copy was left.
        self._began = (0, 0)
        self._left: tuple[int, int] | None = None
        self._draft: list[tuple[int, int]] = []

    def begin(self, tokens: Sequence[int]) -> None:
        self._tokens, self._known = tokens, len(tokens)
        self._watch()

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        for known in range(self._known, len(tokens)):
            if self._is_copy:
                for guess, kind in islice(self._guesses(), 1):
                    self.hits.record(kind, guess == tokens[known])
                self._take(tokens[known])
            self._known = known + 1
            if self._left or not self._is_copy:
                self._watch()

    def first(self, tokens: Sequence[int]) -> list[Guess]:
        self._draft = list(islice(self._guesses(), AT_ONCE))
        return self._nth(0)

    def after(self, guess: Guess) -> list[Guess]:
        return self._nth(guess.place)

    def _nth(self, index: int) -> list[Guess]:
        """Return the draft's token `index`, if there is one."""
        if index >= len(self._draft):
            if index % AT_ONCE:
                return []
            self._draft = list(islice(self._guesses(), 4 * index or 1))
            if index >= len(self._draft):
                return []
        token, kind = self._draft[index]
        return [Guess(token, self.hits.rates[kind], index + 1)]

    def _guesses(self) -> Iterator[tuple[int, int]]:
        """Yield the tokens that the copy goes on with, changes made again, and their kinds."""
        if not (self._is_copy and self._has_changed):
            return
        tokens, place, run = self._tokens, self._place, self._run
        if self._left and not run:
            left, since = self._left
            if since + 1 < self._known:
                return
            place = left + 1
        for token in self._pending:
            yield token, INSIDE
        while place < self._known and not self._suffix.is_end(tokens[place]):
            change = self._change_at(place) if run > 1 else None
            if change:
                yield change.new[0], change.kind
                for token in change.new[1:]:
                    yield token, INSIDE
                place += len(change.old)
            else:
                yield tokens[place], KIND_OF_RUN[min(run, len(KIND_OF_RUN) - 1)]
                place, run = place + 1, run + 1

    def _watch(self) -> None:
        """Take a long match for a copy."""
        place, length = self._suffix.matches[self._known]
        if length >= MIN_COPY:
            self._is_copy, self._left = True, None
            self._place, self._run = place, length

    def _take(self, token: int) -> None:
        """Follow the copy by the sequence's next token."""
        place = self._place
        if self._left:
            if self._run and token == self._tokens[place]:
                self._note_change(self._known - 1)
                self._left = None
                self._place, self._run = place + 1, 2
            else:
                self._find(token)
            return
        if self._pending:
            if token == self._pending[0]:
                del self._pending[0]
                return
        else:
            self._began = place, self._known
            change = self._change_at(place)
            if change and token == change.new[0]:
                self._place, self._pending = place + len(change.old), [*change.new[1:]]
                self._changes[self._tokens[place]] = change._replace(kind=REPEATED)
                return
            if change:
                # It is not made everywhere.
                del self._changes[self._tokens[place]]
            if place < self._known and token == self._tokens[place]:
                self._place, self._run = place + 1, self._run + 1
                return
        self._has_changed = True
        self._pending, self._left = [], self._began
        self._find(token)

    def _find(self, token: int) -> None:
        """Look for `token` near the place where the copy was left."""
        assert self._left
        place, since = self._left
        if self._known - since > MAX_CHANGE:
            self._is_copy, self._left = False, None
            return
        near = self._tokens[place : min(place + NEAR + 1, self._known)]
        self._run = int(token in near)
        if self._run:
            self._place = place + near.index(token) + 1

    def _note_change(self, end: int) -> None:
        """Note what replaced what, where sequence and copy agree again from place `end` of the sequence on."""
        assert self._left
        place, since = self._left
        old, new = list(self._tokens[place : self._place - 1]), list(self._tokens[since:end])
        if new:
            # An insertion is known by the token behind it.
            rest = [] if old else [self._tokens[end]]
            self._changes[self._tokens[place]] = Change(old + rest, new + rest)

    def _change_at(self, place: int) -> Change | None:
        """Return the change that was made to what stands at `place`, if any."""
        change = self._changes.get(self._tokens[place])
        if change and list(self._tokens[place : min(place + len(change.old), self._known)]) == change.old:
            return change
        return None

"""The rewriting source: where a copy goes on behind a change, with the changes that the text has made before.

A long match that breaks was most likely a copy with something changed. It is looked for again near the place where the
text left it, one token that agrees being enough, and what stood there is noted with what replaced it: a name that was
replaced once is replaced in the draft wherever the copied text has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import proxy

from lacli.auto.acceptance import AcceptanceEstimate
from lacli.auto.planner import Guess
from lacli.auto.suffix import MatchSource, SuffixSource
from lacli.tree import Origin

MIN_COPY = 8
"""Tokens of a match from which it is taken for a copy that may go on behind a change. Source: docs/auto.md."""

NEAR = 6
"""Tokens behind the place where a copy was left among which it is looked for again."""

MAX_CHANGE = 8
"""Tokens that a text may have in the place of others; a copy left for longer is given up."""

SUBSTITUTED, RESUMED, CHANGED, REPEATED, INSIDE, AGREED = range(6)
"""Kinds of guesses: what follows a token in the copied text, where another one has just replaced it; what follows one
token that agrees again; the first token of a change made once before, or more often, and its other tokens; and from
AGREED on, what follows 2-5, 6-13, 14-29, and 30 and more tokens that agree."""

KIND_OF_RUN = (SUBSTITUTED, RESUMED, *[AGREED] * 4, *[AGREED + 1] * 8, *[AGREED + 2] * 16, AGREED + 3)

EXPECTED = (0.19, 0.46, 0.6, 0.9, 0.97, 0.86, 0.87, 0.98, 0.99)
"""How often each kind came true. Source: answers of Qwen2.5-Coder 0.5B and 1.5B (python -m benchmarks.hit_rates)."""


class Change(NamedTuple):
    """Tokens of the copied text, and what the copy has in their place. `kind`: of the guess that it is made again."""

    old: list[int]
    new: list[int]
    kind: int = CHANGED


class RewritingSource(MatchSource):
    """Guesses how a copy with changes goes on; silent until a copy has changed something.

    `suffix`: tells of long matches; it has to learn a text first.

    >>> suffix = SuffixSource()
    >>> source = RewritingSource(suffix)
    >>> text = [1, 2, 3, 4, 5, 6, 7, 8, 50, 9, 10, 50, 11, 1, 2, 3, 4, 5, 6, 7, 8]
    >>> for each in (suffix, source):
    ...     each.begin(text)
    >>> text += [60, 9, 10]
    >>> for each in (suffix, source):
    ...     each.extend(text)
    >>> source.continuation(2)
    [60, 11]
    """

    origin = Origin.SUFFIX

    def __init__(self, suffix: SuffixSource, acceptance: AcceptanceEstimate | None = None) -> None:
        super().__init__(acceptance or AcceptanceEstimate(EXPECTED))
        self._suffix = suffix
        self._text: Sequence[int] = ()
        self._known = 0
        self._changes: dict[int, Change] = {}
        self._is_copy = self._has_changed = False
        # Where the copied text goes on, and how many tokens agreed before; of a copy left at most the latest one did.
        self._place = self._run = 0
        # What is still to come of a change made again.
        self._pending: list[int] = []
        # Where the latest token or change began, in the copied text and in the text; and where a copy was left.
        self._began = (0, 0)
        self._left: tuple[int, int] | None = None
        self._draft: list[tuple[int, int]] = []
        self._restart()

    def begin(self, text: Sequence[int]) -> None:
        self._text, self._known = text, len(text)
        self._watch()

    def extend(self, text: Sequence[int]) -> None:
        self._text = text
        for known in range(self._known, len(text)):
            if self._is_copy:
                self._score(text[known])
                self._take(text[known])
            self._known = known + 1
            if self._left or not self._is_copy:
                self._watch()
        if self._has_changed:
            self._restart()

    @property
    def match(self) -> tuple[int, int]:
        """Where the copy goes on, and the tokens that agree before it; 0 if there is no guess."""
        return (self._place, max(self._run, 1)) if self._reaches(0) else (0, 0)

    @property
    def kind(self) -> int:
        return self._draft[0][1] if self._reaches(0) else -1

    def chances(self, most: int) -> Iterator[float]:
        for index in range(most):
            if not self._reaches(index):
                break
            yield self.acceptance.probability[self._draft[index][1]]

    def continuation(self, length: int) -> list[int]:
        self._reaches(length - 1)
        return [token for token, _ in self._draft[:length]]

    def available(self, most: int) -> int:
        self._reaches(most - 1)
        return min(len(self._draft), most)

    def first(self, text: Sequence[int]) -> list[Guess]:
        return self._nth(0)

    def after(self, guess: Guess) -> list[Guess]:
        return self._nth(guess.place)

    def _nth(self, index: int) -> list[Guess]:
        """Return the draft's token `index` as a guess."""
        if not self._reaches(index):
            return []
        token, kind = self._draft[index]
        return [Guess(token, self.acceptance.probability[kind], index + 1)]

    def _restart(self) -> None:
        """Draft anew."""
        self._draft.clear()
        # A generator that held the source would keep the model's memory until Python looks for cycles.
        self._more = RewritingSource._guesses(proxy(self))

    def _reaches(self, index: int) -> bool:
        """Draft as far as token `index`; True if there is one."""
        draft = self._draft
        while len(draft) <= index and (found := next(self._more, None)):
            draft.append(found)
        return len(draft) > index

    def _guesses(self) -> Iterator[tuple[int, int]]:
        """Yield the tokens that the copy goes on with, changes made again, and their kinds."""
        if not (self._is_copy and self._has_changed):
            return
        text, place, run = self._text, self._place, self._run
        if self._left and not run:
            left, since = self._left
            if since + 1 < self._known:
                return
            place = left + 1
        for token in self._pending:
            yield token, INSIDE
        end = self._suffix.end_after(place)
        while place < (self._known if end is None else end):
            change = self._change_at(place) if run > 1 else None
            if change:
                yield change.new[0], change.kind
                for token in change.new[1:]:
                    yield token, INSIDE
                place += len(change.old)
            else:
                yield text[place], KIND_OF_RUN[min(run, len(KIND_OF_RUN) - 1)]
                place, run = place + 1, run + 1

    def _watch(self) -> None:
        """Take a long match for a copy."""
        place, length = self._suffix.match_at(self._known)
        if length >= MIN_COPY:
            self._is_copy, self._left = True, None
            self._place, self._run = place, length

    def _score(self, token: int) -> None:
        if self._has_changed:
            self._restart()
            if self._reaches(0):
                guess, kind = self._draft[0]
                self.acceptance.record(kind, guess == token)

    def _take(self, token: int) -> None:
        """Follow the copy by the text's next token."""
        text, known, place = self._text, self._known, self._place
        if self._left:
            if self._run and token == text[place]:
                self._note_change(known - 1)
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
            self._began = place, known
            change = self._change_at(place)
            if change and token == change.new[0]:
                self._place, self._pending = place + len(change.old), change.new[1:]
                self._changes[text[place]] = change._replace(kind=REPEATED)
                return
            if change:
                # It is not made everywhere.
                del self._changes[text[place]]
            if place < known and token == text[place]:
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
        near = self._text[place : min(place + NEAR + 1, self._known)]
        self._run = int(token in near)
        if self._run:
            self._place = place + near.index(token) + 1

    def _note_change(self, end: int) -> None:
        """Note what replaced what, where text and copy agree again from place `end` of the text on."""
        assert self._left
        place, since = self._left
        old, new = list(self._text[place : self._place - 1]), list(self._text[since:end])
        if new:
            # An insertion is known by the token behind it.
            rest = [] if old else [self._text[end]]
            self._changes[self._text[place]] = Change(old + rest, new + rest)

    def _change_at(self, place: int) -> Change | None:
        """Return the change that was made to what stands at `place`, if any."""
        change = self._changes.get(self._text[place])
        if change and list(self._text[place : min(place + len(change.old), self._known)]) == change.old:
            return change
        return None

"""Decoders that keep less between the turns of a conversation than `Decoder` does, or more: what its rules are worth.

Only `chat.py` beside this measures with them. They decide speed, never text, as the modes do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lacli.decode import Decoder
from lacli.modes import Lookahead, Lookup, Mode, SuffixIndex
from lacli.pool import NgramPool, TextNgrams
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree


class LearningAnew(Decoder):
    """Keeps the cache between turns, but learns its pool or index anew from each prompt."""

    def _start(self, prompt: Sequence[int], reuse: bool) -> None:
        self._learn_anew()
        super()._start(prompt, reuse)


class KeepingNothing(LearningAnew):
    """Decodes each turn's whole prompt."""

    def _start(self, prompt: Sequence[int], reuse: bool) -> None:
        super()._start(prompt, reuse=False)


class Unforgetting(Decoder):
    """Goes on to guess from what was taken back."""

    def _new_mode(self, before: Mode | None = None) -> Mode:
        match self.settings.mode:
            case "lookup":
                return UnforgettingLookup(self.settings)
            case "lookahead":
                return UnforgettingLookahead(
                    self.settings, self.pool, self.group.engine.vocabulary, self.group.engine.is_end
                )
        return super()._new_mode(before)


class UnforgettingLookahead(Lookahead):
    """Leaves the n-grams of a text that is taken back in the pool."""

    def __init__(
        self, settings: DecodeSettings, pool: NgramPool, vocabulary: int, is_end: Callable[[int], bool]
    ) -> None:
        super().__init__(settings, pool, vocabulary, is_end)
        self._text_ngrams = TextNgramsForGood(pool)


class TextNgramsForGood(TextNgrams):
    """Learns what comes instead of a text that is taken back, and forgets nothing."""

    def truncate(self, text: Sequence[int], length: int) -> None:
        self._next = min(self._next, max(length - self._pool.ngram + 1, 0))
        self._spans = [(begin, min(end, self._next)) for begin, end in self._spans if begin < self._next]


class UnforgettingLookup(Lookup):
    """Searches what was taken back as well, as if it stood between what stayed and what came after."""

    def __init__(self, settings: DecodeSettings) -> None:
        super().__init__(settings)
        self._longest = settings.lookup_match
        self._taken_back: list[int] = []
        self._place = 0

    def begin(self, text: Sequence[int]) -> None:
        self._index.extend(self._whole(text))

    def truncate(self, text: Sequence[int], length: int) -> None:
        self._taken_back, self._place = [*self._taken_back, *text[length:]], length
        self._index = SuffixIndex(self._longest)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        whole = self._whole(text)
        self._index.extend(whole)
        tree = Tree(text[-1])
        found = self._index.continuation(text)
        if found is not None:
            tree.add_path(whole[found : found + min(self._draft, room - 1)], 0, Origin.CHAIN)
        return tree

    def _whole(self, text: Sequence[int]) -> list[int]:
        return [*text[: self._place], *self._taken_back, *text[self._place :]]

"""Which tokens the cache holds and for which sequences: prefill, what stays after a step, cutting back.

All sequence calls of a decode go through here, each limited to the positions it is about: an unlimited one walks
the cache's per-sequence bookkeeping and costs milliseconds at a few thousand tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter

from lacli.batch import from_tokens
from lacli.engine import Engine
from lacli.tree import ROOT, Branches

ALL = -1
"""As a sequence: every one. As an end: to the end."""

PREFILL_ROWS = 512
"""Rows of a prefill call: llama.cpp computes no more at once anyway, and Ctrl-C is heard between calls."""


class Cache:
    """The tokens 0 .. past-1 of sequence 0, and how far the other sequences share them.

    past: tokens held; the next input goes to this position. seconds: time spent in sequence calls. After the
    prefill a sequence is brought up to date when a tree next uses it, not before: idle ones cost nothing.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.past = 0
        self.seconds = 0.0
        self._shared = [0] * engine.sequences
        # A recurrent model has one sequence and does not know -1.
        self._every = ALL if engine.sequences > 1 else 0

    @property
    def room(self) -> int:
        """Rows that the next step may have."""
        return min(self._engine.cells - self.past, self._engine.batch_rows)

    def prefill(self, tokens: Sequence[int]) -> None:
        """Decode tokens in batches, without logits."""
        rows = min(self._engine.batch_rows, PREFILL_ROWS)
        for first in range(0, len(tokens), rows):
            piece = tokens[first : first + rows]
            fits = self._engine.decode(from_tokens(piece, self.past))
            assert fits, "the caller checks the prompt against the context"
            self.past += len(piece)

    def share(self, tree: Branches) -> None:
        """Give every sequence of a tree what sequence 0 holds, before the tree is decoded."""
        if len(tree.sequences[ROOT]) > 1:
            begin = perf_counter()
            self._share(tree.sequences[ROOT][1:])
            self.seconds += perf_counter() - begin

    def keep(self, tree: Branches, nodes: Sequence[int], again: int = 0) -> None:
        """After a decode: sequence 0 holds the input and the accepted nodes, and nothing else of the tree is left.

        again: how many tokens were decoded before the input, to be kept as well.
        """
        start = self.past + again + 1
        self.past = end = start + len(nodes)
        others = tree.sequences[ROOT][1:]
        if len(tree.tokens) == 1 + len(nodes) and not others:
            return
        begin = perf_counter()
        owner = tree.sequences[nodes[-1]][0] if nodes else 0
        if owner:
            self._engine.copy(owner, 0, start, end)
            for sequence in others:
                self._engine.remove(sequence, start, ALL)
        else:
            # The path is a chain in sequence 0, or there is none: what follows it goes, in one call.
            gone = self._engine.remove(self._every, end, ALL)
            assert gone, "a step has no more guesses than the model can take back"
        for sequence in others:
            self._shared[sequence] = start
        self.seconds += perf_counter() - begin

    def truncate(self, length: int) -> bool:
        """Cut all sequences back to the first `length` tokens; False where the model cannot forget a part."""
        # First what is believed, then the cells: an interrupt in between is mended by cutting again.
        before = self.past
        length = self.past = min(length, before)
        self._shared = [min(shared, length) for shared in self._shared]
        if not self._engine.remove(self._every, length, ALL):
            self.past = before
            return False
        return True

    def shift(self, keep: int, count: int) -> None:
        """Drop `count` tokens after the first `keep`; those behind them move up (llama.cpp's context shift).

        Only the first `keep` are held on to until the caller's text says the same and it calls `grow`.
        """
        self.past = keep
        self.unshare()
        self._engine.remove(0, keep, keep + count)
        self._engine.shift(0, keep + count, ALL, -count)

    def grow(self, past: int) -> None:
        """Hold on to the tokens up to `past`, which are decoded."""
        self.past = past

    def unshare(self) -> None:
        """Take everything from the sequences but the first; each gets it again when it is next used."""
        self._shared = [0] * self._engine.sequences
        for sequence in range(1, self._engine.sequences):
            self._engine.remove(sequence, 0, ALL)

    def clear(self) -> None:
        """Forget everything."""
        self.past = 0
        self._shared = [0] * self._engine.sequences
        self._engine.clear()

    def _share(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            if self._shared[sequence] < self.past:
                self._engine.copy(0, sequence, self._shared[sequence], self.past)
                self._shared[sequence] = self.past

"""A slot's cells: its sequence's tokens in the cache, shared with its other ids and with other slots.

All sequence calls of a decode go through `Cells`, each limited to its positions. An unlimited call walks the cache's
per-sequence bookkeeping, and costs milliseconds at a few thousand tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter

from lacli.batch import BatchPart
from lacli.context import Context
from lacli.modes import common_prefix
from lacli.tree import ROOT, Tree

ALL = -1
"""As a sequence id: every one. As an end: to the end."""


class Cells:
    """A slot: tokens 0 .. past-1 of one sequence at a time with its first id; its other ids share a part.

    `past`: tokens in the cache, and the position of the next input. `tokens`: of the slot's sequence, or of its last
    one. `source`: the slot that shares the cells of the first `borrowed` tokens. `last_use`: grows with every use.
    `part`: the rows that were laid out last. `seconds`: time in sequence calls. `whole`: a cut keeps this many tokens,
    or none. After the prefill a tree brings its ids up to date: idle ids cost nothing.
    """

    def __init__(self, context: Context, ids: range, limit: int) -> None:
        """`ids`: the sequence ids that belong to the slot; trees count them from 0. `limit`: tokens of a sequence."""
        self._context, self._ids, self.limit = context, ids, limit
        self.first_id = ids.start
        self._owns_all = ids == range(context.ids)
        self._synced = [0] * len(ids)
        self.tokens: list[int] = []
        self.source: Cells | None = None
        self.past = self.borrowed = self.last_use = self.whole = 0
        self.seconds = 0.0
        self.part = BatchPart(None, 0)

    @property
    def own_cells(self) -> int:
        return self.past - self.borrowed

    def common(self, tokens: Sequence[int]) -> int:
        """Tokens at the beginning of `tokens` that the cache has."""
        common = min(common_prefix(self.tokens, tokens), self.past)
        return common if common >= self.whole else 0

    def room(self, tokens: Sequence[int]) -> int:
        """Most rows of the next step's tree, not counting missing tokens before its input."""
        missing = len(tokens) - 1 - self.past
        return min(self.limit - (len(tokens) - 1), self._context.batch_rows - missing)

    def lay_out_step(self, tokens: Sequence[int], tree: Tree) -> BatchPart:
        """Make rows of a sequence's missing tokens and of its step's tree; its ids share the cells from now on."""
        others = tree.ids[ROOT][1:]
        if others:
            begin = perf_counter()
            for each in others:
                if self._synced[each] < self.past:
                    self._context.copy(self.first_id, self.first_id + each, self._synced[each], self.past)
                    self._synced[each] = self.past
            self.seconds += perf_counter() - begin
        self.part = BatchPart(tree, self.past, tokens[self.past : -1], self.first_id)
        return self.part

    def lay_out_prompt(self, tokens: Sequence[int], rows: int, *, scored: bool) -> BatchPart:
        """Make rows of the next `rows` tokens that the cache lacks, with logits if they are `scored`."""
        self.part = BatchPart(None, self.past, tokens[self.past : self.past + rows], self.first_id, scored)
        return self.part

    def commit_prompt(self) -> None:
        """Count the decoded tokens of a prompt."""
        self.past += len(self.part.uncached)

    def commit(self, nodes: Sequence[int], *, ordered: bool) -> None:
        """Keep the input and the accepted `nodes` of the decoded step, and nothing else of its tree.

        `ordered`: keep only cells in the order of the sequence; cells after rejected drafts are not.
        """
        if ordered:
            nodes = [row for place, row in enumerate(nodes, start=1) if row == place]
        tree, _, uncached, *_ = self.part
        assert tree is not None, "a step was decoded"
        start = self.past + len(uncached) + 1
        self.past = end = start + len(nodes)
        others = tree.ids[ROOT][1:]
        if len(tree.tokens) == 1 + len(nodes) and not others:
            return
        begin = perf_counter()
        owner = tree.ids[nodes[-1]][0] if nodes else 0
        if owner:
            self._context.copy(self.first_id + owner, self.first_id, start, end)
            for each in others:
                self._context.remove(self.first_id + each, start, ALL)
        else:
            # The path is a chain with the first id, or empty: everything after it goes.
            gone = self._remove_from(end, [0, *others])
            assert gone, "a step has no more drafted tokens than the model can take back"
        for each in others:
            self._synced[each] = start
        self.seconds += perf_counter() - begin

    def cut(self, length: int) -> None:
        """Cut all ids back to the first `length` tokens; a model that cannot take back a part loses all."""
        # First the numbers, then the cells: after an interrupt in between, another cut mends them.
        self.past = min(length, self.past) if length >= self.whole else 0
        self.whole = min(self.whole, self.past)
        self._synced = [min(synced, self.past) for synced in self._synced]
        if not self._remove_from(self.past):
            self.past = 0
            self._synced = [0] * len(self._ids)
            self._remove_from(0)

    def share_beginning(self, other: Cells, length: int) -> None:
        """Share the cells of the first `length` tokens of another slot; this one is empty."""
        self._context.copy(other.first_id, self.first_id, 0, length)
        self.past = self.borrowed = length
        self.source, self.whole = other, other.whole

    def unshare(self) -> None:
        """Take all cells from all ids but the first; each id gets them again when a tree next uses it."""
        self._synced = [0] * len(self._ids)
        for each in self._ids[1:]:
            self._context.remove(each, 0, ALL)

    def _remove_from(self, position: int, used: Iterable[int] | None = None) -> bool:
        """Take the positions from `position` on from all ids; False if the model cannot.

        `used`: the ids that may have any, all by default. Among other sequences each id costs a walk over all cells.
        """
        # A recurrent model has one id a slot and does not know -1.
        if self._owns_all and len(self._ids) > 1:
            return self._context.remove(ALL, position, ALL)
        ids = self._ids if used is None else [self.first_id + each for each in used]
        return all([self._context.remove(each, position, ALL) for each in ids])

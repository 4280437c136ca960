"""A slot's cells: its sequence's tokens in the cache, which its other ids and other slots may share.

All sequence calls of a decode go through `Cells`, each with a range of positions. A call without a range walks through
llama.cpp's records of the whole cache, and costs milliseconds at a few thousand tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter

from lacli.batch import BatchPart
from lacli.context import Context
from lacli.modes import common_prefix
from lacli.tree import ROOT, Tree

ALL = -1
"""As a sequence id: all ids. As an end: the end of the cache."""


class Cells:
    """A slot: the cache of one sequence at a time. Its first id has all tokens; trees share them with its other ids.

    `past`: the number of tokens in the cache, and the position of the next input. `tokens`: all tokens of the slot's
    present or last sequence. `source`: the slot with which it shares the cells of its first `borrowed` tokens, or None.
    `last_use`: larger for slots used later. `part`: the rows of the latest `lay_out_step` or `lay_out_prompt`.
    `seconds`: the time of all sequence calls. `whole`: a cut that would keep fewer tokens than this removes all.
    """

    def __init__(self, context: Context, ids: range, limit: int) -> None:
        """`ids`: the slot's sequence ids; a tree's id 0 is the first. `limit`: the most tokens of a sequence."""
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
        """Return how many tokens at the beginning of `tokens` are in the cache and can be kept."""
        common = min(common_prefix(self.tokens, tokens), self.past)
        return common if common >= self.whole else 0

    def room(self, tokens: Sequence[int]) -> int:
        """Return the most rows of the sequence's next tree, by `limit` and the batch rows left by uncached `tokens`."""
        missing = len(tokens) - 1 - self.past
        return min(self.limit - (len(tokens) - 1), self._context.batch_rows - missing)

    def lay_out_step(self, tokens: Sequence[int], tree: Tree) -> BatchPart:
        """Share the cache with the tree's ids. Return the rows of a step: tokens that the cache lacks, and the tree."""
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
        """Return the rows of the next `rows` tokens that the cache lacks. `scored`: whether their logits are wanted."""
        self.part = BatchPart(None, self.past, tokens[self.past : self.past + rows], self.first_id, scored)
        return self.part

    def commit_prompt(self) -> None:
        """Add the tokens of the latest `lay_out_prompt` to `past`, after they were decoded."""
        self.past += len(self.part.uncached)

    def commit(self, nodes: Sequence[int], *, ordered: bool) -> None:
        """After a decoded step, keep the cells of the input and of the accepted `nodes`, and remove all others.

        `ordered`: also remove accepted nodes after the first rejected one, so that cells are in the sequence's order.
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
            # The path is a chain with the first id, or empty: everything after it is removed.
            gone = self._remove_from(end, [0, *others])
            assert gone, "a step has no more drafted tokens than the model can take back"
        for each in others:
            self._synced[each] = start
        self.seconds += perf_counter() - begin

    def cut(self, length: int) -> None:
        """Remove all tokens after the first `length` from all ids, or all tokens if the model cannot remove a part."""
        # First the numbers, then the cells: after an interrupt in between, another cut mends them.
        self.past = min(length, self.past) if length >= self.whole else 0
        self.whole = min(self.whole, self.past)
        self._synced = [min(synced, self.past) for synced in self._synced]
        if not self._remove_from(self.past):
            self.past = 0
            self._synced = [0] * len(self._ids)
            self._remove_from(0)

    def share_beginning(self, other: Cells, length: int) -> None:
        """Fill this empty slot with the first `length` tokens of another slot, whose cells both slots then share."""
        self._context.copy(other.first_id, self.first_id, 0, length)
        self.past = self.borrowed = length
        self.source, self.whole = other, other.whole

    def unshare(self) -> None:
        """Remove all cells from all ids but the first. `lay_out_step` shares them again with the ids of its tree."""
        self._synced = [0] * len(self._ids)
        for each in self._ids[1:]:
            self._context.remove(each, 0, ALL)

    def _remove_from(self, position: int, used: Iterable[int] | None = None) -> bool:
        """Remove the positions from `position` on from all ids; return False if the model cannot.

        `used`: the tree's ids that may have such positions; None for all ids. Each id can cost a walk over all cells.
        """
        # A recurrent model has one id a slot and takes no -1.
        if self._owns_all and len(self._ids) > 1:
            return self._context.remove(ALL, position, ALL)
        ids = self._ids if used is None else [self.first_id + each for each in used]
        return all([self._context.remove(each, position, ALL) for each in ids])

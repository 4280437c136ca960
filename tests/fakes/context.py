"""A toy language model with the Context protocol that enforces llama.cpp's rules.

Its next token depends only on the (position, token) pairs that a row's ids make visible. So a mistake in a mask or in
a cache call changes the tokens or breaks a rule.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from lacli.batch import Batch, BatchRow, Ints
from lacli.context import Floats

SPREADS = np.random.default_rng(0).uniform(-2, 2, (101, 64))


class RuleBroken(Exception):
    """A call after which llama.cpp would return -1, abort or give a random result."""


@dataclass
class Cell:
    slot: int
    position: int
    token: int
    owners: set[int]


@dataclass
class FakeContext:
    """A toy model of `vocabulary` tokens. `ends`: end tokens. One token in `surprise` depends on all earlier tokens.

    `ordered`: raise if a row sees its cells in another order than the sequence's; exact sums need the order.
    `min_outputs`: the fewest rows with logits in a step; exact sums need them too. `max_rollback`: the most tokens
    that one removal after a batch can take back from a recurrent state. None: no recurrent state.
    """

    cells: int = 256
    batch_rows: int = 256
    ids: int = 1
    vocabulary: int = 12
    ends: frozenset[int] = frozenset()
    surprise: int = 5
    calls: int = 0
    refuse_above: int | None = None
    max_outputs: int = 10_000
    ordered: bool = False
    min_outputs: int = 1
    max_rollback: int | None = None
    prefill_rows: int = 512
    mixed_rows: int = 512
    trained_tokens: int = 4096
    passes_all_cells: bool = False
    _snapshots: int = 0
    _cells: list[Cell] = field(default_factory=list)
    _logits: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.can_share = self.max_rollback is None

    def next_token(self, context: list[tuple[int, int]]) -> int:
        digest = zlib.crc32(repr(context).encode())
        if digest % self.surprise == 0:
            return digest // self.surprise % self.vocabulary
        before, last = ([0] + [token for _, token in context])[-2:]
        return (3 * last + before + 1) % self.vocabulary

    def logits_after(self, context: list[tuple[int, int]]) -> Floats:
        """Return logits, (vocabulary,): 3 for the next token, from -2 to 2 for the others."""
        spread: Floats = SPREADS[zlib.crc32(repr(context).encode()) % len(SPREADS)][: self.vocabulary].copy()
        spread[self.next_token(context)] = 3.0
        return spread

    def decode(self, batch: Batch) -> bool:
        rows = batch.read()
        self._check(rows)
        if len(self._cells) + len(rows) > self.cells:
            return False
        if self.refuse_above is not None and len(rows) > self.refuse_above:
            return False
        self.calls += 1
        self._snapshots = min(self.max_rollback or 0, len(rows) - 1)
        free = self._free_slots()
        self._cells += [Cell(next(free), row.position, row.token, set(row.ids)) for row in rows]
        self._logits = []
        for _, position, owners, wanted in rows:
            views = [self._visible(owner, position) for owner in owners]
            if any(view != views[0] for view in views):
                raise RuleBroken("the ids of a token see different cells, and llama.cpp follows any one of them")
            if self.ordered:
                self._check_order(owners[0], position)
            if wanted:
                self._logits.append(self.logits_after(views[0]))
        return True

    def greedy(self) -> Ints:
        best: Ints = self.logits().argmax(axis=1)
        return best

    def logits(self) -> Floats:
        return np.array(self._logits)

    def row_logits(self, row: int) -> Floats:
        logits: Floats = self.logits()[row]
        return logits

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._check_sequence(source)
        self._check_sequence(target)
        for cell in self._in(start, end):
            if source in cell.owners:
                if target in cell.owners:
                    raise RuleBroken(f"sequence {target} owns position {cell.position} already")
                cell.owners.add(target)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        if sequence != -1 or self.max_rollback is not None:
            self._check_sequence(sequence)
        if self.max_rollback is not None and start > 0 and not self._goes_back(start, end):
            return False
        for cell in self._in(start, end):
            if sequence == -1:
                cell.owners.clear()
            cell.owners.discard(sequence)
        self._cells = [cell for cell in self._cells if cell.owners]
        return True

    def clear(self) -> None:
        self._cells = []

    def is_end(self, token: int) -> bool:
        return token in self.ends

    def _free_slots(self) -> Iterator[int]:
        taken = {cell.slot for cell in self._cells}
        return (slot for slot in range(self.cells) if slot not in taken)

    def held(self, sequence: int = 0) -> list[int]:
        """Return the tokens in the cells of a sequence id, by position."""
        return [token for _, token in self._visible(sequence, self.cells * 2)]

    def _check(self, rows: list[BatchRow]) -> None:
        """Raise RuleBroken for a batch that llama_batch_allocr::init refuses."""
        wanted = sum(row.output for row in rows)
        if not rows or len(rows) > self.batch_rows:
            raise RuleBroken(f"{len(rows)} rows in a batch of at most {self.batch_rows}: GGML_ASSERT")
        if wanted > self.max_outputs:
            raise RuleBroken(f"{wanted} outputs in a context made for {self.max_outputs}: GGML_ASSERT")
        if 0 < wanted < self.min_outputs:
            raise RuleBroken(f"{wanted} outputs, which a kernel of its own may compute")
        newest: dict[int, int] = {}
        together: dict[int, set[int]] = {}
        for token, position, owners, _ in rows:
            if not 0 <= token < self.vocabulary:
                raise RuleBroken(f"token {token} is not in the vocabulary")
            if not owners or len(set(owners)) != len(owners):
                raise RuleBroken(f"sequence ids {owners}")
            for owner in owners:
                self._check_sequence(owner)
                held = self._last_position(owner)
                if self._last_position(owners[0]) != held:
                    raise RuleBroken(f"sequences {owners[0]} and {owner} are coupled but have diverged")
                expected = newest.get(owner, held)
                if position not in (expected, expected + 1) or position <= held:
                    raise RuleBroken(f"sequence {owner} has {expected} and the batch continues with {position}")
                if self.max_rollback is not None and (owner or position != expected + 1):
                    raise RuleBroken("a recurrent state takes one chain of tokens in sequence 0")
                newest[owner] = position
                together[owner] = together.get(owner, set(owners)) & set(owners)
                if not together[owner]:
                    raise RuleBroken(f"sequence {owner} belongs to incompatible sets")

    def _goes_back(self, start: int, end: int) -> bool:
        """Whether the tokens from `start` to `end` can be removed. Removing the last tokens uses up the snapshots."""
        last = self._last_position(0)
        if start > last or 0 <= end <= last:
            return True
        if last + 1 - start > self._snapshots:
            return False
        self._snapshots = 0
        return True

    def _check_order(self, sequence: int, position: int) -> None:
        seen = [cell for cell in self._cells if sequence in cell.owners and cell.position <= position]
        slots = [cell.slot for cell in sorted(seen, key=lambda cell: cell.position)]
        if slots != sorted(slots):
            raise RuleBroken(f"sequence {sequence} lies in cells {slots}, which is not the order of its tokens")

    def _check_sequence(self, sequence: int) -> None:
        if not 0 <= sequence < self.ids:
            raise RuleBroken(f"sequence {sequence} of {self.ids}: GGML_ASSERT")

    def _last_position(self, sequence: int) -> int:
        return max((cell.position for cell in self._cells if sequence in cell.owners), default=-1)

    def _visible(self, sequence: int, position: int) -> list[tuple[int, int]]:
        return sorted(
            (cell.position, cell.token) for cell in self._cells if sequence in cell.owners and cell.position <= position
        )

    def _in(self, start: int, end: int) -> list[Cell]:
        return [cell for cell in self._cells if cell.position >= max(start, 0) and (end < 0 or cell.position < end)]

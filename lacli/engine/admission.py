"""Admission of sequences to slots and cells: reuse, shared beginnings, and which cells are freed when they run out.

The slot of an ended sequence keeps its cells until they are needed. A new prompt reuses an idle slot if at least half
of the slot's tokens are the prompt's beginning. When cells run out, idle slots are emptied, the longest unused first.
Then the newest sequence loses its cells; it is prefilled again from its tokens when enough cells are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lacli.context import Context
from lacli.engine.cells import Cells
from lacli.engine.step import TokenSequence
from lacli.errors import UsageError
from lacli.modes import common_prefix

HEADROOM = 16
"""A sequence gets cells only if this many more than its tokens are free: otherwise it would soon lose them again."""

MIN_SHARED = 64
"""The fewest tokens for which a sequence shares cells or waits to share them: as rows they cost several plain steps."""

MOST_IDLE, IDLE_SHARE = 4, 1 / 4
"""The most idle slots that keep cells (one always does), and their share of all cells if idle cells cost time."""


class Admission:
    """The slots of a context, each a range of sequence ids, and the sequences in the order of their arrival.

    `ids`: sequence ids of each slot. `limit`: the most tokens of a sequence. `shares`: whether sequences may share
    cells. A sequence call changes ids of one slot only, so no sequence can change another sequence's cells.
    """

    def __init__(self, context: Context, slots: int, ids: int, limit: int, *, shares: bool) -> None:
        self._context = context
        self._shares = shares and context.can_share
        self._most_idle_cells = int(context.cells * (IDLE_SHARE if context.passes_all_cells else 1))
        self._slots = [Cells(context, range(place * ids, (place + 1) * ids), limit) for place in range(slots)]
        self.sequences: list[TokenSequence] = []

    @property
    def idle(self) -> list[Cells]:
        """The slots without a sequence, in the order of their last use, oldest first."""
        taken = [each.cells for each in self.sequences]
        return sorted((slot for slot in self._slots if slot not in taken), key=lambda slot: slot.last_use)

    def slot(self, number: int | None = None) -> Cells:
        """Return the slot `number`, from 0 to the number of slots - 1; for None, return the slot used last."""
        return max(self._slots, key=lambda slot: slot.last_use) if number is None else self._slots[number]

    def refill(self, slot: Cells, tokens: Sequence[int], fill: Callable[[int], bool] = lambda first: True) -> None:
        """Empty an idle slot, and fill it with `tokens`, whose cells `fill` writes.

        `fill`: takes the slot's first id; returns False if cells are too few. The default is for empty `tokens`.
        Raises UsageError if cells are too few, or if an answer uses the slot.
        """
        if slot not in self.idle:
            raise UsageError("the slot is in use by an answer", "try again when the answer has ended")
        self._cut(slot, 0)
        self.find_cells(len(tokens), slot)
        if not fill(slot.first_id):
            slot.cut(0)
            raise UsageError(f"the context has no room for {len(tokens):,} saved tokens", "try a larger -c")
        slot.tokens, slot.past = [*tokens], len(tokens)

    def take_slot(self, prompt: Sequence[int], *, reuses: bool) -> Cells:
        """Choose an idle slot for a prompt, and cut its cache back to the tokens that are the prompt's beginning.

        With `reuses`, the slot with the most such tokens is chosen, if they are at least half of its tokens. Else an
        empty slot is chosen; if no slot is empty, the slot unused for the longest time is emptied.
        """
        common = {slot: slot.common(prompt[:-1]) if reuses else 0 for slot in self.idle}
        alike = [slot for slot in common if slot.past and 2 * common[slot] >= slot.past]
        empty = [slot for slot in common if not slot.past]
        slot = max(alike, key=common.__getitem__) if alike else [*empty, *common][0]
        self._cut(slot, common[slot])
        slot.tokens = [*prompt]
        return slot

    def free_slot(self, sequence: TokenSequence) -> None:
        """Remove a sequence; its slot is idle, and keeps its cells.

        If too many slots or cells are idle, empty the slots that have been idle for the longest time.
        """
        sequence.cells.last_use = 1 + max(slot.last_use for slot in self._slots)
        self.sequences.remove(sequence)
        filled = [slot for slot in self.idle if slot.past]
        while len(filled) > MOST_IDLE or (
            len(filled) > 1 and sum(slot.own_cells for slot in filled) > self._most_idle_cells
        ):
            self._cut(filled.pop(0), 0)

    def give_cells(self) -> None:
        """Give cells to the sequences without cells, in the order of their arrival, as long as enough are free."""
        # A suspect must not spoil another sequence again.
        one_by_one = any(each.is_suspect for each in self.sequences)
        for sequence in self.sequences:
            if sequence.has_cells or (one_by_one and any(each.has_cells for each in self.sequences)):
                continue
            slot = sequence.cells
            source, shared, coming = self._longest_beginning(sequence)
            if coming - max(shared, slot.past) >= MIN_SHARED:
                continue
            if shared < max(MIN_SHARED, slot.past + 1):
                source, shared = None, slot.past
            fits = self.find_cells(len(sequence.tokens) - shared + HEADROOM, slot)
            if not fits and any(each.has_cells for each in self.sequences):
                return
            sequence.has_cells = True
            if source:
                self._cut(slot, 0)
                slot.share_beginning(source, shared)
            if sequence.reused is None:
                sequence.reused = slot.past

    def find_cells(self, cells: int, kept: Cells | None = None) -> bool:
        """Empty idle or waiting slots, not `kept`, until `cells` cells are free. Return False if this frees too few."""
        while self._used_cells() + cells > self._context.cells:
            if not self.empty_oldest(kept):
                return False
        return True

    def empty_oldest(self, kept: Cells | None = None) -> bool:
        """Empty the slot idle for longest, or else a waiting sequence's, not `kept`. Return False if all are empty."""
        waiting = (each.cells for each in self.sequences if not each.has_cells)
        slot = next((slot for slot in (*self.idle, *waiting) if slot.past and slot is not kept), None)
        if slot:
            self._cut(slot, 0)
        return slot is not None

    def clear(self, sequence: TokenSequence) -> None:
        """Remove the cells of a sequence. It goes on when `give_cells` finds enough again."""
        self._cut(sequence.cells, 0)
        sequence.has_cells, sequence.prefill = False, len(sequence.tokens) - 1

    def start_over(self) -> list[TokenSequence]:
        """Empty the cache after a NumbersError, and return the sequences that had cells, marked as suspects."""
        # Without flash attention llama.cpp's masks let NaN through: one sequence's cells spoil all others.
        suspects = [each for each in self.sequences if each.has_cells]
        for slot in self._slots:
            self._cut(slot, 0)
        self._context.clear()
        for each in suspects:
            self.clear(each)
            each.is_suspect = True
        return suspects

    def mend(self) -> None:
        """Make cells and records agree after an interrupt, which may have come between any two calls of a step."""
        for slot in self._slots:
            # A second copy of the same cells would count twice.
            slot.unshare()
            slot.cut(max(len(slot.tokens) - 1, 0))

    def _used_cells(self) -> int:
        """Return a sum: the cells of idle slots, and the cells that sequences have or are about to have."""
        idle = sum(slot.own_cells for slot in self.idle)
        return idle + sum(
            (len(each.tokens) if each.has_cells else each.cells.past) - each.cells.borrowed for each in self.sequences
        )

    def _longest_beginning(self, sequence: TokenSequence) -> tuple[Cells | None, int, int]:
        """Return the running slot with the most tokens of a sequence's beginning in its cache, and their number.

        None and 0 without such a slot. The third result: the most such tokens of any running slot after its prefill.
        """
        source, shared, coming = None, 0, 0
        for other in self.sequences if self._shares and not sequence.score else ():
            ahead = common_prefix(other.tokens, sequence.tokens[:-1])
            if other is sequence or not other.has_cells or ahead < other.cells.whole:
                continue
            coming = max(coming, ahead)
            if (common := other.cells.common(sequence.tokens[:-1])) > shared:
                source, shared = other.cells, common
        return source, shared, coming

    def _cut(self, slot: Cells, length: int) -> None:
        """Cut a slot back to its first `length` tokens. Slots that share its cells keep them."""
        slot.cut(length)
        for each in self._slots:
            if each is slot or each.source is slot:
                each.borrowed = min(each.borrowed, slot.past)

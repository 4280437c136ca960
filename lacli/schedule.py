"""Many texts in one engine: which of them decode in the next step, and which wait for cells of the cache.

Every step serves all texts that have cells: a row and its guesses for each, and pieces of the prompts that are not
decoded yet, or one and the other in turns. A slot whose text has ended keeps its cells for a prompt that begins like
it, until they are needed. When cells run out idle slots are emptied, oldest first; then the newest text is cleared, and
is decoded again from its tokens when there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from lacli.cache import EngineStep, SingleEngine
from lacli.decode import Decoder, TextState
from lacli.errors import SamplingError
from lacli.modes import Mode, common_prefix
from lacli.settings import DecodeSettings
from lacli.stats import Finish, Step
from lacli.verify import Verifier

HEADROOM = 16
"""Cells that a text needs beyond its tokens to be given cells: fewer would soon be taken from it again."""

DECODED_PER_READ_S = 1 / 3
"""Seconds in which texts decode for each second in which a prompt is read beside them, where both take turns."""

OLDEST_PART = 4
"""One of this many rows that a step reads is the oldest prompt's, the others go to the shortest prompts first.

Otherwise it is never read where shorter ones keep coming. Chosen: a server has four places by default.
"""

MIN_SHARED = 64
"""Tokens of a common beginning from which a text shares the cells of one that runs, or waits until that has read them.

As rows they cost several plain steps (benchmarks/step_costs.jsonl); waiting costs one or two.
"""

MOST_IDLE, IDLE_SHARE = 4, 1 / 4
"""Idle slots that keep their cells, and the part of the context that these may have where attention passes all cells.

The one that was used last keeps its cells in any case: a chat that is longer goes on there.
"""


class Slot(SingleEngine):
    """A range of sequence ids, with the cells of one text at a time.

    `tokens`: of the text that has it or had it last; the cache holds a beginning of them. `source`: the slot with which
    it shares the cells of its first `shared` tokens.
    """

    def __init__(self, sequences: range, step: EngineStep, cells: int) -> None:
        super().__init__(step.engine, sequences, step, cells)
        self.tokens: list[int] = []
        self.source: Slot | None = None
        self.shared = 0

    @property
    def own_cells(self) -> int:
        """Cells that it has for itself."""
        return self.past - self.shared

    def common(self, tokens: Sequence[int]) -> int:
        """Tokens at the beginning of `tokens` that the cache holds."""
        return min(common_prefix(self.tokens, tokens), self.past)

    def share(self, source: Slot, length: int) -> None:
        """Share the cells of the first `length` tokens of another slot; nothing is held before."""
        self.cache.share_with(source.cache, length)
        self.source, self.shared = source, length


@dataclass(eq=False)
class SharedText(TextState):
    """A text among others.

    `has_cells`: False while it waits for them. `is_prefilled`: the cache holds all of it but what the next step
    decodes. `reused`: tokens of its prompt that were decoded already when it first got cells. `finish`: why it has
    ended, None while it goes on. `is_held`: True while its reader wants no step of it; its cells go where another text
    needs them.
    """

    has_cells: bool = False
    is_prefilled: bool = False
    reused: int | None = None
    finish: Finish | None = None
    is_held: bool = False

    @property
    def slot(self) -> Slot:
        """Where its cells are."""
        assert isinstance(self.group, Slot), "every text has a slot"
        return self.group


class News(NamedTuple):
    """What a step brought to a text. `step`: None where the text ended without one. `error`: what ended it, or None.

    `reads`: True where the step has read the last of the text's prompt too, or of what was decoded again.
    """

    text: SharedText
    step: Step | None = None
    error: SamplingError | None = None
    reads: bool = False


class StepPlan(NamedTuple):
    """What the next step decodes, oldest texts first.

    `ready`: texts that take a step. `pieces`: those of which a piece of the prompt is prepared. `makes_wait`: True if
    the step only reads while texts could decode.
    """

    ready: list[SharedText]
    pieces: list[SharedText]
    makes_wait: bool


class Schedule:
    """The texts of one engine in the order of their arrival, at most one for each of its slots.

    A slot is a range of sequence ids. No call names other ids, so that no text can touch another's cells. `idle`: slots
    without a text, the one that was used longest ago first. `cells`: tokens that a text may have. `latest`: the mode of
    the text that came last, for what it knows of the machine.
    """

    def __init__(self, decoder: Decoder, places: int, longest: int = 0, *, reads_first: bool = False) -> None:
        """`decoder`: takes the steps, and decodes nothing else in the meantime. `places`: the number of slots.

        `longest`: tokens of a text among others at most, 0 for as many as the model was trained with.
        `reads_first`: let no text decode before the prompts of all are read, for measurements of steps alone.
        """
        engine, size = decoder.group.engine, decoder.settings.sequences
        assert places * size <= engine.sequences, "the context was made for fewer sequences"
        self._decoder, self._engine, self.places = decoder, engine, places
        self._reads_first = reads_first
        # Seconds that texts may decode before the next step that only reads.
        self._owed_s = 0.0
        step = EngineStep(engine)
        # Alone a text may go on behind what the model was trained for, if -c says so; among others -c is for all.
        self.cells = engine.cells if places == 1 else min(engine.cells, longest or engine.trained_context)
        self.idle = [Slot(range(place * size, (place + 1) * size), step, self.cells) for place in range(places)]
        # Cells of one text between those of another are not in the order of a text.
        self._shares = engine.can_share and not decoder.settings.ordered
        self._most_idle_cells = int(engine.cells * (IDLE_SHARE if engine.passes_all_cells else 1))
        self.texts: list[SharedText] = []
        self.latest: Mode | None = None
        engine.clear()

    @property
    def is_full(self) -> bool:
        """True while every slot has a text."""
        return not self.idle

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int = -1,
        *,
        verifier: Verifier | None = None,
        sampled: bool | None = None,
        plain: bool = False,
        own: DecodeSettings | None = None,
    ) -> SharedText:
        """Take in a text, which decodes from the next step on that has cells for it.

        `max_tokens`: as `Decoder.generate` takes it. `verifier`: chooses the text's tokens, None for the
        most probable ones. `sampled`: whether it draws them, which it does by default. `plain`: one token a step.
        `own`: settings of a text with a smaller window or fewer guesses than the others.
        Raises PromptError as `Decoder.generate` does.
        """
        sampled = verifier is not None if sampled is None else sampled
        self.check_prompt(prompt)
        self.latest = self._decoder.new_mode(self.latest, sampled=sampled)
        mode = self.latest
        if own:
            mode = self._decoder.new_mode(sampled=sampled, settings=own)
        slot = self._take_slot(prompt)
        text = SharedText(
            [*prompt],
            mode.without_guesses() if plain else mode,
            slot,
            verifier,
            max_tokens if max_tokens >= 0 else None,
        )
        slot.tokens = text.tokens
        if verifier:
            verifier.begin(prompt)
        text.mode.begin(text.tokens)
        self.texts.append(text)
        return text

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise PromptError for a prompt without tokens, or with more than a text may have; safe in any thread."""
        self._decoder.check_prompt(prompt, self.cells)

    def end(self, text: SharedText, finish: Finish = "interrupt") -> None:
        """End a text, whose slot is free for another at once; nothing happens to one that has ended."""
        if text.finish is not None:
            return
        text.finish = finish
        self.texts.remove(text)
        self.idle.append(text.slot)
        holding = [slot for slot in self.idle if slot.past]
        while len(holding) > MOST_IDLE or (
            len(holding) > 1 and sum(slot.own_cells for slot in holding) > self._most_idle_cells
        ):
            self._cut(holding.pop(0), 0)

    def step(self) -> list[News]:
        """Take one step of all texts that have cells; return what it brought, in the order of their arrival."""
        news = [News(text) for text in [*self.texts] if not self._goes_on(text)]
        self._give_cells()
        # Guesses are worth more than what may be asked again.
        self._find_cells(min(len(self.texts) * self._decoder.settings.max_rows, self._engine.batch_rows))
        while True:
            ready, pieces, makes_wait = self._rows()
            if not ready and not pieces:
                return news
            begin = perf_counter()
            taken = self._decoder.step(ready, [text.slot for text in pieces])
            seconds = perf_counter() - begin
            if taken is not None:
                self._owed_s = seconds * DECODED_PER_READ_S if makes_wait else self._owed_s - seconds
                if not any(text.is_prefilled for text in ready):
                    rows = sum(len(text.slot.part.again) for text in [*ready, *pieces])
                    [*ready, *pieces][0].mode.prefilled(rows, seconds)
                break
            if self._empty_oldest():
                continue
            *others, newest = sorted((text for text in self.texts if text.has_cells), key=lambda text: text.is_held)
            if not others:
                # Alone it has every cell there is.
                self.end(newest, "length")
                return [*news, News(newest)]
            self._clear(newest)
        for text in pieces:
            text.slot.commit_prompt()
            text.is_prefilled = text.group.past == len(text.tokens) - 1
        for text, found in zip(ready, taken, strict=True):
            reads, text.is_prefilled = not text.is_prefilled, True
            news.append(self._told(text, found, reads=reads))
        return news

    def _told(self, text: SharedText, found: Step | SamplingError, *, reads: bool) -> News:
        if isinstance(found, SamplingError):
            self.end(text)
            return News(text, error=found)
        if found.finish:
            self.end(text, found.finish)
        return News(text, found, reads=reads)

    def _goes_on(self, text: SharedText) -> bool:
        """True unless the text is at its limit or fills the context."""
        if text.remaining != 0 and (not text.is_prefilled or text.room(self._decoder.settings.min_outputs) > 0):
            return True
        self.end(text, "length")
        return False

    def _rows(self) -> StepPlan:
        """Choose what the next step decodes.

        The last piece of a prompt and the text's first step are one batch, but where prompts are read first. Steps that
        only read and steps that only decode take turns where both together would take longer.
        """
        texts = [text for text in self.texts if text.has_cells and not text.is_held]
        ready, pieces = [text for text in texts if text.is_prefilled], []
        left = min(self._piece_rows(bool(ready)), self._engine.batch_rows - len(ready))
        missing_of = {text: len(text.tokens) - 1 - text.group.past for text in texts if not text.is_prefilled}
        rows = len(ready) + min(left, sum(missing_of.values()) + len(missing_of))
        takes_turns = bool(ready) and rows > self._engine.mixed_rows and not self._reads_first
        makes_wait = takes_turns and self._owed_s <= 0
        if takes_turns:
            ready, missing_of = ([], missing_of) if makes_wait else (ready, {})
        oldest = next(iter(missing_of), None)
        kept = max(left // OLDEST_PART, 1)
        # A short prompt does not wait for a long one.
        for text, missing in sorted(missing_of.items(), key=lambda item: item[1]):
            kept = 0 if text is oldest else kept
            if missing < left - kept and not self._reads_first:
                left -= missing + 1
                ready.append(text)
            elif left > kept:
                read = min(missing, left - kept)
                text.slot.prepare_prompt(text.tokens, read)
                left -= read
                pieces.append(text)
        if missing_of:
            ready.sort(key=self.texts.index)
        return StepPlan([] if pieces and self._reads_first else ready, pieces, makes_wait)

    def _piece_rows(self, others_wait: bool) -> int:
        """Rows of a prompt that a step reads. `others_wait`: whether texts could decode meanwhile."""
        whole, apart = self._engine.prefill_rows, self._engine.mixed_rows + 1
        # A text that arrives waits for the whole step. Half of a prefill's rows are as fast; a mixture's
        # experts would have an eighth of theirs, too few where nothing waits yet.
        is_short = others_wait or (self.places > 1 and 2 * apart >= whole)
        return min(whole, apart) if is_short and not self._reads_first else whole

    def _take_slot(self, prompt: Sequence[int]) -> Slot:
        """Take the idle slot of which at least half is the beginning of a prompt, and cut it back to that.

        Else an empty one, else the one that was used longest ago, emptied.
        """
        common = {slot: slot.common(prompt[:-1]) for slot in self.idle}
        alike = [slot for slot in self.idle if slot.past and 2 * common[slot] >= slot.past]
        empty = [slot for slot in self.idle if not slot.past]
        slot = max(alike, key=common.__getitem__) if alike else [*empty, *self.idle][0]
        self.idle.remove(slot)
        self._cut(slot, common[slot] if alike else 0)
        return slot

    def _give_cells(self) -> None:
        """Give cells to the texts that wait, in the order of their arrival, as far as there are enough."""
        headroom = HEADROOM
        for text in self.texts:
            if text.has_cells or text.is_held:
                continue
            slot = text.slot
            source, shared, coming = self._longest_beginning(text)
            if coming - max(shared, slot.past) >= MIN_SHARED:
                continue
            if shared < max(MIN_SHARED, slot.past + 1):
                source, shared = None, slot.past
            fits = self._find_cells(len(text.tokens) - shared + headroom, slot)
            if not fits and (held := next((each for each in self.texts if each.is_held and each.has_cells), None)):
                self._clear(held)
                self._give_cells()
                return
            if not fits and any(each.has_cells for each in self.texts):
                return
            headroom += HEADROOM
            text.has_cells = True
            if source:
                self._cut(slot, 0)
                slot.share(source, shared)
            if text.reused is None:
                text.reused = slot.past
            text.is_prefilled = slot.past == len(text.tokens) - 1

    def _find_cells(self, cells: int, kept: Slot | None = None) -> bool:
        """Empty slots as `_empty_oldest` does until `cells` are free; False if there are too few all the same."""
        while self._used_cells() + cells > self._engine.cells:
            if not self._empty_oldest(kept):
                return False
        return True

    def _used_cells(self) -> int:
        """Cells that idle slots have, and that texts with cells have or are about to have."""
        idle = sum(slot.own_cells for slot in self.idle)
        return idle + sum(
            (len(text.tokens) if text.has_cells else text.slot.past) - text.slot.shared for text in self.texts
        )

    def _longest_beginning(self, text: SharedText) -> tuple[Slot | None, int, int]:
        """The slot of another text that holds most of the beginning of `text`, and the number of those tokens.

        Last the number of them that any other text will hold once its prompt is decoded.
        """
        source, shared, coming = None, 0, 0
        for other in self.texts if self._shares else ():
            if other is text or not other.has_cells:
                continue
            coming = max(coming, common_prefix(other.tokens, text.tokens[:-1]))
            if other.slot.common(text.tokens[:-1]) > shared:
                source, shared = other.slot, other.slot.common(text.tokens[:-1])
        return source, shared, coming

    def _clear(self, text: SharedText) -> None:
        """Take the cells of a text, which goes on once there are enough again."""
        self._cut(text.slot, 0)
        text.has_cells = text.is_prefilled = False

    def _empty_oldest(self, kept: Slot | None = None) -> bool:
        """Empty the idle slot that was used longest ago, or one whose text waits, but not `kept`; False without one."""
        waiting = (text.slot for text in self.texts if not text.has_cells)
        slot = next((slot for slot in (*self.idle, *waiting) if slot.past and slot is not kept), None)
        if slot:
            self._cut(slot, 0)
        return slot is not None

    def _cut(self, slot: Slot, length: int) -> None:
        """Cut a slot back to its first `length` tokens; cells that others share stay with them."""
        slot.cut(length)
        for each in [slot, *self.idle, *(text.slot for text in self.texts)]:
            if each is slot or each.source is slot:
                each.shared = min(each.shared, slot.past)

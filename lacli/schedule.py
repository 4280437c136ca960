"""Many texts in one engine: which of them decode in the next step, and which wait for cells of the cache.

Every step serves all texts that have cells: a row and its guesses for each, and pieces of the prompts that are not
decoded yet, or one and the other in turns. A text that has ended is saved for prompts that begin like it (saved.py); in
an engine that cannot save it keeps its cells until they are needed. When cells run short the youngest text is set
aside: it is saved too, or its tokens stay, and it is decoded again from these when there is room.
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
from lacli.saved import SavedText, SavedTexts
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

MIN_AWAITED = 32
"""Tokens of a common beginning that are worth waiting for while another text's prompt is decoded.

As rows they cost 1.3 to 12 plain steps (benchmarks/step_costs.jsonl); waiting costs one or two.
"""

MIN_RESTORED = 8
"""Tokens for which a saved text is restored, whole: 400 of the 0.5B shape take 5 ms, and decoding one takes 4."""


@dataclass(eq=False)
class SharedText(TextState):
    """A text among others.

    `has_cells`: False while it waits for them. `is_prefilled`: the cache holds all of it but what the next step
    decodes. `borrowed`: tokens at its beginning whose cells it shares with the text `lender`. `reused`: tokens of its
    prompt that it borrowed when it first got cells. `finish`: why it has ended, None while it goes on. `is_held`: True
    while its reader wants no step of it; its cells go where another text needs them.
    """

    has_cells: bool = False
    is_prefilled: bool = False
    borrowed: int = 0
    lender: SharedText | None = None
    reused: int | None = None
    finish: Finish | None = None
    is_held: bool = False


class News(NamedTuple):
    """What a step brought to a text. `step`: None where the text ended without one. `error`: what ended it, or None.

    `reads`: True where the step has read the last of the text's prompt too, or of what was set aside.
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
    """The texts of one engine in the order of their arrival, at most one for each of its `places`.

    A place is a range of sequence ids; further ids of the engine hold a text each that has ended. No call names other
    ids, so that no text can touch another's cells. `ended`: texts whose cells may serve others, oldest first. `saved`:
    those that serve them from memory. `cells`: tokens that a text may have. `latest`: the mode of the text that came
    last, for what it knows of the machine.
    """

    def __init__(self, decoder: Decoder, places: int, longest: int = 0, *, reads_first: bool = False) -> None:
        """`decoder`: takes the steps, and decodes nothing else in the meantime.

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
        cells = engine.cells if places == 1 else min(engine.cells, longest or engine.trained_context)
        ranges = (range(place * size, (place + 1) * size) for place in range(places))
        self.cells = cells
        self._free = [SingleEngine(engine, ids, step, cells) for ids in ranges][::-1]
        # Freed cells between those of others are not in the order of a text.
        self._lends = engine.can_lend and not decoder.settings.ordered
        self._saver = engine.saver if self._lends else None
        # As many tokens as the cache has cells: at most its memory again.
        self.saved = SavedTexts(engine.cells)
        rest = range(places * size, engine.sequences if self._lends and not self._saver else 0)
        self._rests = [SingleEngine(engine, range(each, each + 1), step) for each in rest]
        self.texts: list[SharedText] = []
        self.ended: list[SharedText] = []
        self.latest: Mode | None = None
        engine.clear()

    @property
    def is_full(self) -> bool:
        """True while every place is taken."""
        return not self._free

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
        text = SharedText(
            [*prompt],
            mode.without_guesses() if plain else mode,
            self._free.pop(),
            verifier,
            max_tokens if max_tokens >= 0 else None,
        )
        if verifier:
            verifier.begin(prompt)
        text.mode.begin(text.tokens)
        self.texts.append(text)
        return text

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise PromptError for a prompt without tokens, or with more than a text may have; safe in any thread."""
        self._decoder.check_prompt(prompt, self.cells)

    def end(self, text: SharedText, finish: Finish = "interrupt") -> None:
        """End a text, whose cells are free for others at once; nothing happens to one that has ended."""
        if text.finish is not None:
            return
        text.finish = finish
        if self.ended and not self._rests:
            self._forget(self.ended[0])
        self.texts.remove(text)
        place = _cells(text)
        self._free.append(place)
        self._save(text)
        if self._rests and place.past and self._lends:
            text.mode, text.group = Mode(), self._rests.pop()
            _cells(text).cache.borrow(place.cache, place.past)
            place.clear()
            self.ended.append(text)
        else:
            self._take_cells(text)

    def step(self) -> list[News]:
        """Take one step of all texts that have cells; return what it brought, in the order of their arrival."""
        news = [News(text) for text in [*self.texts] if not self._goes_on(text)]
        self._give_cells()
        if self.ended:
            # Guesses are worth more than what may be asked again.
            self._find_cells(min(len(self.texts) * self._decoder.settings.max_rows, self._engine.batch_rows))
        while True:
            ready, pieces, makes_wait = self._rows()
            if not ready and not pieces:
                return news
            begin = perf_counter()
            taken = self._decoder.step(ready, [_cells(text) for text in pieces])
            seconds = perf_counter() - begin
            if taken is not None:
                self._owed_s = seconds * DECODED_PER_READ_S if makes_wait else self._owed_s - seconds
                if not any(text.is_prefilled for text in ready):
                    rows = sum(len(_cells(text).part.again) for text in [*ready, *pieces])
                    [*ready, *pieces][0].mode.prefilled(rows, seconds)
                break
            if self.ended:
                self._forget(self.ended[0])
                continue
            *others, youngest = sorted((text for text in self.texts if text.has_cells), key=lambda text: text.is_held)
            if not others:
                # Alone it has every cell there is.
                self.end(youngest, "length")
                return [*news, News(youngest)]
            self._set_aside(youngest)
        for text in pieces:
            _cells(text).commit_prompt()
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
                _cells(text).prepare_prompt(text.tokens, read)
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

    def _give_cells(self) -> None:
        """Give cells to the texts that wait, in the order of their arrival, as far as there are enough."""
        headroom = HEADROOM
        for text in self.texts:
            if text.has_cells or text.is_held:
                continue
            lender, shared, coming = self._longest_prefix(text)
            saved, kept = self.saved.longest(text.tokens[:-1])
            if coming - max(shared, kept) >= MIN_AWAITED:
                continue
            needed = len(text.tokens) - shared
            if saved and kept >= shared + MIN_RESTORED:
                lender, shared, needed = None, kept, max(len(text.tokens), len(saved.tokens))
            else:
                saved = None
            fits = self._find_cells(needed + headroom, lender, shared)
            if not fits and (held := next((each for each in self.texts if each.is_held and each.has_cells), None)):
                self._set_aside(held)
                self._give_cells()
                return
            if not fits and any(each.has_cells for each in self.texts):
                return
            headroom += HEADROOM
            text.has_cells = True
            if saved:
                assert self._saver, "a text was saved"
                shared = _cells(text).cache.restore(self._saver, saved.cells, len(saved.tokens), shared)
            if lender:
                _cells(text).cache.borrow(_cells(lender).cache, shared)
                text.lender, text.borrowed = lender, shared
                if lender in self.ended and lender.group.past == shared:
                    self._forget(lender)
            if text.reused is None:
                text.reused = shared
            text.is_prefilled = text.group.past == len(text.tokens) - 1

    def _find_cells(self, cells: int, lender: SharedText | None = None, shared: int = 0) -> bool:
        """Forget texts that have ended, oldest first, until `cells` are free; False if there are too few all the same.

        `lender`: is to lend its first `shared` tokens, and so forgets only what is behind them.
        """
        while self._used_cells() + cells > self._engine.cells:
            idle = next((each for each in self.ended if each is not lender), None)
            if idle:
                self._forget(idle)
            elif lender in self.ended and lender.group.past > shared:
                # A text that shares more of it would be the lender itself.
                lender.group.cut(shared)
                lender.borrowed = min(lender.borrowed, shared)
            else:
                return False
        return True

    def _holding(self) -> list[SharedText]:
        """The texts that have cells, those that have ended last."""
        return [*(text for text in self.texts if text.has_cells), *self.ended]

    def _used_cells(self) -> int:
        running = sum(len(text.tokens) - text.borrowed for text in self.texts if text.has_cells)
        return running + sum(text.group.past - text.borrowed for text in self.ended)

    def _forget(self, text: SharedText) -> None:
        """Take the cells of a text that has ended; those that others share stay."""
        self.ended.remove(text)
        self._take_cells(text)
        self._rests.append(_cells(text))

    def _longest_prefix(self, text: SharedText) -> tuple[SharedText | None, int, int]:
        """The text whose cells hold the most of the beginning of `text`, and the number of those tokens.

        Last the number of tokens that any text will hold once its prompt is decoded.
        """
        lender, shared, coming = None, 0, 0
        for other in self._holding() if self._lends else ():
            same = common_prefix(other.tokens, text.tokens[:-1])
            coming = max(coming, same if other.finish is None else min(same, other.group.past))
            if min(same, other.group.past) > shared:
                lender, shared = other, min(same, other.group.past)
        return lender, shared, coming

    def _save(self, text: SharedText) -> None:
        """Save what a text holds, where that can be, for those that begin like it, and for itself where it goes on."""
        cache = _cells(text).cache
        if self._saver and cache.past:
            self.saved.keep(SavedText(text.tokens[: cache.past], cache.save(self._saver)))

    def _set_aside(self, text: SharedText) -> None:
        """Take the cells of a text that goes on once there are enough again."""
        self._save(text)
        self._take_cells(text)

    def _take_cells(self, text: SharedText) -> None:
        """Take a text's cells away; those that it shares stay with the others."""
        if text.has_cells:
            heirs = sorted((each for each in self._holding() if each.lender is text), key=lambda each: each.borrowed)
            if heirs:
                heir = heirs.pop()
                heir.lender, heir.borrowed = text.lender, min(text.borrowed, heir.borrowed)
                for each in heirs:
                    each.lender = heir
            text.group.clear()
            text.lender, text.borrowed = None, 0
            text.has_cells = text.is_prefilled = False


def _cells(text: SharedText) -> SingleEngine:
    assert isinstance(text.group, SingleEngine), "every text has a place"
    return text.group

"""The engine: prompts in, one batch a step, accepted tokens out, for as many sequences as it has slots.

Every step serves all sequences that have cells: the input and the drafts of each, and pieces of unread prompts, or one
and the other in turns.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from lacli.context import Context, Reading, unseen
from lacli.engine.admission import Admission
from lacli.engine.step import Stepper, TokenSequence
from lacli.errors import PromptError, SamplingError
from lacli.modes import MakeMode, Mode, new_mode
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.stats import Finish, Step
from lacli.verify import Verifier

DECODED_PER_READ_S = 1 / 3
"""Seconds in which sequences decode for each second in which a prompt is read, if both take turns."""

OLDEST_PART = 4
"""One of this many rows that a step reads is the oldest prompt's, the others go to the shortest prompts first.

Otherwise it is never read while shorter ones keep coming. Chosen: a server has four slots by default.
"""


@dataclass(frozen=True)
class SequenceOptions:
    """How one sequence is decoded.

    `max_tokens`: after the prompt, -1 for no limit. `verifier`: chooses the tokens, None takes the most probable ones.
    """

    max_tokens: int = -1
    verifier: Verifier | None = None


GREEDY = SequenceOptions()
"""The most probable tokens, without a limit."""


class Progress(NamedTuple):
    """What a step brought to a sequence. `step`: None if it ended without one. `error`: what ended it, or None.

    `sequence`: None for one that never got a slot.
    """

    sequence: TokenSequence | None
    step: Step | None = None
    error: Exception | None = None


class Engine:
    """Decodes up to `slots` sequences together; owns the cells of its context.

    `limit`: tokens that a sequence may have. `pool`: n-grams of all sequences.
    """

    def __init__(
        self,
        context: Context,
        settings: DecodeSettings,
        slots: int = 1,
        *,
        longest: int = 0,
        make_mode: MakeMode = new_mode,
    ) -> None:
        """`longest`: tokens of a sequence among several at most, 0 for as many as the model was trained with.

        `make_mode`: makes the mode of each new sequence.
        """
        self.slots, self._longest = slots, longest
        # Seconds that sequences may decode before the next step that only reads.
        self._owed_s = 0.0
        # Of the sequence that came last, for what it knows of the machine.
        self._latest: Mode | None = None
        self._is_torn = False
        self.use(context, settings, make_mode)

    def use(self, context: Context, settings: DecodeSettings, make_mode: MakeMode) -> None:
        """Decode in another context, with nothing in it, while no sequence runs."""
        self.context, self._make_mode = context, make_mode
        # Alone a sequence may go on behind what the model was trained for, if -c says so; otherwise -c is for all.
        longest = self._longest or context.trained_context
        self.limit = context.cells if self.slots == 1 else min(context.cells, longest)
        context.clear()
        ids = context.sequences if self.slots == 1 else settings.sequences
        # Cells of one sequence between those of another are not in the order of a sequence.
        self._admission = Admission(context, self.slots, ids, self.limit, shares=not settings.ordered)
        self._set(settings)

    def reconfigure(self, settings: DecodeSettings, make_mode: MakeMode | None = None) -> None:
        """Decode in another way from now on, while no sequence runs; cells stay."""
        assert not self.sequences, "settings change between sequences"
        self._make_mode = make_mode or self._make_mode
        if settings != self.settings or make_mode:
            self._set(settings)

    @property
    def settings(self) -> DecodeSettings:
        return self._stepper.settings

    @property
    def sequences(self) -> list[TokenSequence]:
        """The sequences that have not ended, in the order of their arrival."""
        return self._admission.sequences

    @property
    def is_full(self) -> bool:
        """True while every slot has a sequence."""
        return len(self.sequences) == self.slots

    def add(self, prompt: Sequence[int], options: SequenceOptions = GREEDY) -> TokenSequence:
        """Take in a sequence, which decodes from the next step on that has cells for it.

        Not while the engine is full. Raises PromptError as `check_prompt`.
        """
        self.check_prompt(prompt)
        self._begin_change()
        begin, verifier = perf_counter(), options.verifier
        self._latest = mode = self._make_mode(self.settings, self.pool, self.context, self._latest)
        slot = self._admission.take_slot(prompt)
        if verifier:
            verifier.begin(prompt)
        mode.begin(slot.tokens)
        remaining = options.max_tokens if options.max_tokens >= 0 else None
        sequence = TokenSequence(slot.tokens, mode, slot, verifier, remaining, added=begin)
        self.sequences.append(sequence)
        self._admission.give_cells()
        self._is_torn = False
        return sequence

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise PromptError for a prompt without tokens, or with more than a sequence may have; safe in any thread."""
        if not prompt:
            raise PromptError("the prompt has no tokens", "give some text")
        if len(prompt) > self.limit:
            what = f"the prompt has {len(prompt):,} tokens and the context {self.limit:,}"
            raise PromptError(what, f"{self.context_hint(len(prompt))}; a shorter prompt fits")

    def context_hint(self, tokens: int) -> str:
        """What -c there is for `tokens` and an answer of 512, as far as the model was trained for both."""
        longest = self.context.trained_context
        if tokens >= longest:
            return f"the model was trained for {longest:,} at most"
        return f"a larger context has room, -c {min(tokens + 512, longest)} or more"

    def end(self, sequence: TokenSequence, finish: Finish = "interrupt") -> None:
        """End a sequence, whose slot is free for another at once; nothing happens to one that has ended.

        The cache has its accepted tokens only.
        """
        if sequence in self.sequences:
            self._begin_change()
            self._end(sequence, finish)
            self._is_torn = False

    def steps(self, prompt: Sequence[int], options: SequenceOptions = GREEDY) -> Generator[Step]:
        """The steps of `decode` alone."""
        with closing(self.decode(prompt, options)) as found:
            for progress in found:
                if progress.step:
                    yield progress.step

    def end_all(self) -> None:
        for sequence in [*self.sequences]:
            self.end(sequence)

    def step(self) -> list[Progress]:
        """Take one step of all sequences that have cells; return what it brought, in the order of their arrival."""
        self._begin_change()
        progress = self._step()
        self._is_torn = False
        return progress

    def decode(
        self, prompt: Sequence[int], options: SequenceOptions = GREEDY, reading: Reading = unseen
    ) -> Generator[Progress]:
        """Decode one sequence alone, in the caller's thread: yield each of its steps, and its end if that has none.

        `reading`: entered during prefill. Leaving the iteration early leaves exactly the accepted tokens in the cache.
        Raises PromptError as `check_prompt`, SamplingError when a sampler has nothing left to choose from.
        """
        assert self.slots == 1, "several sequences are stepped together"
        # Ctrl-C may have come in the way of its end.
        self.end_all()
        try:
            sequence = self.add(prompt, options)
            missing = sequence.missing
            with reading(missing) as read:
                while sequence.finish is None and not sequence.is_prefilled:
                    yield from self.step()
                    read(missing - sequence.missing)
            while sequence.finish is None:
                for progress in self.step():
                    if progress.error:
                        raise progress.error
                    yield progress
        finally:
            self.end_all()

    def _step(self) -> list[Progress]:
        progress = [Progress(each) for each in [*self.sequences] if not self._goes_on(each)]
        if self.slots > 1:
            self._admission.give_cells()
            # Drafts are worth more than what may be asked again.
            self._admission.find_cells(min(len(self.sequences) * self.settings.max_rows, self.context.batch_rows))
        while True:
            ready, pieces, makes_wait = self._plan()
            if not ready and not pieces:
                return progress
            begin = perf_counter()
            taken = self._stepper.take(ready, pieces)
            seconds = perf_counter() - begin
            if taken is not None:
                break
            if self._admission.empty_oldest():
                continue
            *others, newest = (each for each in self.sequences if each.has_cells)
            if not others:
                # Alone it has every cell there is.
                self._end(newest, "length")
                return [*progress, Progress(newest)]
            self._admission.clear(newest)
        self._owed_s = seconds * DECODED_PER_READ_S if makes_wait else self._owed_s - seconds
        for sequence in pieces:
            sequence.cells.commit_prompt()
            sequence.is_prefilled = sequence.missing == 0
        progress += [self._booked(*each, begin) for each in zip(ready, taken, strict=True)]
        return progress

    def _booked(self, sequence: TokenSequence, found: Step | SamplingError, begin: float) -> Progress:
        """What a sequence's step was, and its end. `begin`: when the step began."""
        reads, sequence.is_prefilled = not sequence.is_prefilled, True
        if isinstance(found, SamplingError):
            self._end(sequence)
            return Progress(sequence, error=found)
        if not sequence.prompt_s:
            sequence.prompt_s = (perf_counter() if reads else begin) - sequence.added
        if reads:
            # The time and the rows of a prompt's last piece are the prompt's.
            found = found._replace(decode_s=0.0, rows=1 + found.drafted)
        if found.finish:
            self._end(sequence, found.finish)
        return Progress(sequence, found)

    def _end(self, sequence: TokenSequence, finish: Finish = "interrupt") -> None:
        sequence.finish = finish
        self._admission.free_slot(sequence)

    def _goes_on(self, sequence: TokenSequence) -> bool:
        """True unless the sequence is at its limit or fills the context."""
        if sequence.remaining != 0 and (not sequence.is_prefilled or self._stepper.room(sequence) > 0):
            return True
        self._end(sequence, "length")
        return False

    def _plan(self) -> tuple[list[TokenSequence], list[TokenSequence], bool]:
        """Choose the sequences that take the next step and those of which a piece of the prompt is laid out.

        Last whether the step only reads while sequences could decode. Among several sequences the last piece of a
        prompt and the sequence's first step are one batch. Steps that only read and steps that only decode take turns
        if both together would take longer.
        """
        able = [each for each in self.sequences if each.has_cells]
        if len(able) == 1 and able[0].is_prefilled:
            # Plain decoding of one sequence hides nothing of what Python costs.
            return able, [], False
        ready, pieces = [each for each in able if each.is_prefilled], []
        left = min(self._piece_rows(bool(ready)), self.context.batch_rows - len(ready))
        unread = [each for each in able if not each.is_prefilled]
        rows = len(ready) + min(left, sum(each.missing + 1 for each in unread))
        takes_turns = bool(ready and unread) and rows > self.context.mixed_rows
        makes_wait = takes_turns and self._owed_s <= 0
        if makes_wait:
            ready = []
        elif takes_turns:
            unread = []
        oldest = unread[0] if unread else None
        reserved = max(left // OLDEST_PART, 1)
        # A short prompt does not wait for a long one.
        for sequence in sorted(unread, key=lambda each: each.missing):
            reserved = 0 if sequence is oldest else reserved
            if sequence.missing < left - reserved and self.slots > 1:
                left -= sequence.missing + 1
                ready.append(sequence)
            elif left > reserved:
                part = sequence.cells.lay_out_prompt(sequence.tokens, min(sequence.missing, left - reserved))
                left -= len(part.again)
                pieces.append(sequence)
        if unread:
            ready.sort(key=self.sequences.index)
        return ready, pieces, makes_wait

    def _piece_rows(self, others_wait: bool) -> int:
        """Rows of a prompt that a step reads. `others_wait`: whether sequences could decode meanwhile."""
        whole, apart = self.context.prefill_rows, self.context.mixed_rows + 1
        # A sequence that arrives waits for the whole step. Half of a prefill's rows are as fast; a mixture's
        # experts would have an eighth of theirs, too few if nothing waits yet.
        is_short = others_wait or (self.slots > 1 and 2 * apart >= whole)
        return min(whole, apart) if is_short else whole

    def _set(self, settings: DecodeSettings) -> None:
        assert self.slots * settings.sequences <= self.context.sequences, "the context was made for fewer sequences"
        self._stepper = Stepper(self.context, settings)
        self.pool = NgramPool(settings.ngram, settings.guesses)
        self._latest = None

    def _begin_change(self) -> None:
        """Mend what an interrupt or an error has left half done, as this change is until `_is_torn` is False again."""
        if self._is_torn:
            self._admission.mend()
        self._is_torn = True

"""The engine: it takes prompts, decodes one batch a step, and gives accepted tokens, for one sequence in each slot.

A step can have drafts of some sequences and prompt chunks of others. If such a batch is slow, they take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from lacli.auto.mode import Auto, Experience
from lacli.auto.step_cost import Cost
from lacli.context import Context
from lacli.engine.admission import Admission
from lacli.engine.prompt_cache import PromptCache
from lacli.engine.step import Chunk, Score, Stepper, TokenSequence
from lacli.errors import NumbersError, PromptError, SamplingError
from lacli.modes import Jacobi, Lookahead, Lookup, Mode, Plain
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.stats import Finish, Step
from lacli.verify import Verifier

DECODED_PER_READ_S = 1 / 3
"""Seconds of decoding for each second of prefill, if both take turns."""

OLDEST_PART = 4
"""One in this many prompt rows of a step is kept for the oldest prompt, since shorter prompts come first."""

OnPrompt = Callable[[int, int], None]
"""Takes the number of decoded prompt tokens and their total. Called before each chunk and at the end of the prompt."""


@dataclass(frozen=True)
class SequenceOptions:
    """How one sequence is decoded.

    `max_tokens`: the most tokens after the prompt, -1 for no limit. `verifier`: chooses the tokens; None chooses the
    most probable. `score`: called for each token of the prompt but the first; with it, no token is reused.
    """

    max_tokens: int = -1
    verifier: Verifier | None = None
    score: Score | None = None


GREEDY = SequenceOptions()
"""The options for the most probable tokens, without a limit."""


class Progress(NamedTuple):
    """One event of a sequence: a step, or its end without a step (`step` is None).

    `error`: what ended the sequence, or None. `sequence`: None if a request ended without a slot or with its worker.
    """

    sequence: TokenSequence | None
    step: Step | None = None
    error: Exception | None = None


class Plan(NamedTuple):
    """What a step decodes: trees of the sequences `ready`, and prompt `chunks` of other sequences.

    `makes_wait`: whether the step only has chunks although some sequences could decode.
    """

    ready: list[TokenSequence]
    chunks: list[Chunk]
    makes_wait: bool = False


class Engine:
    """Decodes up to `slots` sequences together in one context.

    `limit`: the most tokens of a sequence, with its prompt. `pool`: n-grams of all sequences. `cost`: measured step
    costs, None if there are none. `cache`: the file of --prompt-cache, or None.
    """

    def __init__(
        self, context: Context, settings: DecodeSettings, slots: int = 1, *, longest: int = 0, cost: Cost | None = None
    ) -> None:
        """`longest`: the most tokens of a sequence, 0 for the model's trained length; unused with one slot."""
        self.slots, self.cost, self._longest = slots, cost, longest
        self._owed_s = 0.0  # seconds that sequences may decode before the next step of prompt chunks only
        self._is_torn = False
        self.cache: PromptCache | None = None
        self.switch_context(context, settings)

    def switch_context(self, context: Context, settings: DecodeSettings) -> None:
        """Empty `context`, and decode in it from now on. Call this only while there are no sequences."""
        self.context = context
        # With -c, a single sequence may exceed the trained tokens; several sequences share -c.
        longest = self._longest or context.trained_tokens
        self.limit = context.cells if self.slots == 1 else min(context.cells, longest)
        context.clear()
        ids = context.ids if self.slots == 1 else settings.ids
        # Cells between another sequence's cells are not in the order of a sequence.
        self._admission = Admission(context, self.slots, ids, self.limit, shares=not settings.constraints.ordered)
        self._set(settings)

    def reconfigure(self, settings: DecodeSettings, cost: Cost | None = None) -> None:
        """Use `settings` from now on, and `cost` unless None; the cache stays. Call this only without sequences."""
        assert not self.sequences, "settings change between sequences"
        self.cost = cost or self.cost
        if settings != self.settings or cost:
            self._set(settings)

    @property
    def settings(self) -> DecodeSettings:
        return self._stepper.settings

    @property
    def sequences(self) -> list[TokenSequence]:
        """The sequences that have not ended, in the order of their arrival."""
        return self._admission.sequences

    @property
    def admission(self) -> Admission:
        """The slots, for use between two steps; an interrupted step is cleaned up first."""
        self._begin_change()
        self._is_torn = False
        return self._admission

    @property
    def is_full(self) -> bool:
        """Whether every slot has a sequence."""
        return len(self.sequences) == self.slots

    def add(self, prompt: Sequence[int], options: SequenceOptions = GREEDY) -> TokenSequence:
        """Add a sequence; a slot must be free. Raises PromptError if the prompt has no token, or more than `limit`."""
        self.check_prompt(prompt)
        self._begin_change()
        begin, verifier = perf_counter(), options.verifier
        mode = make_mode(self.settings, self.pool, self.context.is_end, self._experience)
        slot = self._admission.take_slot(prompt, reuses=not options.score)
        if verifier:
            verifier.begin(prompt)
        mode.begin(slot.tokens)
        remaining = options.max_tokens if options.max_tokens >= 0 else None
        sequence = TokenSequence(
            slot.tokens, mode, slot, len(prompt) - 1, verifier, remaining, added=begin, score=options.score
        )
        self.sequences.append(sequence)
        self._admission.give_cells()
        self._is_torn = False
        if self.cache:
            self.cache.tell(sequence)
        return sequence

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise PromptError if a prompt has no token, or more than `limit`. Any thread may call this."""
        if not prompt:
            raise PromptError("the prompt is empty", "give some text")
        if len(prompt) > self.limit:
            what = f"the prompt has {len(prompt):,} tokens and the context {self.limit:,}"
            raise PromptError(what, f"{self.context_hint(len(prompt))}; a shorter prompt fits")

    def context_hint(self, tokens: int) -> str:
        """Return a hint: the -c for `tokens` tokens and an answer of 512, or that the model was trained for no more."""
        longest = self.context.trained_tokens
        if tokens >= longest:
            return f"the model was trained for {longest:,} at most"
        return f"a larger context has room, -c {min(tokens + 512, longest)} or more"

    def end(self, sequence: TokenSequence, finish: Finish = "interrupt") -> None:
        """End a sequence for the reason `finish`, unless it has ended. Its accepted tokens stay in the idle slot."""
        if sequence in self.sequences:
            self._begin_change()
            self._end(sequence, finish)
            self._is_torn = False

    def steps(self, prompt: Sequence[int], options: SequenceOptions = GREEDY) -> Generator[Step]:
        """Decode a sequence in the only slot, and yield each step. Raises PromptError, SamplingError, NumbersError."""
        with closing(self.decode(prompt, options)) as found:
            for progress in found:
                if progress.step:
                    yield progress.step

    def end_all(self) -> None:
        for sequence in [*self.sequences]:
            self.end(sequence)

    def step(self) -> list[Progress]:
        """Take a step of all sequences. Return the progress of each that decoded or ended; prompt chunks give none."""
        self._begin_change()
        progress = self._step()
        self._is_torn = False
        return progress

    def decode(
        self, prompt: Sequence[int], options: SequenceOptions = GREEDY, on_prompt: OnPrompt = lambda done, total: None
    ) -> Generator[Progress]:
        """Decode one sequence in an engine with one slot. Yield the progress of each step, and of an end without one.

        If the caller leaves the iteration early, the sequence ends, and its accepted tokens stay in the cache. Raises
        PromptError for an empty or too long prompt, SamplingError if no token is left to choose, NumbersError for NaN.
        """
        assert self.slots == 1, "several sequences are stepped together"
        self.end_all()  # after Ctrl-C the last sequence may not have ended
        try:
            sequence = self.add(prompt, options)
            missing = sequence.missing
            try:
                while sequence.finish is None and not sequence.is_prefilled:
                    on_prompt(missing - sequence.missing, missing)
                    yield from self.step()
            finally:
                on_prompt(missing, missing)
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
            # Drafts are worth more than the cells of idle slots.
            self._admission.find_cells(min(len(self.sequences) * self.settings.max_rows, self.context.batch_rows))
        while True:
            plan = self._plan()
            if not plan.ready and not plan.chunks:
                return progress
            begin, was_prefilled = perf_counter(), [each.is_prefilled for each in plan.ready]
            try:
                taken = self._stepper.take(plan.ready, plan.chunks)
            except NumbersError as error:
                *others, last = self._admission.start_over()
                if others:
                    return progress
                self._end(last)
                return [*progress, Progress(last, error=error.with_traceback(None))]
            seconds = perf_counter() - begin
            if taken is not None:
                break
            if self._admission.empty_oldest():
                continue
            *others, newest = (each for each in self.sequences if each.has_cells)
            if not others:
                # Alone it has all cells.
                self._end(newest, "length")
                return [*progress, Progress(newest)]
            self._admission.clear(newest)
        self._owed_s = seconds * DECODED_PER_READ_S if plan.makes_wait else self._owed_s - seconds
        progress += [self._book(*each, begin) for each in zip(plan.ready, was_prefilled, taken, strict=True)]
        return progress

    def _book(
        self, sequence: TokenSequence, was_prefilled: bool, found: Step | SamplingError, begin: float
    ) -> Progress:
        reads = not was_prefilled
        if isinstance(found, SamplingError):
            self._end(sequence)
            return Progress(sequence, error=found)
        sequence.score = None
        if not sequence.prompt_s:
            sequence.prompt_s = (perf_counter() if reads else begin) - sequence.added
        if reads:
            # The time and the rows of a prompt's last chunk count as prefill.
            found = found._replace(decode_s=0.0, rows=1 + found.drafted)
        if found.finish:
            self._end(sequence, found.finish)
        return Progress(sequence, found)

    def _end(self, sequence: TokenSequence, finish: Finish = "interrupt") -> None:
        sequence.finish = finish
        self._admission.free_slot(sequence)

    def _goes_on(self, sequence: TokenSequence) -> bool:
        """Return whether a sequence takes another step. If it is at a limit, end it and return False."""
        if sequence.score and not sequence.is_prefilled:
            return True
        if sequence.remaining != 0 and (not sequence.is_prefilled or self._stepper.room(sequence) > 0):
            return True
        self._end(sequence, "length")
        return False

    def _plan(self) -> Plan:
        """Choose the sequences that take the next step, and the prompt chunks of other sequences.

        With several slots, the last chunk of a prompt and the sequence's first step are one batch. Chunks and steps of
        other sequences take turns if a batch of both would be slower than two batches. They also take turns if a
        prompt is scored, since only few rows of a batch can have logits.
        """
        able = [each for each in self.sequences if each.has_cells]
        if len(able) == 1 and able[0].is_prefilled:
            # In plain decoding of one sequence, Python's time counts.
            return Plan(able, [])
        ready, chunks = [each for each in able if each.is_prefilled], list[Chunk]()
        left = min(self._chunk_rows(bool(ready)), self.context.batch_rows - len(ready))
        unread = [each for each in able if not each.is_prefilled]
        if scores := bool(unread and unread[0].score):
            left = min(left, self.context.max_outputs)
        unread = [each for each in unread if bool(each.score) == scores]
        rows = len(ready) + min(left, sum(each.missing + 1 for each in unread))
        takes_turns = bool(ready and unread) and (scores or rows > self.context.mixed_rows)
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
            if sequence.missing < left - reserved and self.slots > 1 and not scores:
                left -= sequence.missing + 1
                ready.append(sequence)
            elif left > reserved:
                chunks.append(Chunk(sequence, min(sequence.missing, left - reserved)))
                left -= chunks[-1].rows
        if unread:
            ready.sort(key=self.sequences.index)
        return Plan(ready, chunks, makes_wait)

    def _chunk_rows(self, others_wait: bool) -> int:
        """Return the most prompt rows of the next step. `others_wait`: whether some sequences could decode instead."""
        whole, apart = self.context.prefill_rows, self.context.mixed_rows + 1
        # New sequences wait for the whole step, so it is short if this costs no time, as with half of `whole`. With a
        # mixture of experts `apart` is an eighth of `whole` and costs time: then it is short only if sequences wait.
        is_short = others_wait or (self.slots > 1 and 2 * apart >= whole)
        return min(whole, apart) if is_short else whole

    def _set(self, settings: DecodeSettings) -> None:
        assert self.slots * settings.ids <= self.context.ids, "the context was made for fewer sequences"
        self._stepper = Stepper(self.context, settings)
        self.pool = NgramPool(settings.ngram, settings.guesses)
        self._experience = Experience(settings, self.cost) if settings.mode == "auto" else None

    def _begin_change(self) -> None:
        """Mark that slots are being changed. If an interrupt or error broke off the last change, repair them first."""
        if self._is_torn:
            self._admission.mend()
        self._is_torn = True


def make_mode(
    settings: DecodeSettings, pool: NgramPool, is_end: Callable[[int], bool], experience: Experience | None
) -> Mode:
    """Return the mode of a new sequence. `experience`: what earlier sequences learned; only mode auto needs it."""
    match settings.mode:
        case "plain":
            return Plain()
        case "lookup":
            return Lookup(settings)
        case "jacobi":
            return Jacobi(settings)
        case "lookahead":
            return Lookahead(settings, pool, is_end)
        case "auto":
            assert experience, "mode auto learns"
            return Auto(settings, is_end, experience)

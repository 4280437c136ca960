"""Many sequences in one engine: each gets the tokens that it gets alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx, raises

from lacli.auto.mode import FIXED_COST
from lacli.batch import Batch, Ints
from lacli.context import Floats
from lacli.engine.admission import MOST_IDLE
from lacli.engine.cells import Cells
from lacli.engine.engine import Engine, SequenceOptions
from lacli.engine.step import TokenSequence
from lacli.errors import NumbersError, PromptError, SamplingError, UsageError
from lacli.llamacpp.settings import ContextSize
from lacli.settings import DecodeSettings
from lacli.verify import LogprobRecorder, Verifier
from tests.engine.test_engine import VOCABULARY, any_settings, ends, plain_tokens
from tests.fakes.context import Cell, FakeContext, RuleBroken
from tests.fakes.decoding import PLAIN, Decoding

PLACES = 4


class SharedContext(FakeContext):
    """A toy context that refuses removals from all ids at once. `rows_decoded`: the rows of all batches."""

    rows_decoded = 0

    def decode(self, batch: Batch) -> bool:
        is_decoded = super().decode(batch)
        self.rows_decoded += len(batch) if is_decoded else 0
        return is_decoded

    def remove(self, sequence: int, start: int, end: int) -> bool:
        if sequence == -1:
            raise RuleBroken("a call names every sequence")
        return super().remove(sequence, start, end)


@dataclass
class Visit:
    """A sequence for `attend`. `arrives`: steps before it is added. `leaves`: steps that it stays, None: to its end.

    `recorder`: records the log probabilities of its prompt.
    """

    prompt: list[int]
    limit: int
    arrives: int
    leaves: int | None
    recorder: LogprobRecorder | None = None
    sequence: TokenSequence | None = None
    tokens: list[int] = field(default_factory=list)


SYSTEM = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
"""The beginning of several prompts."""

visits = st.lists(
    st.builds(
        Visit,
        prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=25).flatmap(
            lambda rest: st.sampled_from([rest, [*SYSTEM, *rest]])
        ),
        limit=st.integers(-1, 50),
        arrives=st.integers(0, 12),
        leaves=st.none() | st.integers(1, 20),
        recorder=st.none() | st.builds(LogprobRecorder, st.none(), st.just(2)),
    ),
    min_size=1,
    max_size=2 * PLACES,
)
MAX_STEPS = 4000
"""More steps than a few short sequences can need, unless the engine never ends."""


@pytest.fixture(autouse=True)
def short_beginnings_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.engine.admission.MIN_SHARED", 10)


def engine_of(chosen: DecodeSettings, cells: int, ends: frozenset[int] = frozenset(), rows: int = 256) -> SharedContext:
    return SharedContext(cells, rows, PLACES * chosen.ids, VOCABULARY, ends)


def add(engine: Engine, prompt: Sequence[int], limit: int = -1, *, verifier: Verifier | None = None) -> TokenSequence:
    return engine.add(prompt, SequenceOptions(limit, verifier))


def attend(schedule: Engine, coming: list[Visit]) -> None:
    """Add and end the sequences of `coming` step by step, until all have ended."""
    staying: list[Visit] = []
    for now in range(MAX_STEPS):
        for visit in [each for each in coming if each.arrives <= now]:
            if schedule.is_full:
                break
            options = SequenceOptions(visit.limit, visit.recorder, visit.recorder.score if visit.recorder else None)
            visit.sequence = schedule.add(visit.prompt, options)
            coming.remove(visit)
            staying.append(visit)
        if not coming and not schedule.sequences:
            return
        news = {each.sequence: each.step for each in schedule.step()}
        for visit in staying:
            assert visit.sequence
            if step := news.get(visit.sequence):
                visit.tokens += step.tokens
            if visit.leaves is not None and now - visit.arrives >= visit.leaves:
                schedule.end(visit.sequence)
    raise AssertionError("the sequences do not end")


def alone(visit: Visit, cells: int, ends: frozenset[int] = frozenset()) -> list[int]:
    """Return the tokens that plain decoding gives the sequence alone in the cache."""
    return plain_tokens(visit.prompt, visit.limit, cells, ends)


@given(any_settings, visits, ends, st.integers(41, 200), st.integers(8, 256))
@settings(max_examples=150, deadline=None)
def test_every_sequence_gets_what_it_gets_alone(
    chosen: DecodeSettings, coming: list[Visit], ends: frozenset[int], cells: int, rows: int
) -> None:
    chosen = chosen.constrained(ordered=False, min_outputs=1)
    engine = engine_of(chosen, cells, ends, rows)
    engine.max_outputs = max(engine.ids, ContextSize.for_slots(chosen, PLACES, rows).max_outputs)
    schedule = Engine(engine, chosen, PLACES, cost=FIXED_COST)
    attend(schedule, [*coming])
    for visit in coming:
        expected = alone(visit, cells, ends)
        assert visit.tokens == (expected if visit.leaves is None else expected[: len(visit.tokens)])
        scored = visit.recorder.of_prompt if visit.recorder else []
        assert len(scored) == len(visit.prompt) - 1 or not visit.recorder or visit.leaves is not None
        for place, found in enumerate(scored, start=1):
            logits = engine.logits_after([*enumerate(visit.prompt[:place])])
            scores = logits - np.log(np.exp(logits).sum())
            assert found.token == visit.prompt[place] and found.logprob == approx(scores[found.token])
            assert [score for _, score in found.best] == approx(np.sort(scores)[:-3:-1])
    assert len(engine._cells) <= schedule._admission._used_cells(), "cells of ended sequences must be free"
    assert sum(bool(slot.past) for slot in schedule._admission.idle) <= MOST_IDLE
    for slot in schedule._admission.idle:
        assert engine.held(slot.first_id) == slot.tokens[: slot.past]


LONG = [*SYSTEM, *SYSTEM, *SYSTEM]
"""A prompt's beginning that is long enough to wait for its reuse."""


def plain_schedule(cells: int, rows: int = 256) -> tuple[Engine, SharedContext]:
    engine = engine_of(PLAIN, cells, rows=rows)
    return Engine(engine, PLAIN, PLACES), engine


@pytest.mark.parametrize(("places", "prefill", "read"), [(2, 128, 64), (1, 128, 128), (2, 512, 190)])
def test_prompt_chunks_are_short_if_other_sequences_may_come(places: int, prefill: int, read: int) -> None:
    engine = FakeContext(400, 256, places, VOCABULARY, prefill_rows=prefill, mixed_rows=63)
    schedule = Engine(engine, PLAIN, places)
    sequence = add(schedule, [3] * 190, 2)
    schedule.step()
    assert sequence.cells.past == read


def finish(schedule: Engine) -> None:
    while schedule.sequences:
        schedule.step()


def answered(schedule: Engine, prompt: Sequence[int], limit: int = 10) -> TokenSequence:
    sequence = add(schedule, prompt, limit)
    finish(schedule)
    return sequence


def test_a_chat_goes_on_in_its_slot_and_other_prompts_take_empty_ones() -> None:
    schedule, engine = plain_schedule(400)
    first = answered(schedule, [*LONG, 1])
    other = answered(schedule, [7] * 30)
    assert other.cells is not first.cells and other.reused == 0
    turn = answered(schedule, [*first.tokens, 2])
    assert turn.cells is first.cells and turn.reused == len(first.tokens) - 1
    again = answered(schedule, [*first.tokens, 3])
    # The slot keeps only the common beginning.
    assert again.cells is first.cells and again.reused == len(first.tokens)
    assert len(engine._cells) == len(again.tokens) - 1 + len(other.tokens) - 1


def test_a_slot_of_which_less_than_half_begins_a_prompt_is_left_alone_while_others_are_empty() -> None:
    schedule, _ = plain_schedule(800)
    first = answered(schedule, [*LONG, *[1] * 60])
    second = answered(schedule, [*LONG, 2])
    assert second.cells is not first.cells and not second.reused
    sequences = [first, second, *(answered(schedule, [token] * 20) for token in (3, 4))]
    assert len({sequence.cells for sequence in sequences}) == PLACES
    assert answered(schedule, [*LONG, 9]).cells is second.cells
    assert answered(schedule, [5] * 20).cells is first.cells, "it gets the slot with the oldest use"


def test_a_cut_that_a_recurrent_state_cannot_make_empties_the_slot() -> None:
    engine = SharedContext(400, 256, PLACES, VOCABULARY, max_rollback=0)
    schedule = Engine(engine, PLAIN, PLACES)
    first = answered(schedule, [*LONG, 1])
    turn = answered(schedule, [*first.tokens, 2])
    assert turn.cells is first.cells and turn.reused == len(first.tokens) - 1
    again = answered(schedule, [*first.tokens, 3])
    assert again.cells is first.cells and not again.reused
    assert again.tokens[-10:] == alone(Visit([*first.tokens, 3], 10, 0, None), 400)


def test_idle_slots_are_emptied_oldest_first_when_others_need_their_cells() -> None:
    schedule, _ = plain_schedule(150)
    ended = [answered(schedule, [token] * 40, 5) for token in (1, 2, 3)]
    running = add(schedule, [4] * 60, 20)
    schedule.step()
    assert running.has_cells and [bool(sequence.cells.past) for sequence in ended] == [False, False, True]


def test_on_a_cpu_idle_slots_keep_a_quarter_of_the_cells_and_the_newest_all_of_its_own() -> None:
    engine = SharedContext(400, 256, PLACES, VOCABULARY, passes_all_cells=True)
    schedule = Engine(engine, PLAIN, PLACES)
    ended = [answered(schedule, [token] * 40, 5) for token in (1, 2, 3)]
    assert [bool(sequence.cells.past) for sequence in ended] == [False, True, True]
    long = answered(schedule, [4] * 150, 5)
    assert [slot.past for slot in schedule._admission.idle if slot.past] == [len(long.tokens) - 1]


def test_a_sequence_that_shares_cells_keeps_them_when_the_other_one_is_gone() -> None:
    schedule, engine = plain_schedule(4 * len(LONG))
    first = add(schedule, [*LONG, 1], 30)
    schedule.step()
    second, third = add(schedule, [*LONG, 2], 9), add(schedule, [*LONG, 3], 9)
    schedule.step()
    assert [sequence.cells.borrowed for sequence in schedule.sequences] == [0, len(LONG), len(LONG)]
    assert len(engine._cells) == len(LONG) + 4 == schedule._admission._used_cells() - 3
    schedule.end(first)
    schedule._admission._cut(first.cells, 0)
    assert second.cells.borrowed == third.cells.borrowed == 0
    finish(schedule)
    for sequence in (second, third):
        assert sequence.tokens[-9:] == alone(Visit([*LONG, sequence.tokens[len(LONG)]], 9, 0, None), 180)


@pytest.mark.parametrize("cells", [300, 110])
def test_eight_requests_with_one_long_system_prompt_read_it_once_and_all_end_in_a_full_cache(cells: int) -> None:
    engine = SharedContext(cells, 256, 8, VOCABULARY)
    schedule = Engine(engine, PLAIN, 8)
    visits = [Visit([*LONG, *LONG, number], 12, 0, None) for number in range(8)]
    for visit in visits:
        visit.sequence = add(schedule, visit.prompt, visit.limit)
    schedule.step()
    schedule.step()
    if cells == 300:
        assert all(sequence.has_cells for sequence in schedule.sequences) and engine.rows_decoded == 91 + 8
    finish(schedule)
    for visit in visits:
        assert visit.sequence and visit.sequence.tokens[-12:] == alone(visit, cells)


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    schedule, _ = plain_schedule(200, rows=8)
    long, short = add(schedule, [1] * 60, 1), add(schedule, [2] * 4, 1)
    schedule.step()
    assert (len(long.tokens), len(short.tokens)) == (60, 5)


def test_a_long_prompt_is_read_while_short_ones_keep_coming() -> None:
    schedule, _ = plain_schedule(400, rows=8)
    long = add(schedule, [1] * 60, 1)
    for number in count(2):
        while len(schedule.sequences) < PLACES:
            add(schedule, [number % 9 + 2] * 20, 1)
        schedule.step()
        if long.finish:
            break
        assert number < 100, "each step reads 2 tokens of it"


def test_a_sequence_among_others_ends_at_the_models_trained_length() -> None:
    engine = engine_of(PLAIN, 200)
    engine.trained_tokens = 30
    schedule = Engine(engine, PLAIN, PLACES)
    sequence = answered(schedule, [1] * 20, -1)
    # The last token needs no cell.
    assert sequence.finish == "length" and len(sequence.tokens) == 31
    with raises(PromptError, match="the model was trained for 30"):
        add(schedule, [1] * 31)


def test_the_context_that_a_long_prompt_is_told_has_room_for_an_answer() -> None:
    engine = engine_of(PLAIN, 40)
    engine.trained_tokens = 1000
    for tokens, words in (50, "-c 562 or more"), (900, "-c 1000 or more"), (1000, "the model was trained for 1,000"):
        with raises(PromptError, match=words):
            Engine(engine, PLAIN).add([1] * tokens)


def test_a_long_sequence_that_waits_is_not_overtaken() -> None:
    schedule, _ = plain_schedule(60)
    running = add(schedule, [1] * 30, 8)
    schedule.step()
    waiting, later = add(schedule, [2] * 40, 8), add(schedule, [3], 8)
    ended = []
    while schedule.sequences:
        ended += [news.sequence for news in schedule.step() if news.sequence and news.sequence.finish]
    assert ended == [running, waiting, later]


def test_running_sequences_decode_a_quarter_of_the_time_while_a_long_prompt_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step for both would have more rows than `mixed_rows`, so they take turns. Each row takes a second."""
    engine = SharedContext(ids=2, prefill_rows=16, mixed_rows=11)
    monkeypatch.setattr("lacli.engine.engine.perf_counter", lambda: float(engine.rows_decoded))
    schedule = Engine(engine, PLAIN, 2)
    add(schedule, [1], 30)
    schedule.step()
    add(schedule, [2] * 32, 5)
    found = []
    for _ in range(12):
        before = engine.rows_decoded
        found.append((len(schedule.step()), engine.rows_decoded - before))
    reads, decodes, both = (0, 12), (1, 1), (2, 9)
    assert found == [reads, *[decodes] * 4, reads, both, *[(2, 2)] * 4, (1, 1)]


class Greedy:
    """A verifier that takes the most probable token, and raises SamplingError after `left` tokens."""

    def __init__(self, left: int = 1000) -> None:
        self.left = left

    def begin(self, text: Sequence[int]) -> None:
        """Do nothing."""

    def choose(self, logits: Floats, guesses: object) -> int:
        if not self.left:
            raise SamplingError("nothing is left", "try another grammar")
        self.left -= 1
        return int(logits.argmax())


@given(any_settings, st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_a_sequence_that_cannot_go_on_ends_alone(chosen: DecodeSettings, tokens: int) -> None:
    chosen = chosen.constrained(ordered=False, min_outputs=1)
    engine = engine_of(chosen, 200)
    schedule = Engine(engine, chosen, PLACES, cost=FIXED_COST)
    stuck, other = add(schedule, [1, 2], 20, verifier=Greedy(tokens)), Visit([3, 4], 20, 0, None)
    other.sequence = add(schedule, other.prompt, other.limit)
    errors: list[Exception] = []
    found: list[int] = []
    while schedule.sequences:
        for news in schedule.step():
            errors += [news.error] if news.error else []
            tokens_found = news.step.tokens if news.step else ()
            (found if news.sequence is stuck else other.tokens).extend(tokens_found)
    assert len(errors) == 1 and str(errors[0]).startswith("nothing is left")
    assert found == alone(Visit([1, 2], tokens, 0, None), 200)
    assert other.tokens == alone(other, 200)


BAD = 11
"""A first token after which the toy model's logits are NaN."""


class SpoiltContext(SharedContext):
    """A context with NaN as logits of a sequence that begins with BAD; with `spreads` then of all, until `clear`."""

    spreads = is_spoilt = False

    def decode(self, batch: Batch) -> bool:
        is_decoded = super().decode(batch)
        self.is_spoilt |= any((cell.position, cell.token) == (0, BAD) for cell in self._cells)
        return is_decoded

    def logits_after(self, context: list[tuple[int, int]]) -> Floats:
        found = super().logits_after(context)
        return np.full_like(found, np.nan) if context[0] == (0, BAD) or (self.spreads and self.is_spoilt) else found

    def greedy(self) -> Ints:
        if np.isnan(self.logits()).any():
            raise NumbersError("no numbers")
        return super().greedy()

    def clear(self) -> None:
        super().clear()
        self.is_spoilt = False


@given(any_settings, st.booleans(), st.integers(0, 40), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_a_sequence_without_numbers_ends_with_an_error_and_all_others_go_on(
    chosen: DecodeSettings, spreads: bool, length: int, place: int
) -> None:
    chosen = chosen.constrained(ordered=False, min_outputs=1)
    context = SpoiltContext(300, 256, PLACES * chosen.ids, VOCABULARY, prefill_rows=8)
    context.spreads = spreads
    schedule = Engine(context, chosen, PLACES, cost=FIXED_COST)
    coming = [Visit([number, 3, 3] * 5, 12, number, None) for number in range(6)]
    coming.insert(place, Visit([BAD, *[1] * length], 12, place, None))
    errors: list[Exception] = []
    found: dict[TokenSequence | None, list[int]] = {}
    for now in count():
        for visit in coming:
            if not visit.sequence and visit.arrives <= now and not schedule.is_full:
                visit.sequence = add(schedule, visit.prompt, visit.limit)
        for news in schedule.step():
            errors += [news.error] if news.error else []
            found.setdefault(news.sequence, []).extend(news.step.tokens if news.step else ())
        if now > 6 and not schedule.sequences:
            break
        assert now < MAX_STEPS, "the sequences do not end"
    assert [type(error) for error in errors] == [NumbersError]
    for visit in coming:
        assert found[visit.sequence] == ([] if visit.prompt[0] == BAD else alone(visit, 300))


def test_more_sequences_than_a_batch_has_rows_take_turns() -> None:
    schedule, engine = plain_schedule(256, rows=PLACES - 1)
    coming = [Visit([start], 10, 0, None) for start in range(PLACES)]
    attend(schedule, [*coming])
    assert [visit.tokens for visit in coming] == [alone(visit, engine.cells) for visit in coming]


@pytest.mark.parametrize(
    "chosen",
    [
        DecodeSettings(mode="lookup"),
        DecodeSettings(mode="jacobi", window=6),
        # Without candidates, since they come from the n-grams of all sequences.
        DecodeSettings(mode="lookahead", window=8, ngram=4, guesses=0),
    ],
    ids=lambda chosen: chosen.mode,
)
def test_a_fixed_mode_takes_the_rows_for_each_sequence_that_it_takes_for_one(chosen: DecodeSettings) -> None:
    schedule = Engine(engine_of(chosen, 800, rows=600), chosen, PLACES)
    prompts = [[*SYSTEM, *SYSTEM, end] for end in range(PLACES)]
    sequences = [add(schedule, prompt, 12) for prompt in prompts]
    rows: dict[TokenSequence, list[int]] = {sequence: [] for sequence in sequences}
    while schedule.sequences:
        for sequence, step, _ in schedule.step():
            assert sequence
            tree = sequence.cells.part.tree
            rows[sequence] += [len(tree.tokens)] if step and tree else []
    for sequence, prompt in zip(sequences, prompts, strict=True):
        steps = Decoding(FakeContext(800, 600, chosen.ids, VOCABULARY), chosen).generate(prompt, 12)
        assert rows[sequence] == [step.rows for step in steps] and max(rows[sequence]) > 6


def refilled(engine: FakeContext, schedule: Engine, place: int, tokens: list[int]) -> Cells:
    """Refill a slot with saved tokens and their cells, or with as many cells as are free; return the slot."""

    def fill(first_id: int) -> bool:
        cells = zip(engine._free_slots(), enumerate(tokens), strict=False)
        found = [Cell(free, position, token, {first_id}) for free, (position, token) in cells]
        engine._cells += found
        return len(found) == len(tokens)

    slot = schedule.admission.slot(place)
    schedule.admission.refill(slot, tokens, fill)
    return slot


def test_a_slot_that_takes_over_tokens_gets_the_cells_of_an_idle_one_or_stays_empty() -> None:
    schedule, engine = plain_schedule(150)
    old = answered(schedule, [1] * 90, 5)
    slot = refilled(engine, schedule, 3, [*SYSTEM, 7] * 5)
    assert not old.cells.past and slot.past == 80 and schedule.admission.slot() is old.cells
    with raises(UsageError, match="no room for 151 saved tokens"):
        refilled(engine, schedule, 3, [5] * 151)
    assert slot.past == 0 and not engine._cells


def test_tokens_of_which_only_all_can_be_kept_are_shared_and_reused_as_a_whole() -> None:
    schedule, engine = plain_schedule(600)
    slot = refilled(engine, schedule, 0, [*LONG, 7, 8])
    slot.whole = slot.past
    part = answered(schedule, [*LONG, 9], 5)
    assert part.cells is not slot and not part.reused and slot.past == len(LONG) + 2
    running = add(schedule, [*LONG, 7, 8, 1], 40)
    shares = add(schedule, [*LONG, 7, 8, 2], 5)
    apart = add(schedule, [*LONG, 7, 2], 5)
    schedule.step()
    assert (running.reused, shares.reused) == (len(LONG) + 2, len(LONG) + 2)
    assert apart.reused in (0, len(LONG)) and apart.cells.whole == 0 and shares.cells.whole == len(LONG) + 2
    finish(schedule)
    for sequence, prompt in ((running, [*LONG, 7, 8, 1]), (shares, [*LONG, 7, 8, 2]), (apart, [*LONG, 7, 2])):
        count = len(sequence.tokens) - len(prompt)
        assert sequence.tokens[-count:] == alone(Visit(prompt, count, 0, None), 600)
    shares.cells.cut(len(LONG) + 1)
    assert (shares.cells.past, shares.cells.whole) == (0, 0)

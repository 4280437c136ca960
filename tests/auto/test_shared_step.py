"""Steps of several texts in mode auto: what they cost and bring together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from lacli.auto.acceptance import BUDGET_SHARE, INITIAL_BUDGET
from lacli.auto.cost_model import StepCostModel
from lacli.auto.experience import Experience
from lacli.auto.mode import Auto, AutoModes
from lacli.auto.planner import MAX_OVERDRAFT
from lacli.auto.shared_step import MAX_DELAY
from lacli.auto.step_cost import Cost
from lacli.batch import Batch
from lacli.context import Floats
from lacli.engine.engine import Engine, SequenceOptions
from lacli.modes import Growing
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from tests.auto.test_mode import STAIRS, Stairs, Writer, clocked
from tests.fakes.clock import FakeClock
from tests.fakes.context import FakeContext
from tests.fakes.scripted_context import ScriptedContext

LENGTH = 400


@dataclass
class ManyWriters(ScriptedContext):
    """A model that writes several texts, each by the writer of its place; `size`: sequence ids of a place.

    `rows`: of the steps of which all rows were read, `mixed`: of those beside pieces of prompt. `took`: seconds of the
    former.
    """

    writers: list[Writer] = field(default_factory=list)
    size: int = 1
    rows: list[int] = field(default_factory=list)
    mixed: list[int] = field(default_factory=list)
    took: float = 0.0

    def row_logits(self, row: int) -> Floats:
        logits: Floats = np.eye(self.vocabulary)[self._choices[row]]
        return logits

    def decode(self, batch: Batch) -> bool:
        count = len(batch)
        begins = np.cumsum(batch.sequence_counts[:count]) - batch.sequence_counts[:count]
        places = (batch.sequence_ids[begins] // self.size).tolist()
        choices: list[int] = []
        seconds = self.cost(count, 0)
        self.clock.now += seconds
        for place in dict.fromkeys(places):
            rows = [row for row in range(count) if places[row] == place]
            # The last piece of a prompt stands before a text's first step.
            rows = rows[next((number for number, row in enumerate(rows) if batch.outputs[row]), 0) :]
            part = Batch(len(rows))
            part.tokens, part.positions = batch.tokens[rows], batch.positions[rows]
            part.outputs = batch.outputs[rows]
            part.rows, part.wanted = len(rows), int(part.outputs.sum())
            if part.wanted:
                writer = ScriptedContext(self.writers[place], lambda rows, first: 0.0, self.clock)
                writer.decode(part)
                choices += writer.greedy().tolist()
        self._choices = choices
        if choices:
            is_mixed = batch.wanted < count
            (self.mixed if is_mixed else self.rows).append(count)
            self.took += 0.0 if is_mixed else seconds
        return True


@contextmanager
def schedule_of(
    writers: list[Writer], stairs: Stairs, cost: Cost | None, mode: str = "auto", begun: int | None = None
) -> Iterator[tuple[Engine, ManyWriters]]:
    chosen = DecodeSettings(mode="auto" if mode == "auto" else "plain").for_texts(len(writers))
    clock = FakeClock()
    engine = ManyWriters(
        lambda place, guessed: 0,
        lambda rows, _: stairs.seconds(rows),
        clock,
        writers=writers,
        size=chosen.sequences,
    )
    with clocked(clock):
        schedule = Engine(engine, chosen, len(writers), make_mode=AutoModes(cost))
        for writer in writers[:begun]:
            schedule.add(list(writer.text), SequenceOptions(LENGTH))
        yield schedule, engine


def run(writers: list[Writer], stairs: Stairs, cost: Cost | None = None, mode: str = "auto") -> ManyWriters:
    with schedule_of(writers, stairs, cost, mode) as (schedule, engine):
        while schedule.sequences:
            schedule.step()
    return engine


@pytest.mark.parametrize("known", [True, False], ids=["measured", "learned"])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("shape", STAIRS)
def test_where_no_guess_comes_true_texts_lose_no_more_together_than_one_does(
    shape: str, count: int, known: bool
) -> None:
    stairs = STAIRS[shape]

    def writers() -> list[Writer]:
        return [Writer(seed, departs=0) for seed in range(count)]

    plain = run(writers(), stairs, mode="plain")
    auto = run(writers(), stairs, stairs.measured if known else None)
    lost = (auto.took - plain.took) / stairs.seconds(count)
    assert max(auto.rows) > count, "nothing was tried"
    assert lost <= INITIAL_BUDGET + MAX_OVERDRAFT + BUDGET_SHARE * LENGTH


@pytest.mark.parametrize("known", [True, False], ids=["measured", "learned"])
@pytest.mark.parametrize(("shape", "most"), [("f16", 0.8), ("q4_0", 0.92), ("gpu", 0.3)])
def test_texts_that_copy_are_quicker_together_than_plain_ones(shape: str, most: float, known: bool) -> None:
    stairs = STAIRS[shape]
    plain = run([Writer(seed) for seed in range(4)], stairs, mode="plain")
    auto = run([Writer(seed) for seed in range(4)], stairs, stairs.measured if known else None)
    assert auto.took < most * plain.took


@pytest.mark.parametrize("shape", STAIRS)
def test_one_text_that_copies_gets_the_rows_and_the_other_none(shape: str) -> None:
    stairs = STAIRS[shape]
    writers = [Writer(1), Writer(2, passage=1)]
    drafted = [0, 0]
    with schedule_of(writers, stairs, stairs.measured) as (schedule, engine):
        texts = [*schedule.sequences]
        while len(schedule.sequences) == 2:
            for news in schedule.step():
                if news.step:
                    drafted[[*map(id, texts)].index(id(news.sequence))] += news.step.drafted
    assert drafted[0] > 5 * drafted[1]
    # With half of the machine the other one would have a token in two plain steps.
    assert engine.took <= MAX_DELAY * max(2 * stairs.seconds(1), stairs.seconds(2)) * len(engine.rows)


def test_a_steps_cost_is_recorded_once_and_never_beside_a_piece_of_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[int] = []
    record = StepCostModel.record

    def noted(model: StepCostModel, rows: int, seconds: float) -> float:
        assert seconds == pytest.approx(STAIRS["gpu"].seconds(rows))
        recorded.append(rows)
        return record(model, rows, seconds)

    monkeypatch.setattr(StepCostModel, "record", noted)
    writers = [Writer(seed) for seed in range(3)]
    with schedule_of(writers, STAIRS["gpu"], STAIRS["gpu"].measured, begun=2) as (schedule, engine):
        # Of the late text's prompt eleven tokens are left for its first step.
        engine.batch_rows = 190
        for _ in range(10):
            schedule.step()
        schedule.add(list(writers[2].text), SequenceOptions(LENGTH))
        while schedule.sequences:
            schedule.step()
    assert engine.mixed[-1] <= 64 and max(engine.rows) > 20
    assert recorded == engine.rows


CLIFF = Stairs(((1, 1.0), (8, 1.05), (9, 3.0), (64, 3.2)))


@pytest.mark.parametrize(("beside", "least", "most"), [(0, 8, 8), (4, 4, 4), (8, 20, 56), (40, 9, 24), (64, 1, 1)])
def test_beside_a_piece_of_prompt_guesses_pay_for_what_they_add_to_it(beside: int, least: int, most: int) -> None:
    chosen = DecodeSettings(mode="auto", sources=("suffix",), auto_rows=64)
    mode = AutoModes(CLIFF.measured)(chosen, NgramPool(3, 3), FakeContext())
    assert isinstance(mode, Auto)
    mode.begin(text := list(range(30)) * 2)
    for _ in range(3):
        mode.experience.cost_model.record(1, CLIFF.seconds(1))
    assert least <= len(mode.grow_all([Growing(mode, text, 64)], 64, beside)[0]) <= most


def test_texts_share_what_is_known_of_the_machine_and_the_losses() -> None:
    with schedule_of([Writer(seed) for seed in range(2)], STAIRS["gpu"], None) as (schedule, _):
        first, second = (text.mode.experience for text in schedule.sequences)  # type: ignore[attr-defined]
    assert isinstance(first, Experience) and first is second


class Drawn:
    """A verifier that draws the most probable token."""

    def begin(self, text: object) -> None:
        """Nothing is remembered."""

    def choose(self, logits: Floats, guesses: object) -> int:
        return int(logits.argmax())


def test_a_sampled_text_changes_nothing_of_what_greedy_ones_are_expected_to_bring() -> None:
    with schedule_of([Writer(1, departs=0), Writer(2)], STAIRS["gpu"], None, begun=0) as (schedule, engine):
        drawn, greedy = (
            schedule.add(list(writer.text), SequenceOptions(100, verifier))
            for writer, verifier in zip(engine.writers, (Drawn(), None), strict=True)
        )
        kinds = [text.mode.experience for text in (drawn, greedy)]  # type: ignore[attr-defined]
        while schedule.sequences:
            schedule.step()
        after = schedule.add(list(engine.writers[1].text), SequenceOptions(100))
        later = schedule.add(list(engine.writers[0].text), SequenceOptions(100, Drawn()))
    kinds += [text.mode.experience for text in (after, later)]  # type: ignore[attr-defined]
    assert kinds[0] is kinds[3] and kinds[1] is kinds[2] and kinds[0].cost_model is kinds[1].cost_model
    # The drawn text departs from what it repeats, the greedy one never does.
    estimates = [kind.acceptances["suffix"] for kind in kinds[:2]]
    rates = [sum(estimate._all_hits) / sum(estimate._all_tries) for estimate in estimates]
    assert rates[0] < 0.2 and rates[1] > 0.9


FOURS = Stairs(((1, 1.0), (2, 1.2), (3, 2.7), (4, 1.8), (5, 2.7), (6, 3.5), (7, 4.3), (8, 3.4), (9, 4.2), (64, 40.0)))
"""Kernels that take rows by four: three rows are dearer than four, and seven than eight."""


@pytest.mark.parametrize(("count", "filled"), [(1, 1), (2, 2), (3, 4), (4, 4), (7, 8)])
def test_a_step_without_guesses_is_filled_up_where_more_rows_take_less_time(count: int, filled: int) -> None:
    writers = [Writer(seed, departs=0) for seed in range(count)]
    auto = run(writers, FOURS, FOURS.measured)
    plain = run([Writer(seed, departs=0) for seed in range(count)], FOURS, mode="plain")
    assert auto.rows.count(filled) > 0.9 * len(auto.rows)
    assert auto.took < plain.took * (0.8 if filled > count else 1.03)


@pytest.mark.parametrize(
    ("most", "room", "beside", "back", "rows"),
    [(64, 64, 0, -1, 4), (64, 3, 0, -1, 3), (3, 64, 0, -1, 3), (64, 64, 2, -1, 3), (64, 64, 0, 8, 3)],
    ids=["free", "room", "auto-rows", "prompt", "hybrid"],
)
def test_no_row_is_filled_in_that_has_no_place(most: int, room: int, beside: int, back: int, rows: int) -> None:
    chosen = DecodeSettings(mode="auto", auto_rows=most, max_rollback=back)
    first = AutoModes(FOURS.measured)(chosen, NgramPool(3, 3), FakeContext())
    modes = [first, *(AutoModes()(chosen, NgramPool(3, 3), FakeContext(), before=first) for _ in range(2))]
    texts = [Growing(mode, list(range(10 * place, 10 * place + 9)), 2) for place, mode in enumerate(modes)]
    for mode, text, _ in texts:
        mode.begin(text)
    for _ in range(2):
        trees = first.grow_all(texts, room, beside)
    assert sum(map(len, trees)) == rows and not any(tree.reachable() for tree in trees)
    crowded = first.grow_all([text._replace(room=1) for text in texts], room, beside)
    assert sum(map(len, crowded)) == 3

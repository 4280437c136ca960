"""The replay of mode auto on other machines' laws: what a step costs there, and what is named a miss."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.records import COUNT, OffTheWay, Record, RecordedContext
from benchmarks.replay import (
    KNOWS,
    LEARNS,
    Answer,
    Cell,
    Law,
    LawContext,
    answer,
    misses,
    settings_of,
    table,
)
from lacli.batch import Batch, from_tokens
from lacli.settings import DecodeSettings
from tests.engine.test_engine import engine_for

CLIFF = Law("cliff", {1: 1.0, 8: 2.0, 9: 6.0, 64: 8.0})
CHEAP = Law("cheap", {1: 1.0, 64: 1.3})


def test_the_clock_moves_by_the_law_and_by_the_work_between_the_steps() -> None:
    engine = LawContext(engine_for(DecodeSettings(mode="plain")), CLIFF, 1000.0)
    begin = engine.now
    engine.decode(from_tokens([1, 2], 0))
    engine.decode(from_tokens([3], 2))
    took = engine.now - begin
    assert took > 1000 * (CLIFF(2) + 1) and took == pytest.approx(1000 * (CLIFF(2) + 1), abs=10)


def record(answer: list[int], prompt: tuple[int, ...] = (1, 2, 3)) -> Record:
    """A recorded answer in which every token's successors are itself and those above it."""
    rows = np.array([range(token, token + COUNT) for token in answer])
    return Record([*prompt], answer, rows, np.tile(-np.arange(COUNT, dtype=float), (len(answer), 1)), [])


def test_a_recorded_answer_is_the_same_in_every_mode_and_takes_fewer_steps_where_it_repeats() -> None:
    repeating = record([4, 5, 6, 7, 8, 9] * 8)
    steps = {}
    for name in ("plain", "lookup", LEARNS, KNOWS):
        settings = settings_of(name, CHEAP)
        cost = CHEAP.cost(0.01, CHEAP.rows) if name == KNOWS else None
        steps[name] = answer("edit", repeating, OffTheWay([]), settings, CHEAP, 0.01, cost).steps
    assert steps["plain"] == 48 and all(steps[name] < 30 for name in ("lookup", LEARNS, KNOWS))


def test_rows_behind_a_wrong_guess_are_followed_by_what_other_records_have() -> None:
    engine = RecordedContext(record([4, 5, 6, 7]), OffTheWay([record([9, 6, 20])]))
    # The input, a wrong guess with the text's token behind it, and the right one in a branch.
    sequences = [[0, 1], [0], [0], [1]]
    engine.decode(Batch(4).set_rows([3, 9, 5, 4], [2, 3, 4, 3], sequences, [True] * 4))
    assert engine.greedy().tolist() == [4, 6, engine.successors(1).tokens[2, 0], 5]
    assert engine.successors(3).tokens[0].tolist() == [4, 5, 6]
    assert engine.greedy()[2] != 6


def cell(**seconds: float) -> Cell:
    """Contenders that answered one prompt in these seconds."""
    return Cell(
        "machine", 15.0, {name.replace("_", " "): [Answer("edit", 2, 2, 2, each)] for name, each in seconds.items()}
    )


def test_a_miss_is_what_is_slower_than_plain_decoding() -> None:
    cells = [cell(plain=1.0, auto_learns=1.02), cell(plain=1.0, auto_learns=0.9)]
    said = misses(cells, ["edit"], LEARNS).splitlines()
    assert "below 0.99: 1 of 2" in said[0] and "0.980: edit, machine" in said[1]
    assert table(cells, ["edit"]).count("machine") == 3

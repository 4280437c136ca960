"""The replay of mode auto on the laws of other machines: its clock, its answers, and the list of slow classes."""

from __future__ import annotations

import pytest

from benchmarks.records import Record
from benchmarks.replay import KNOWS, LEARNS, Answer, Cell, Law, LawContext, answer, misses, settings_of, table
from lacli.batch import from_tokens
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


def test_a_recorded_answer_is_the_same_in_every_mode_and_takes_fewer_steps_if_it_repeats() -> None:
    repeating = Record([1, 2, 3], [4, 5, 6, 7, 8, 9] * 8, [])
    steps = {}
    for name in ("plain", "lookup", LEARNS, KNOWS):
        settings = settings_of(name, CHEAP)
        cost = CHEAP.cost(0.01, CHEAP.rows) if name == KNOWS else None
        steps[name] = answer("edit", repeating, settings, CHEAP, 0.01, cost).steps
    assert settings_of("3/4/5", CLIFF) == DecodeSettings(mode="lookahead", window=3, ngram=4, guesses=5)
    assert steps["plain"] == 48 and all(steps[name] < 30 for name in ("lookup", LEARNS, KNOWS))


def cell(**seconds: float) -> Cell:
    """Return a cell of contenders that answered one prompt in these seconds."""
    return Cell(
        "machine", 15.0, {name.replace("_", " "): [Answer("edit", 2, 2, 2, each)] for name, each in seconds.items()}
    )


def test_a_miss_is_a_class_slower_than_plain_decoding() -> None:
    cells = [cell(plain=1.0, auto_learns=1.02), cell(plain=1.0, auto_learns=0.9)]
    said = misses(cells, ["edit"], LEARNS).splitlines()
    assert "below 0.99: 1 of 2" in said[0] and "0.980: edit, machine" in said[1]
    assert table(cells, ["edit"]).count("machine") == 3

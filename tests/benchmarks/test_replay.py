"""The replay of mode auto on other machines' laws: what a step costs there, who is asked, and what is named a miss."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.replay import KNOWS, LEARNS, Answer, Cell, Law, LawEngine, halves, laws, misses, settings_of, table
from lacli.batch import from_tokens
from lacli.settings import MODES, DecodeSettings
from tests.test_decode import engine_for

CLIFF = Law("cliff", {1: 1.0, 8: 2.0, 9: 6.0, 64: 8.0})


def test_every_law_names_its_machine_and_begins_with_a_plain_step() -> None:
    known = laws()
    assert len({law.name for law in known}) == len(known) == 13
    assert all(law(1) == 1 and law.max_rows >= 4 for law in known)


def test_a_law_is_linear_between_its_points_and_keeps_its_cliffs() -> None:
    costs = [CLIFF(rows) for rows in range(1, 10)]
    steps = [after - before for before, after in pairwise(costs)]
    assert steps[:7] == pytest.approx([1 / 7] * 7) and steps[7] == pytest.approx(4)
    assert any(law(16) < law(10) * 1.05 or law(9) > law(8) * 1.5 for law in laws())


@pytest.mark.parametrize("law", [*laws(), CLIFF], ids=lambda law: law.name)
def test_no_contender_is_asked_for_steps_that_a_law_does_not_give(law: Law) -> None:
    for name in ("plain", "lookup", LEARNS, KNOWS):
        settings = settings_of(name, law)
        assert settings and settings.max_rows <= law.max_rows and settings.mode in MODES
    assert (settings_of("lookahead", law) is None) == (law.max_rows < 64)
    assert LawEngine(engine_for(DecodeSettings(mode="plain")), law, 0.01).batch_rows <= law.max_rows


def test_the_clock_moves_by_the_law_and_by_the_work_between_the_steps() -> None:
    engine = LawEngine(engine_for(DecodeSettings(mode="plain")), CLIFF, 1000.0)
    begin = engine.now
    engine.decode(from_tokens([1, 2], 0))
    engine.decode(from_tokens([3], 2))
    took = engine.now - begin
    assert took > 1000 * (CLIFF(2) + 1) and took == pytest.approx(1000 * (CLIFF(2) + 1), abs=10)


def test_halves_take_turns_and_leave_nothing_out() -> None:
    items = list(range(7))
    mine, rest = halves(items, "tune")
    assert sorted(mine + rest) == items and (rest, mine) == halves(items, "report")


def cell(**seconds: float) -> Cell:
    """Contenders that answered one prompt in these seconds."""
    names = {name.replace("_", " "): each for name, each in seconds.items()}
    return Cell("machine", 15.0, {name: [Answer("edit", (1, 2), 2, each)] for name, each in names.items()})


def test_a_miss_is_what_is_slower_than_plain_or_than_another_contender() -> None:
    cells = [
        cell(plain=1.0, lookup=2.0, auto_learns=0.999),
        cell(plain=1.0, lookup=2.0, auto_learns=1.02),
        cell(plain=1.0, lookup=0.5, auto_learns=0.6),
    ]
    said = misses(cells, ["edit"], LEARNS).splitlines()
    assert "missed 2 of 3" in said[0] and len(said) == 3
    assert "plain 1.000" in said[1] and "lookup 2.000" in said[2]
    assert table(cells, ["edit"]).count("machine") == 4

"""The pin, on cells that are read in blocks: every sequence gets the tokens it gets alone, but not without the pin."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.auto.mode import FIXED_COST
from lacli.engine.engine import Engine
from lacli.settings import DecodeSettings
from tests.engine.test_admission import PLACES, Visit, alone, attend, visits
from tests.engine.test_engine import VOCABULARY, any_settings
from tests.fakes.block_context import BlockContext


def attended(chosen: DecodeSettings, coming: list[Visit], cells: int, *, is_pinned: bool = True) -> BlockContext:
    context = BlockContext(cells, 256, PLACES * chosen.ids, VOCABULARY, is_pinned=is_pinned)
    attend(Engine(context, chosen, PLACES, cost=FIXED_COST), [*coming])
    return context


def differ(coming: list[Visit], cells: int) -> bool:
    """Whether any sequence got other tokens than alone."""
    return any(visit.tokens != alone(visit, cells)[: len(visit.tokens)] for visit in coming)


@given(any_settings, visits, st.integers(80, 250))
@settings(max_examples=40, deadline=None)
def test_every_sequence_gets_what_it_gets_alone(chosen: DecodeSettings, coming: list[Visit], cells: int) -> None:
    attended(chosen.constrained(ordered=False, min_outputs=1), coming, cells)
    assert not differ(coming, cells)


def some_visits(seed: int) -> list[Visit]:
    random = Random(seed)
    prompts = [random.choices(range(VOCABULARY), k=random.randint(5, 25)) for _ in range(8)]
    return [Visit(prompt, random.randint(5, 40), 3 * number, None) for number, prompt in enumerate(prompts)]


def test_without_the_pin_some_cells_are_overlooked_and_free_cells_that_are_scattered_are_moved() -> None:
    auto, moves, overlooked = DecodeSettings(), 0, 0
    for seed in range(8):
        moves += attended(auto, with_it := some_visits(seed), 110).moves
        assert not differ(with_it, 110)
        attended(auto, without := some_visits(seed), 110, is_pinned=False)
        overlooked += differ(without, 110)
    assert overlooked > 1 and moves > 1

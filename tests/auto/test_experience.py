"""What mode auto gives another run to begin from: numbers alone, older ones for less, and none of what is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lacli.auto import suffix
from lacli.auto.experience import HALF_LIFE_S, Experience
from lacli.engine import Successors
from lacli.settings import SOURCES, DecodeSettings

AUTO = DecodeSettings(mode="auto")
NAMES = {*SOURCES, *(f"{source}_account" for source in SOURCES), "rewriting", "window_pause", "budget", "steps"}


def experienced() -> Experience:
    """Guesses of the first kind of each source came true 3 times in 4, and steps of 4 rows cost 2.5 plain ones."""
    experience = Experience(AUTO)
    for number in range(20):
        for acceptance in experience.acceptances.values():
            acceptance.record(0, number % 4 > 0)
    for rows, seconds in ((1, 0.01), (1, 0.01), (4, 0.025), (4, 0.025), (4, 0.025)):
        experience.cost_model.record(rows, seconds)
    return experience


def begun(kept: Any, age_s: float = 0.0) -> Experience:
    experience = Experience(AUTO)
    experience.begin_from(json.loads(json.dumps(kept)), age_s)
    return experience


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    else:
        yield value


def test_numbers_under_known_names_are_all_that_another_run_gets() -> None:
    kept = experienced().numbers()
    assert set(kept) == NAMES and set(kept["steps"]) == {"plain_s", "context", "return_cost", "sizes"}
    assert {type(each) for each in leaves(kept)} <= {int, float, type(None)}
    again = begun(kept)
    for name, acceptance in experienced().acceptances.items():
        acceptance.begin()
        assert again.acceptances[name].probability == pytest.approx(acceptance.probability, abs=2e-3)
    assert again.cost_model.seen.sizes[0][:2] == (4, 2.5)


def test_what_was_learned_counts_half_after_a_half_life_and_nothing_after_years() -> None:
    kept, fresh = experienced().numbers(), Experience(AUTO)
    tries = [begun(kept, age * HALF_LIFE_S).hit_rates["suffix"][1] for age in (0, 1, 2)]
    assert tries == pytest.approx([tries[0], tries[0] / 2, tries[0] / 4], rel=1e-3)
    old = begun(kept, 200 * HALF_LIFE_S)
    assert old.acceptances["suffix"].probability == pytest.approx(fresh.acceptances["suffix"].probability)
    assert not old.cost_model.seen.sizes
    # A clock that was set back makes nothing younger than new.
    assert begun(kept, -5 * HALF_LIFE_S).numbers() == begun(kept).numbers()


def test_texts_of_the_other_kind_have_an_acceptance_of_their_own_and_all_else_in_common() -> None:
    greedy, kept = experienced(), experienced().numbers()
    drawn = greedy.other_kind()
    assert greedy.kinds == drawn.kinds == {False: greedy, True: drawn}
    # An answer under a schema is drawn too, at temperature 0, and copies no less for it.
    assert drawn.acceptances["suffix"].probability == list(suffix.EXPECTED)
    for acceptance in drawn.acceptances.values():
        acceptance.record(0, False)
    drawn.cost_model.record(8, 0.05)
    drawn.budget.record(2.0, 1.0)
    drawn.recycling.learn([1], [2], Successors(np.array([[3, 4]]), np.array([[1.0, 0.0]])))
    now = greedy.numbers()
    assert {name for name in now if now[name] != kept[name]} == {"steps", "budget"}
    assert [guess.token for guess in greedy.recycling.anywhere(1, 2)] == [3, 4]
    # What is common goes on, whatever was kept of it with the other kind's acceptance.
    drawn.begin_from(begun({}).numbers() | {"suffix": kept["suffix"]}, 0.0)
    assert greedy.numbers() == now and drawn.hit_rates["suffix"] == pytest.approx(greedy.hit_rates["suffix"], rel=1e-3)


def test_runs_that_learn_nothing_hand_on_what_they_began_with_but_for_sizes_of_steps_that_none_took() -> None:
    kept = first = begun(experienced().numbers()).numbers()
    for _ in range(3):
        kept = begun(kept).numbers()
    assert kept == {**first, "steps": {**first["steps"], "sizes": ()}}


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize(
    "value",
    [None, "text", [], [1], [[1, 2]], [["a", "b"]] * 11, {}, {"sizes": 3}],
    ids=lambda value: repr(value)[:20],
)
def test_a_damaged_part_begins_anew_and_the_others_do_not(name: str, value: Any) -> None:
    kept = experienced().numbers()
    damaged, without = (
        begun({**kept, name: value, "unknown": 1}),
        begun({each: kept[each] for each in kept if each != name}),
    )
    assert damaged.numbers() == without.numbers()
    assert damaged.numbers() != Experience(AUTO).numbers()


@pytest.mark.parametrize("kept", [None, 7, "text", [], {}])
def test_what_is_no_experience_at_all_is_none(kept: Any) -> None:
    assert begun(kept).numbers() == Experience(AUTO).numbers()

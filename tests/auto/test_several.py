"""Steps of several sequences in mode auto: their common costs and tokens."""

from __future__ import annotations

import pytest

from lacli.auto.mode import INITIAL_BALANCE, MAX_DELAY, SHARE, Auto, Experience
from lacli.auto.step_cost import Cost, StepCost
from lacli.modes import Growing, Outcome
from lacli.settings import DecodeSettings
from lacli.tree import Tree

PLAIN_S, ROW_S = 0.01, 0.001
AUTO = DecodeSettings()
COPY = [1, 2, 3, 4, 5, 6, 7, 8, 9] * 3
NONSENSE = [*range(40, 20, -1)]


def seconds(rows: int) -> float:
    return PLAIN_S + ROW_S * (rows - 1)


def modes_of(*prompts: list[int], settings: DecodeSettings = AUTO) -> list[Auto]:
    """Return the modes of sequences of one model with measured step costs, one mode for each prompt."""
    points = {rows: seconds(rows) for rows in (1, 8, 64)}
    experience = Experience(settings, Cost((StepCost(0, points),)))
    modes = [Auto(settings, lambda token: False, experience) for _ in prompts]
    for mode, prompt in zip(modes, prompts, strict=True):
        mode.begin(prompt)
    return modes


def grown(modes: list[Auto], *prompts: list[int], max_rows: int = 64, prompt_rows: int = 0) -> list[Tree]:
    growing = [Growing(mode, prompt, 32) for mode, prompt in zip(modes, prompts, strict=True)]
    return modes[0].grow_all(growing, max_rows, prompt_rows)


def observed(modes: list[Auto], trees: list[Tree], *accepted: int, prompt_rows: int = 0) -> None:
    """Report a step to each mode. `accepted`: how many tokens each sequence got."""
    rows = sum(map(len, trees)) + prompt_rows
    for mode, tree, tokens in zip(modes, trees, accepted, strict=True):
        mode.observe(tree, Outcome({}, range(1, tokens), rows, seconds(rows)))


def balance(modes: list[Auto]) -> float:
    return modes[0].experience.budget.max_cost - 1


def test_a_step_is_recorded_once_with_the_last_sequences_outcome_and_by_what_each_got() -> None:
    modes = modes_of(COPY, NONSENSE)
    trees = grown(modes, COPY, NONSENSE)
    assert [len(tree) for tree in trees] == [1, 1], "the first step is plain"
    observed(modes, trees, 1, 1)
    trees = grown(modes, COPY, NONSENSE)
    rows = sum(map(len, trees))
    assert len(trees[0]) > 1 == len(trees[1])
    before = balance(modes)
    modes[0].observe(trees[0], Outcome({}, [1, 2], rows, seconds(rows)))
    assert balance(modes) == before and rows not in modes[0].experience.costs._seen
    modes[1].observe(trees[1], Outcome({}, [], rows, seconds(rows)))
    assert len(modes[0].experience.costs._seen[rows]) == 1
    gain = (3 + 1) / 2 - seconds(rows) / seconds(2)
    assert balance(modes) == pytest.approx(before + gain + SHARE, abs=0.1)


def test_a_step_has_no_more_rows_than_its_limit_and_one_for_each_sequence() -> None:
    modes = modes_of(COPY, COPY, COPY)
    observed(modes, grown(modes, COPY, COPY, COPY), 1, 1, 1)
    assert sum(map(len, grown(modes, COPY, COPY, COPY, max_rows=7))) == 7
    assert sum(map(len, grown(modes, COPY, COPY, COPY, max_rows=2))) == 3


def test_a_copy_takes_no_more_time_than_the_others_may_wait() -> None:
    modes = modes_of(COPY, NONSENSE)
    observed(modes, grown(modes, COPY, NONSENSE), 1, 1)
    modes[0]._longest = 30
    rows = sum(map(len, grown(modes, COPY, NONSENSE)))
    costs = modes[0].experience.costs.relative
    assert costs[rows] / costs[2] <= MAX_DELAY * 2 / costs[2] < costs[32] / costs[2]


def test_with_a_prompt_chunk_drafts_count_only_the_time_that_they_add() -> None:
    modes = modes_of(COPY, COPY)
    observed(modes, grown(modes, COPY, COPY), 1, 1)
    trees = grown(modes, COPY, COPY, prompt_rows=20)
    assert all(len(tree) > 1 for tree in trees)
    seen = {**modes[0].experience.costs._seen}
    observed(modes, trees, 1, 1, prompt_rows=20)
    assert modes[0].experience.costs._seen == seen and balance(modes) < INITIAL_BALANCE + 2 * SHARE

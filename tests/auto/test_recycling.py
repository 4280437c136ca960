"""The recycling source: what the model held probable after a token, remembered by the last two tokens and by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.auto import recycling
from lacli.auto.recycling import (
    BOUNDS,
    EXPECTED,
    EXPECTED_AFTER_PAIR,
    FIRST_PAUSE,
    PAUSE,
    STAKE,
    RecycledRows,
    RecyclingSource,
    Trial,
)
from lacli.context import Successors
from tests.fakes.scripted_context import RecordedHits

PAIR_KINDS = len(EXPECTED_AFTER_PAIR)
four_logits = st.lists(st.floats(0, 9), min_size=4, max_size=4)
row = st.tuples(st.integers(0, 3), st.integers(0, 3), st.permutations(range(4)), four_logits)
rows = st.lists(row, min_size=1, max_size=8)
"""Each: the token before, the token, its successors, and their logits in any order."""

Rows = list[tuple[int, int, list[int], list[float]]]


def successors(*found: tuple[list[int], list[float]]) -> Successors:
    return Successors(np.array([tokens for tokens, _ in found]), np.array([logits for _, logits in found]))


def taught(given_rows: Rows) -> RecyclingSource:
    rows = RecycledRows()
    found = [(list(following), sorted(logits, reverse=True)) for _, _, following, logits in given_rows]
    rows.learn([row[0] for row in given_rows], [row[1] for row in given_rows], successors(*found))
    return RecyclingSource(rows)


def kind(logits: list[float], rank: int) -> int:
    """How probable the model held the token of this rank, among those that are kept: the number of bounds below."""
    weights = np.exp(np.array(sorted(logits, reverse=True)))
    return int(sum(bound < weights[rank] / weights.sum() for bound in BOUNDS))


@given(rows)
def test_it_drafts_what_was_held_probable_the_last_time(given_rows: Rows) -> None:
    source = taught(given_rows)
    after_pair = {(before, token): (following, logits) for before, token, following, logits in given_rows}
    after_token = {token: (following, logits) for _, token, following, logits in given_rows}
    for before in range(5):
        for token in range(5):
            drafts = source.anywhere(before, token)
            following, logits = after_pair.get((before, token)) or after_token.get(token) or ([], [])
            first = 0 if (before, token) in after_pair else PAIR_KINDS
            assert [drafted.token for drafted in drafts] == list(following)
            expected = [EXPECTED[first + kind(logits, rank)] for rank in range(len(following))]
            assert [drafted.probability for drafted in drafts] == pytest.approx(expected)
            assert source.first([before, token]) == drafts


def test_tokens_that_are_impossible_are_no_drafts() -> None:
    source = taught([(1, 2, [3, 0, 1, 2], [2.0, 1.0, -np.inf, -np.inf])])
    assert [drafted.token for drafted in source.anywhere(1, 2)] == [3, 0]


@given(rows, st.lists(st.integers(0, 3), max_size=12), st.integers(0, 12))
def test_every_draft_for_an_accepted_token_is_scored_and_none_for_the_prompts(
    given_rows: Rows, text: list[int], prompt: int
) -> None:
    source = taught(given_rows)
    acceptance = source.hits = RecordedHits(EXPECTED)
    prompt = min(prompt, len(text))
    source.begin(text[:prompt])
    source.extend(text)
    expected = []
    for place in range(max(prompt, 2), len(text)):
        before, token = text[place - 2 : place]
        tokens = [drafted.token for drafted in source.anywhere(before, token)]
        expected += [following == text[place] for following in tokens]
    assert [hit for _, hit in acceptance.seen] == expected
    source.extend(text)
    assert len(acceptance.seen) == len(expected)


def test_the_oldest_are_forgotten_first_and_what_is_seen_again_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "MAX_KEYS", 2)
    following, logits = [3, 0, 1, 2], [3.0, 2.0, 1.0, 0.0]
    source = taught([(9, token, following, logits) for token in (1, 2, 1, 3)])
    assert [bool(source.anywhere(9, token)) for token in (1, 2, 3)] == [True, False, True]
    assert [bool(source.anywhere(8, token)) for token in (1, 2, 3)] == [True, False, True]


def steps_until_on(trial: Trial) -> int:
    steps = 0
    while not trial.is_on:
        trial.wait()
        steps += 1
    return steps


def test_a_trial_ends_with_its_stake_and_the_next_one_begins_when_it_is_earned_again() -> None:
    trial = Trial()
    assert steps_until_on(trial) == FIRST_PAUSE
    trial.record(-0.8 * STAKE)
    assert trial.is_on
    trial.record(-0.2 * STAKE - STAKE / PAUSE)
    assert not trial.is_on and steps_until_on(trial) == PAUSE + 1
    trial.record(-2 * STAKE)
    assert steps_until_on(trial) == 2 * PAUSE


def test_recycling_that_has_gained_may_lose_more() -> None:
    trial = Trial()
    steps_until_on(trial)
    trial.record(5.0)
    trial.record(-1.4)
    assert trial.is_on
    trial.record(-0.2)
    assert not trial.is_on

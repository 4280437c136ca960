"""Results as flat rows for programs: JSON."""

from __future__ import annotations

import json

import pytest

from lacli.bench.results import Result, results
from lacli.bench.rounds import Contender, Rounds, Trial
from lacli.bench.rows import ResultRow, as_rows, as_text
from tests.fakes.bench_field import LOOKAHEAD, MACHINE, PLAIN, TASKS, asker, contender, free, played, run
from tests.fakes.clock import FakeClock


def rows_of(rounds: Rounds, found: list[Result]) -> list[ResultRow]:
    return as_rows(found, MACHINE)


def test_rows_count_what_the_trials_did(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKAHEAD)
    for row, result in zip(rows_of(rounds, found), found, strict=True):
        steps = [step for trial in result.trials for step in trial.steps]
        assert row["steps"] == len(steps)
        assert row["tokens"] == sum(len(step.tokens) for step in steps)
        assert row["draft_n"] == sum(step.drafted for step in steps)
        assert row["draft_n_accepted"] == sum(len(step.tokens) - 1 for step in steps)
        assert sum(row["accept_hist"]) == len(steps)
        assert row["n_gen"] == row["tokens"] / 2  # two repetitions
        assert row["rows_per_step"] == pytest.approx(sum(step.rows for step in steps) / len(steps), abs=1e-4)


def test_a_sample_is_a_repetition_with_llama_benchs_relation_of_time_and_speed(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKAHEAD, repetitions=3)
    for row in rows_of(rounds, found):
        samples = list(zip(row["samples_ns"], row["samples_ts"], strict=True))
        assert len(samples) == row["repetitions"] == 3
        for nanoseconds, speed in samples:
            assert speed == pytest.approx(row["n_gen"] * 1e9 / nanoseconds, rel=1e-3)


def test_json_holds_flat_rows_and_none_are_an_empty_list(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKAHEAD)
    rows = rows_of(rounds, found)
    assert json.loads(as_text(rows)) == rows and json.loads(as_text([])) == []
    assert all(not isinstance(value, dict) for row in rows for value in row.values())


def test_there_is_no_ratio_below_four_prompts(clock: FakeClock) -> None:
    """Three prompts with 20 tokens each, many times."""
    _, found = run(clock, free, PLAIN, LOOKAHEAD, repetitions=9)
    for row in as_rows(found, MACHINE):
        assert row["speedup"] == (1 if row["mode"] == "plain" else None)


def beside_a_rival(clock: FakeClock, ids: tuple[int, ...] | None, text: str | None) -> tuple[Rounds, ResultRow]:
    """Plain decoding and another program that says this in 5 seconds; the program's row."""
    plain, _ = contender(PLAIN, clock)
    theirs = Trial(ids, text, 20, 10, None, None, 10, 5.0, 1.0, 1.0, own_limit=True)
    rounds = played(Rounds([plain, Contender("llama-rival", None, 0, lambda exchange: theirs)], TASKS[:1], 1, asker()))
    return rounds, rows_of(rounds, results(rounds))[1]


def test_another_programs_answer_counts_as_far_as_both_go(clock: FakeClock) -> None:
    rounds, _ = beside_a_rival(clock, None, None)
    ids, text = rounds.of(0, 0)[0].ids or (), rounds.of(0, 0)[0].text or ""
    _, row = beside_a_rival(clock, (*ids, 3), None)
    assert row["identical"] and row["speedup"] is None
    _, row = beside_a_rival(clock, (*ids[:7], ids[7] + 1), None)
    assert (row["identical"], row["first_diff"]) == (False, 7)
    _, row = beside_a_rival(clock, None, text + " more")
    assert row["identical"]
    _, row = beside_a_rival(clock, None, "something else")
    assert (row["identical"], row["first_diff"]) == (False, None)


@pytest.mark.parametrize("text", ["", None])
def test_what_another_program_does_not_tell_is_null(clock: FakeClock, text: str | None) -> None:
    _, row = beside_a_rival(clock, None, text)
    unknown = ("identical", "identical_n", "rows_per_step", "draft_n", "window", "context_memory_mib")
    assert {row[name] for name in (*unknown, "draft_hit_rate", "accept_hist", "accept_rates")} == {None}
    assert row["draft_n_accepted"] == 10

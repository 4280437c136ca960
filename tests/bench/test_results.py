"""Results of trials: ratios computed by hand, intervals on simulated times, the summary and the rows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from lacli.bench.plan import ALL, Point
from lacli.bench.report import as_json, summary, table
from lacli.bench.results import BenchResult, paired_ratio, results
from lacli.bench.rounds import Exchange, Rounds, Trial
from tests.fakes.bench_field import LOOKAHEAD, LOOKUP, MACHINE, PLAIN, TASKS, dear, field, free, played, task
from tests.fakes.clock import FakeClock

AHEAD = "lookahead W=3 N=3 G=2"
KINDS = ("code", "edit")
Times = list[list[float]]


def answers(clock: FakeClock, prompts: int, tokens: int, kinds: Sequence[str] = KINDS) -> Rounds:
    """Return finished rounds of plain decoding, lookup and lookahead: `prompts` a class, `tokens` an answer."""
    tasks = [
        task(f"{number} 1 2 {number} 1 2 {place}", kind=kind, max_tokens=tokens)
        for number in range(prompts)
        for place, kind in enumerate(kinds)
    ]
    return played(field(clock, free, PLAIN, LOOKUP, LOOKAHEAD, tasks=tasks, repetitions=1))


def lasting(result: BenchResult, factor: float) -> BenchResult:
    """Return a result whose answers took `factor` times as long as plain decoding's."""
    answered = [
        replace(each, trials=tuple(replace(trial, seconds=factor * trial.seconds) for trial in each.plain))
        for each in result.answered
    ]
    return replace(result, answered=tuple(answered))


def measured(random: np.random.Generator, prompts: int, repetitions: int, speedup: float) -> tuple[Times, Times]:
    """Return random seconds a token of plain decoding and of a mode, with random speed-ups around `speedup`."""
    plain = np.exp(random.normal(-3, 0.3, (prompts, 1)) + random.normal(0, 0.05, (prompts, repetitions)))
    gains = random.normal(np.log(speedup), 0.25, (prompts, 1)) + random.normal(0, 0.05, (prompts, repetitions))
    other: Times = (plain / np.exp(gains)).tolist()
    return plain.tolist(), other


def test_the_ratio_is_the_geometric_mean_of_each_prompts_median_and_drift_cancels() -> None:
    # The ratios are 2, 8, 2 and 9, 1, 9.
    ratio = paired_ratio([[4.0, 8.0, 6.0], [9.0, 9.0, 9.0]], [[2.0, 1.0, 3.0], [1.0, 9.0, 1.0]])
    assert ratio.value == pytest.approx(sqrt(2 * 9))
    plain, other = measured(np.random.default_rng(5), prompts=6, repetitions=4, speedup=1.4)
    there, back = paired_ratio(plain, other), paired_ratio(other, plain)
    assert there.low is not None and there.high is not None
    assert there.low < there.value < there.high
    assert (back.value, back.low, back.high) == pytest.approx((1 / there.value, 1 / there.high, 1 / there.low))
    drift = np.array([1.0, 3.0, 0.5, 2.0])
    ratio = paired_ratio([(drift * 2).tolist()] * 3, [drift.tolist()] * 3)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize(("prompts", "repetitions"), [(3, 3), (8, 3), (20, 2)])
def test_about_95_of_100_intervals_hold_the_true_ratio(prompts: int, repetitions: int) -> None:
    random, trials, held = np.random.default_rng(7), 200, 0
    for _ in range(trials):
        ratio = paired_ratio(*measured(random, prompts, repetitions, speedup=1.5))
        assert ratio.low is not None and ratio.high is not None
        held += ratio.low <= 1.5 <= ratio.high
    # The share of 200 trials varies by 1.5 points, and intervals may be somewhat too wide.
    assert 0.90 <= held / trials <= 0.995


@pytest.mark.parametrize(("finished", "pairs"), [(1, 0), (7, 3), (9, 4)])
def test_results_of_an_interrupted_benchmark_pair_what_both_sides_finished(
    clock: FakeClock, finished: int, pairs: int
) -> None:
    found = results(played(field(clock, free, PLAIN, LOOKUP, repetitions=3), finished))
    for result in found:
        assert all(len(each.trials) == len(each.plain) > 0 for each in result.answered)
    assert sum(len(result.trials) for result in found if result.number == 1 and result.kind != ALL) == pairs
    assert summary(found, MACHINE) and table(found, MACHINE)


def test_a_repetition_that_was_not_finished_is_no_sample(clock: FakeClock) -> None:
    rounds = field(clock, dear, PLAIN, tasks=[*TASKS[:1], task("3 4 5", kind="slow")], repetitions=3)
    answer, costs = rounds.answer, {"code": 0.01, "slow": 10.0}

    def uneven(point: Point, exchange: Exchange, deadline: float) -> Trial:
        return replace(answer(point, exchange, deadline), seconds=20 * costs[exchange.task.kind])

    rounds.answer = uneven
    whole = results(played(rounds, 3))[-1]
    assert whole.kind == ALL and whole.speeds == pytest.approx([40 / (20 * 0.01 + 20 * 10.0)])


def test_turns_of_a_conversation_are_one_prompt_of_the_interval(clock: FakeClock) -> None:
    talks = [task("1 2 3", "4 5", kind="talk"), task("6 7 6 7", "8 9", kind="talk"), task("2 2", "3", kind="talk")]
    rounds = played(field(clock, free, PLAIN, LOOKUP, tasks=talks, repetitions=1))
    paces = [[[sum(t.seconds for t in pair) / sum(len(t.ids) for t in pair)] for pair in
              [(rounds.of(number, 2 * each)[0], rounds.of(number, 2 * each + 1)[0]) for each in range(3)]]
             for number in (0, 1)]  # fmt: skip
    talk = results(rounds)[1]
    assert len(talk.answered) == 6 and talk.speedup == paired_ratio(*paces)


def test_faster_modes_come_first_with_their_interval_and_classes(clock: FakeClock) -> None:
    found = [lasting(each, 2.0) if each.point.mode == "lookup" else each for each in results(answers(clock, 5, 50))]
    lines = summary(found, MACHINE).splitlines()
    assert lines[1] == "10 prompts of 2 classes, 500 tokens decoded plainly: plain decoding has 1.0 tokens/s."
    ahead, lookup = (next(i for i, line in enumerate(lines) if line.startswith(name)) for name in (AHEAD, "lookup"))
    assert ahead < lookup
    assert re.fullmatch(re.escape(AHEAD) + r": (\d\.\d\d)x, faster \(\d\.\d\dx to \d\.\d\dx\)", lines[ahead])
    assert re.fullmatch(r"    faster on \w+ \(\d\.\d\dx\), \w+ \(\d\.\d\dx\)", lines[ahead + 1])
    assert lines[lookup : lookup + 2] == [
        "lookup: 0.50x, slower (0.50x to 0.50x)", "    slower on code (0.50x), edit (0.50x)"
    ]  # fmt: skip
    assert not any("It takes" in line for line in lines) and lines[-1] == "All texts are plain decoding's."


def test_rows_for_programs_count_what_the_trials_did_and_the_table_shows_them(clock: FakeClock) -> None:
    found = results(played(field(clock, free, PLAIN, LOOKAHEAD, repetitions=3)))
    shown = table(found, MACHINE).splitlines()[4:]
    for row, result, line in zip(json.loads(as_json(found, MACHINE)), found, shown, strict=False):
        steps = [step for trial in result.trials for step in trial.steps]
        assert (row["steps"], row["tokens"]) == (len(steps), sum(len(step.tokens) for step in steps))
        assert row["draft_n"] == sum(step.drafted for step in steps)
        assert row["draft_n_accepted"] == sum(len(step.tokens) - 1 for step in steps)
        assert row["n_gen"] == row["tokens"] / 3 and len(row["samples_ts"]) == row["repetitions"] == 3
        assert row["rows_per_step"] == pytest.approx(sum(step.rows for step in steps) / len(steps), abs=1e-4)
        assert not any(isinstance(value, dict) for value in row.values())
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert (
            cells[:3] == [row["class"], row["setting"], row["engine"]] and cells[6] == f"{row['tokens_per_step']:.2f}"
        )


def test_all_texts_are_plain_decodings_only_if_each_mode_had_a_whole_answer(clock: FakeClock) -> None:
    claim = "All texts are plain decoding's."
    for left, says_so in ((10.0, False), (30.0, False), (1e3, True)):
        found = results(played(field(clock, free, PLAIN, LOOKUP, repetitions=1, deadline=clock.now + left)))
        assert (claim in summary(found, MACHINE)) is says_so, left
    assert claim not in summary(found, MACHINE, ["auto"])


@pytest.mark.parametrize(("prompts", "tokens"), [(1, 16), (3, 100), (4, 16)])
def test_below_four_prompts_or_200_tokens_there_is_no_ratio(clock: FakeClock, prompts: int, tokens: int) -> None:
    found = results(answers(clock, prompts, tokens, ["own"]))
    text = summary(found, MACHINE, ["auto"])
    assert not re.search(r"\dx|faster|slower", text) and f"{AHEAD}: cannot tell\n" in text and "lookup: cannot" in text
    assert "\nauto: cannot tell, the time was up before it answered\n" in text
    assert "A verdict needs 4 prompts, 200 tokens a mode and an interval that excludes 1: give more --seconds" in text
    assert [row["speedup"] for row in json.loads(as_json(found, MACHINE))] == [1, None, None]

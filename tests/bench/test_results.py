"""What a benchmark's trials add up to: results by class, their pairs, the summary, the table and rows for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from lacli.bench.report import as_json, summary
from lacli.bench.results import Result, results
from lacli.bench.rounds import Exchange, Rounds, Trial
from lacli.bench.statistics import paired_ratio
from lacli.bench.tasks import ALL
from tests.fakes.bench_field import (
    LOOKAHEAD,
    LOOKUP,
    MACHINE,
    PLAIN,
    TASKS,
    asker,
    contender,
    dear,
    free,
    played,
    run,
    task,
)
from tests.fakes.clock import FakeClock

AHEAD = "lookahead W=3 N=3 G=2"
KINDS = ("code", "edit")


def answers(clock: FakeClock, prompts: int, tokens: int, kinds: Sequence[str] = KINDS, lookups: int = 1) -> Rounds:
    """Plain decoding, lookup and lookahead have answered so many prompts of each class with so many tokens."""
    tasks = [
        replace(task(f"{number} 1 2 {number} 1 2 {place}"), kind=kind, max_tokens=tokens)
        for number in range(prompts)
        for place, kind in enumerate(kinds)
    ]
    settings = (PLAIN, *[LOOKUP] * lookups, LOOKAHEAD)
    return played(Rounds([contender(each, clock, free)[0] for each in settings], tasks, 1, asker()))


def lasting(result: Result, *times: float) -> Result:
    """The same with answers that took these times as long as plain decoding's, prompt by prompt."""
    answered = [
        replace(each, trials=tuple(replace(trial, seconds=factor * trial.seconds) for trial in each.plain))
        for each, factor in zip(result.answered, times, strict=True)
    ]
    return replace(result, answered=tuple(answered))


def told(found: Sequence[Result], unfinished: Sequence[str] = ()) -> str:
    return summary(found, MACHINE, unfinished)


@pytest.mark.parametrize(("finished", "pairs"), [(1, 0), (7, 3), (9, 4)])
def test_results_of_an_interrupted_benchmark_pair_what_both_sides_finished(
    clock: FakeClock, finished: int, pairs: int
) -> None:
    rounds = played(Rounds([contender(each, clock, free)[0] for each in (PLAIN, LOOKUP)], TASKS, 3, asker()), finished)
    found = results(rounds)
    for result in found:
        assert all(len(each.trials) == len(each.plain) > 0 for each in result.answered)
    assert sum(len(result.trials) for result in found if result.number == 1 and result.kind != ALL) == pairs
    assert told(found)


def test_a_repetition_that_was_not_finished_is_no_sample(clock: FakeClock) -> None:
    rounds = Rounds([contender(PLAIN, clock, dear)[0]], [*TASKS[:1], task("3 4 5", kind="slow")], 3, asker())
    costs = {"code": 0.01, "slow": 10.0}
    answer = rounds.contenders[0].answer

    def uneven(exchange: Exchange) -> Trial:
        return replace(answer(exchange), seconds=20 * costs[exchange.task.kind])

    rounds.contenders = [replace(rounds.contenders[0], answer=uneven)]
    played(rounds, 3)
    whole = results(rounds)[-1]
    assert whole.kind == ALL and whole.speeds == pytest.approx([40 / (20 * 0.01 + 20 * 10.0)])


def test_turns_of_a_conversation_are_one_prompt_of_the_interval(clock: FakeClock) -> None:
    talks = [task("1 2 3", "4 5", kind="talk"), task("6 7 6 7", "8 9", kind="talk"), task("2 2", "3", kind="talk")]
    rounds = played(Rounds([contender(each, clock, free)[0] for each in (PLAIN, LOOKUP)], talks, 1, asker()))
    talk = results(rounds)[1]
    assert talk.prompts == 6
    paces = [[[sum(t.seconds for t in pair) / sum(len(t.ids) for t in pair)] for pair in
              [(rounds.of(number, 2 * each)[0], rounds.of(number, 2 * each + 1)[0]) for each in range(3)]]
             for number in (0, 1)]  # fmt: skip
    assert talk.speedup == paired_ratio(*paces)


def test_what_is_faster_comes_first_with_its_interval_and_its_classes(clock: FakeClock) -> None:
    found = results(answers(clock, 5, 50))
    slow = [lasting(each, *[2.0] * each.prompts) if each.by.mode == "lookup" else each for each in found]
    lines = told(slow).splitlines()
    assert lines[1] == "10 prompts of 2 classes, 500 tokens decoded plainly: plain decoding has 1.0 tokens/s."
    ahead, lookup = (next(i for i, line in enumerate(lines) if line.startswith(name)) for name in (AHEAD, "lookup"))
    assert ahead < lookup
    assert re.fullmatch(re.escape(AHEAD) + r": (\d\.\d\d)x, faster \(\d\.\d\dx to \d\.\d\dx\)", lines[ahead])
    assert re.fullmatch(r"    faster on \w+ \(\d\.\d\dx\), \w+ \(\d\.\d\dx\)", lines[ahead + 1])
    assert lines[lookup : lookup + 2] == [
        "lookup: 0.50x, slower (0.50x to 0.50x)", "    slower on code (0.50x), edit (0.50x)"
    ]  # fmt: skip
    assert "It takes" not in told(slow) and lines[-1] == "All texts are plain decoding's."


def test_rows_for_programs_count_what_the_trials_did(clock: FakeClock) -> None:
    _, found = run(clock, free, PLAIN, LOOKAHEAD, repetitions=3)
    for row, result in zip(json.loads(as_json(found, MACHINE)), found, strict=True):
        steps = [step for trial in result.trials for step in trial.steps]
        assert (row["steps"], row["tokens"]) == (len(steps), sum(len(step.tokens) for step in steps))
        assert row["draft_n"] == sum(step.drafted for step in steps)
        assert row["draft_n_accepted"] == sum(len(step.tokens) - 1 for step in steps)
        assert row["n_gen"] == row["tokens"] / 3 and len(row["samples_ts"]) == row["repetitions"] == 3
        assert row["rows_per_step"] == pytest.approx(sum(step.rows for step in steps) / len(steps), abs=1e-4)
        assert not any(isinstance(value, dict) for value in row.values())


@pytest.mark.parametrize(("prompts", "tokens"), [(1, 16), (3, 100), (4, 16)])
def test_below_four_prompts_or_200_tokens_there_is_no_ratio(clock: FakeClock, prompts: int, tokens: int) -> None:
    found = results(answers(clock, prompts, tokens, ["own"]))
    text = told(found)
    assert not re.search(r"\dx|faster|slower", text) and f"{AHEAD}: cannot tell\n" in text and "lookup: cannot" in text
    assert "It takes 4 prompts, 200 tokens of each mode and an interval without 1 to tell: give more --seconds" in text
    assert [row["speedup"] for row in json.loads(as_json(found, MACHINE))] == [1, None, None]

"""What a benchmark's trials add up to, and how that reads as rows and as tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO

import pytest

from lacli.bench.judging import judge
from lacli.bench.report import as_lines, conclusion
from lacli.bench.results import ALL, Result, results
from lacli.bench.rival_run import RivalRun
from lacli.bench.rounds import (
    Contender,
    Exchange,
    Rounds,
    Trial,
)
from lacli.bench.rows import (
    Machine,
    Row,
    as_rows,
    as_text,
)
from lacli.bench.statistics import paired_ratio
from lacli.bench.sweep import Point
from lacli.check.compare import OpenEngine
from lacli.errors import LacliError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.bench_field import (
    LOOKAHEAD,
    LOOKUP,
    PLAIN,
    asker,
    contender,
    task,
)
from tests.fakes.clock import FakeClock
from tests.fakes.engine import FakeEngine
from tests.fakes.wrong_engines import LateRemove

TASKS = (task("1 2 3 1 2", kind="code"), task("4 5 6 4 5 6 4", kind="edit"), task("7 8 7 8", kind="edit"))

MACHINE = Machine(
    time="2026-01-01T00:00:00+00:00",
    version="0",
    backends="CPU",
    cpu="a processor",
    gpu="",
    model="toy.gguf",
    description="toy 1M F32",
    model_size=4,
    parameters=1,
    loading=ModelSettings(threads=1, threads_batch=1),
    flash_attention="auto",
    context=256,
    sampling="none",
    comparable=True,
    model_memory=1.0,
    peak_memory=2.0,
)

Cost = Callable[[int, int], float]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    clock.install(monkeypatch)
    return clock


def free(rows: int, outputs: int) -> float:
    """Every call takes a second, whatever it has to compute."""
    return 1.0


def dear(rows: int, outputs: int) -> float:
    """A row costs a second, and a batch saves nothing."""
    return float(rows)


def run(clock: FakeClock, cost: Cost, *settings: DecodeSettings, repetitions: int = 2) -> tuple[Rounds, list[Result]]:
    rounds = Rounds([contender(each, clock, cost)[0] for each in settings], TASKS, repetitions, asker())
    for _ in rounds:
        pass
    return rounds, results(rounds)


def test_there_is_a_result_for_each_class_and_contender_and_for_all(clock: FakeClock) -> None:
    _, found = run(clock, free, PLAIN, LOOKUP)
    assert [(result.kind, result.contender) for result in found] == [
        (kind, number) for kind in ("code", "edit", ALL) for number in (0, 1)
    ]
    assert [result.prompts for result in found] == [1, 1, 2, 2, 3, 3]


def test_where_rows_are_free_the_speedup_is_the_step_compression(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKAHEAD)
    for result in found:
        if result.prompts == 1:
            assert result.speedup.value == pytest.approx(result.compression)
        assert result.speed == pytest.approx(result.compression)
        assert result.compression == result.tokens / result.steps
    lookahead = found[-1]
    assert lookahead.steps == sum(
        len(trial.steps) for (number, _), each in rounds.trials.items() if number for trial in each
    )


def test_plain_decoding_is_as_fast_as_itself(clock: FakeClock) -> None:
    _, found = run(clock, dear, PLAIN, LOOKUP)
    plain = next(result for result in found if result.kind == ALL)
    assert (plain.speedup.value, plain.compression, plain.rows_per_step) == (1.0, 1.0, 1.0)
    assert plain.speeds == pytest.approx([1.0, 1.0])


def test_where_every_row_costs_as_much_as_a_step_nothing_pays(clock: FakeClock) -> None:
    rounds, found = run(clock, dear, PLAIN, LOOKUP, LOOKAHEAD)
    sentence = " ".join(conclusion(found, rounds.contenders).split())
    assert "None of the 2 settings tried pays on this machine" in sentence and "use --mode plain" in sentence


def test_the_conclusion_names_the_setting_that_pays_and_the_classes_where_it_does_not(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKAHEAD)
    assert "lookahead W=3 N=3 G=2 pays on this machine" in conclusion(found, rounds.contenders)
    slow = [
        replace(result, answered=tuple(replace(each, plain=each.trials) for each in result.answered))
        for result in found
        if result.kind == "edit"
    ]
    sentence = " ".join(conclusion([*found[:2], *slow, *found[4:]], rounds.contenders).split())
    assert "it may pay for code (lookahead W=3 N=3 G=2" in sentence
    assert "plain is the better choice for edit" in sentence


def test_where_large_steps_lose_smaller_ones_are_suggested(clock: FakeClock) -> None:
    rounds, found = run(clock, dear, PLAIN, replace(LOOKAHEAD, window=8, guesses=8))
    assert "Smaller steps may do better than" in " ".join(conclusion(found, rounds.contenders).split())
    rounds, found = run(clock, dear, PLAIN, LOOKAHEAD)
    assert "Smaller steps" not in conclusion(found, rounds.contenders)


def test_only_plain_decoding_leaves_nothing_to_conclude(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN)
    assert "nothing to compare" in conclusion(found, rounds.contenders)


@pytest.mark.parametrize("finished", [7, 9])
def test_results_of_an_interrupted_benchmark_pair_what_both_sides_finished(clock: FakeClock, finished: int) -> None:
    rounds = Rounds([contender(each, clock, free)[0] for each in (PLAIN, LOOKUP)], TASKS, 3, asker())
    for count, _ in enumerate(rounds, start=1):
        if count == finished:
            break
    found = results(rounds)
    for result in found:
        assert all(len(each.trials) == len(each.plain) > 0 for each in result.answered)
    pairs = sum(len(result.trials) for result in found if result.contender == 1 and result.kind != ALL)
    assert pairs == {7: 3, 9: 4}[finished]


def wrong(trial: Trial) -> Trial:
    """The same answer with another token in the middle."""
    ids = list(trial.ids or ())
    ids[7] = (ids[7] + 1) % 12
    return replace(trial, ids=tuple(ids))


def test_a_class_that_only_plain_decoding_has_answered_yet_is_no_traceback(clock: FakeClock) -> None:
    rounds = Rounds([contender(each, clock, free)[0] for each in (PLAIN, LOOKUP)], TASKS, 1, asker())
    for count, _ in enumerate(rounds, start=1):
        if count == 3:
            break
    assert conclusion(results(rounds), rounds.contenders)


def test_a_text_that_is_not_plains_is_found_with_its_first_difference(clock: FakeClock) -> None:
    rounds, _ = run(clock, free, PLAIN, LOOKUP)
    rounds.trials[1, 2][1] = wrong(rounds.trials[1, 2][1])
    lookup = next(result for result in results(rounds) if (result.kind, result.contender) == ("edit", 1))
    assert [(parting.exchange, parting.at) for parting in lookup.partings] == [(2, 7)]
    assert lookup.identical == 1


def test_a_broken_context_is_judged_a_bug(clock: FakeClock) -> None:
    rounds, _ = run(clock, free, PLAIN, LOOKUP, repetitions=1)
    rounds.trials[1, 0] = [wrong(rounds.trials[1, 0][0])]

    def readable(point: Point) -> OpenEngine:
        return lambda settings: nullcontext(LateRemove() if settings.mode == "lookup" else FakeEngine())

    judged = judge(readable, rounds.contenders, results(rounds), None, every=True)
    assert [(key, run.bug) for key, run in judged.items()] == [((1, 0), True)]


@pytest.mark.parametrize(("every", "judged"), [(True, [(1, 1), (1, 2)]), (False, [(1, 1)])])
def test_the_first_difference_of_a_class_is_judged_and_all_where_that_is_asked_for(
    clock: FakeClock, every: bool, judged: list[tuple[int, int]]
) -> None:
    rounds, _ = run(clock, free, PLAIN, LOOKUP, repetitions=1)
    for exchange in (1, 2):
        rounds.trials[1, exchange] = [wrong(rounds.trials[1, exchange][0])]
    found = results(rounds)
    opened = judge(lambda point: lambda _: nullcontext(FakeEngine()), rounds.contenders, found, None, every=every)
    assert list(opened) == judged


def test_an_answer_that_parts_no_more_when_it_is_decoded_again_says_so(clock: FakeClock) -> None:
    rounds, _ = run(clock, free, PLAIN, LOOKUP, repetitions=1)
    rounds.trials[1, 0] = [wrong(rounds.trials[1, 0][0])]
    found = results(rounds)
    judged = judge(lambda point: lambda settings: nullcontext(FakeEngine()), rounds.contenders, found, None, every=True)
    row = as_rows(found, rounds.contenders, MACHINE, judged)[1]
    assert (row["identical"], row["first_diff"], row["verdict"]) == (False, 7, "not repeated")


def rows_of(rounds: Rounds, found: list[Result]) -> list[Row]:
    return as_rows(found, rounds.contenders, MACHINE, {})


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


def test_json_lines_json_and_csv_hold_the_same_rows(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKAHEAD)
    rows = rows_of(rounds, found)
    assert json.loads(as_text(rows, "json")) == rows
    assert [json.loads(line) for line in as_text(rows, "jsonl").splitlines()] == rows
    table = list(csv.DictReader(StringIO(as_text(rows, "csv"))))
    assert [line["class"] for line in table] == [row["class"] for row in rows]
    assert all(json.loads(line["accept_hist"]) == row["accept_hist"] for line, row in zip(table, rows, strict=True))
    assert all(not isinstance(value, dict) for row in rows for value in row.values()), "rows are flat"


def test_no_rows_are_an_empty_list() -> None:
    assert json.loads(as_text([], "json")) == []


def beside_a_rival(clock: FakeClock, ids: tuple[int, ...] | None, text: str | None) -> tuple[Rounds, Row]:
    """Plain decoding and another program that says this (plus one token) in 5 seconds; the program's row."""
    plain, _ = contender(PLAIN, clock)
    said = RivalRun(20, 5.0, 10, 10, None, 5, 1.0, ids, text)
    theirs = Trial(ids, text, 20, 10, None, None, 10, 5.0, 1.0, 1.0, rival=said)
    rounds = Rounds([plain, Contender("llama-rival", None, 0, lambda exchange: theirs)], TASKS[:1], 1, asker())
    for _ in rounds:
        pass
    return rounds, rows_of(rounds, results(rounds))[1]


def test_another_programs_answer_counts_as_far_as_both_go(clock: FakeClock) -> None:
    rounds, _ = beside_a_rival(clock, None, None)
    ids, text = rounds.of(0, 0)[0].ids or (), rounds.of(0, 0)[0].text or ""
    _, row = beside_a_rival(clock, (*ids, 3), None)
    assert row["identical"] and row["speedup"] == pytest.approx(20 / 5)
    _, row = beside_a_rival(clock, (*ids[:7], ids[7] + 1), None)
    assert (row["identical"], row["first_diff"], row["verdict"]) == (False, 7, "not judged")
    _, row = beside_a_rival(clock, None, text + " more")
    assert row["identical"]
    _, row = beside_a_rival(clock, None, "something else")
    assert (row["identical"], row["first_diff"]) == (False, None)


@pytest.mark.parametrize("text", ["", None])
def test_what_another_program_does_not_tell_is_null(clock: FakeClock, text: str | None) -> None:
    _, row = beside_a_rival(clock, None, text)
    unknown = ("identical", "identical_n", "verdict", "rows_per_step", "draft_n", "window", "context_memory_mib")
    assert {row[name] for name in (*unknown, "draft_hit_rate", "accept_hist", "accept_rates")} == {None}
    assert row["draft_n_accepted"] == 10


def test_a_repetition_that_was_not_finished_is_no_sample(clock: FakeClock) -> None:
    rounds = Rounds([contender(PLAIN, clock, dear)[0]], [*TASKS[:1], task("3 4 5", kind="slow")], 3, asker())
    costs = {"code": 0.01, "slow": 10.0}
    answer = rounds.contenders[0].answer

    def uneven(exchange: Exchange) -> Trial:
        return replace(answer(exchange), seconds=20 * costs[exchange.task.kind])

    rounds.contenders = [replace(rounds.contenders[0], answer=uneven)]
    for count, _ in enumerate(rounds, start=1):
        if count == 3:
            break
    whole = results(rounds)[-1]
    assert whole.kind == ALL
    assert whole.speeds == pytest.approx([40 / (20 * 0.01 + 20 * 10.0)])


def test_a_program_that_was_given_up_has_no_result_over_all_classes(clock: FakeClock) -> None:
    answered: list[Exchange] = []

    def once(exchange: Exchange) -> Trial:
        if answered:
            raise LacliError("it crashed")
        answered.append(exchange)
        return Trial(None, None, 20, 10, None, None, 10, 1.0, 1.0, 1.0, rival=RivalRun(20, 1.0, 10, 10, None, 5, 1.0))

    rounds = Rounds([contender(PLAIN, clock)[0], Contender("rival", None, 0, once)], TASKS, 1, asker())
    for _ in rounds:
        pass
    assert [result.kind for result in results(rounds) if result.contender == 1] == ["code"]


def test_turns_of_a_conversation_are_one_prompt_of_the_interval(clock: FakeClock) -> None:
    settings = (PLAIN, LOOKUP)
    talks = [task("1 2 3", "4 5", kind="talk"), task("6 7 6 7", "8 9", kind="talk"), task("2 2", "3", kind="talk")]
    rounds = Rounds([contender(each, clock, free)[0] for each in settings], talks, 1, asker())
    for _ in rounds:
        pass
    talk = results(rounds)[1]
    assert talk.prompts == 6
    paces = [[[sum(t.seconds for t in pair) / sum(t.tokens for t in pair)] for pair in
              [(rounds.of(number, 2 * each)[0], rounds.of(number, 2 * each + 1)[0]) for each in range(3)]]
             for number in (0, 1)]  # fmt: skip
    assert talk.speedup == paired_ratio(*paces)


def test_with_several_plain_decodings_the_fastest_is_what_counts(clock: FakeClock) -> None:
    """Lookup is half as fast again as the slow one, and slower than the fast one."""
    slow, _ = contender(PLAIN, clock, lambda rows, outputs: 3.0)
    fast, _ = contender(PLAIN, clock, lambda rows, outputs: 1.0)
    lookup, _ = contender(LOOKUP, clock, lambda rows, outputs: 3.0)
    ones = [replace(slow, label="plain, -fa on"), replace(fast, label="plain, -fa off", baseline=1), lookup]
    rounds = Rounds(ones, TASKS, 2, asker())
    for _ in rounds:
        pass
    found = results(rounds)
    assert found[-1].speedup.value > 1
    sentence = " ".join(conclusion(found, rounds.contenders).split())
    assert "The setting tried does not pay on this machine" in sentence and "plain, -fa off's speed" in sentence


def test_the_best_of_many_settings_is_to_be_measured_alone(clock: FakeClock) -> None:
    many = [replace(LOOKAHEAD, window=window) for window in range(5)]
    rounds, found = run(clock, free, PLAIN, *many)
    sentence = " ".join(conclusion(found, rounds.contenders).split())
    assert "is the best of 5 settings" in sentence and "measure it alone" in sentence


def test_the_tables_show_every_class_and_mode_in_a_form_that_markdown_reads(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKUP, LOOKAHEAD)
    text = as_lines(found, rounds.contenders, MACHINE, {})
    for words in ("code", "edit", ALL, "plain", "lookup", "lookahead W=3 N=3 G=2", "toy 1M F32", "a processor"):
        assert words in text
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("|"):
            assert len({line.count("|") for line in lines}) == 1 and set(lines[1]) <= set("|-:")
